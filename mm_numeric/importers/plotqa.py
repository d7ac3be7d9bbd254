"""Import PlotQA: ``qa_pairs_V1.json`` and ``qa_pairs_V2.json``, lists of questions about plots.

    {"qa_pairs": [{"image_index": 17, "question_string": "What is the value of ...?",
                   "answer": 12.5, "answer_bbox": {}, "template": "data_retrieval",
                   "type": "vbar_categorical"}, ...]}

Questions whose answer is no number are left out. The image is ``17.png``. The kind of plot,
``type``, becomes the category.

Source: https://github.com/NiteshMethani/PlotQA, PlotQA_Dataset.md. The list may also be the whole
file, as that page describes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.answers import Number
from mm_numeric.importers.chartqa import NOT_NUMERIC
from mm_numeric.importers.importer import (
    ImageImporter,
    InvalidRowError,
    SkippedLine,
    parse_text,
    shorten,
    text_field,
)


@dataclass(frozen=True, kw_only=True)
class PlotQA(ImageImporter):
    """Importer for PlotQA: questions about plots with a number as answer."""

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any] | SkippedLine:
        """Convert a question; skip it if its answer is no number."""
        index, answer, kind = raw.get("image_index"), raw.get("answer"), raw.get("type")
        if type(index) is not int or index < 0:
            raise InvalidRowError("image", f"image_index is a number, not {shorten(index)}.")
        question = text_field(raw, "question_string")
        image = self.folder.fields(f"{index}.png")
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise InvalidRowError("answer", f"answer is a text or a number, not {shorten(answer)}.")
        try:
            number = Number(str(answer).strip()).text
        except ValueError:
            return NOT_NUMERIC
        category = {} if kind is None else {"category": parse_text(kind, "type")}
        return {"id": identity, **image, "question": question, "answer": number, **category}
