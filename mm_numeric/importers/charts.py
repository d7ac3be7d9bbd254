"""Import ChartQA and PlotQA: questions about charts and plots, with a number as answer.

ChartQA: ``train_human.json``, ``test_augmented.json`` and the other JSON files.

    [{"imgname": "41699051005347.png", "query": "How many food items are shown?", "label": "14"},
     ...]

Percent signs and thousands separators are removed from labels. The category is the word ``human``
or ``augmented`` in the file name.

PlotQA: ``qa_pairs_V1.json`` and ``qa_pairs_V2.json``. A file may also contain only the list.

    {"qa_pairs": [{"image_index": 17, "question_string": "What is the value of ...?",
                   "answer": 12.5, "answer_bbox": {}, "template": "data_retrieval",
                   "type": "vbar_categorical"}, ...]}

The image is ``17.png``. The kind of plot, ``type``, becomes the category. In both data sets,
questions whose answer is not a number are left out.

Years get a tolerance of 0: with the usual 5 %, every year from 1910 to 2110 would be correct for
2010. An answer is taken as a year if it is a whole number from 1800 to 2099 and the question has
the word ``year``, ``years`` or ``when``.

Sources: https://github.com/vis-nlp/ChartQA, ``ChartQA Dataset``, and ahmed-masry/ChartQA on the
hub; https://github.com/NiteshMethani/PlotQA, PlotQA_Dataset.md.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.answers import Number
from mm_numeric.importers.importer import (
    ImageImporter,
    InvalidRowError,
    SkippedLine,
    parse_text,
    shorten,
    text_field,
)
from mm_numeric.numbers.numerals import plain_numbers

_CATEGORIES = ("human", "augmented")
NOT_NUMERIC = SkippedLine("questions without a numeric answer")
_YEAR = re.compile("(?:18|19|20)[0-9]{2}")
_ASKS_FOR_A_YEAR = re.compile(r"\b(?:years?|when)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ChartQA(ImageImporter):
    """Importer for ChartQA: questions about charts with a number as answer."""

    version = 3  # 3: years have a tolerance of 0

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any] | SkippedLine:
        """Convert a question; skip it if its answer is not a number."""
        label = text_field(raw, "label").strip()
        question = text_field(raw, "query")
        image = self.folder.fields(text_field(raw, "imgname"))
        try:
            # A comma that is no thousands separator, as in 3,4, may separate two answers.
            answer = Number(plain_numbers(label.removesuffix("%").strip())).text
        except ValueError:
            return NOT_NUMERIC
        fields = {"id": identity, **image, **_asked(question, answer)}
        category = [name for name in _CATEGORIES if name in identity]
        return fields | {"category": category[0]} if category else fields


@dataclass(frozen=True, kw_only=True)
class PlotQA(ImageImporter):
    """Importer for PlotQA: questions about plots with a number as answer."""

    version = 2  # 2: years have a tolerance of 0

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any] | SkippedLine:
        """Convert a question; skip it if its answer is not a number."""
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
        return {"id": identity, **image, **_asked(question, number), **category}


def _asked(question: str, answer: str) -> dict[str, Any]:
    is_year = _ASKS_FOR_A_YEAR.search(question) and _YEAR.fullmatch(answer)
    return {"question": question, "answer": answer} | ({"tolerance": 0} if is_year else {})
