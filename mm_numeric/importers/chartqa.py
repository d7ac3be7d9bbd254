"""Import ChartQA: ``train_human.json``, ``test_augmented.json`` and the other JSON files.

    [{"imgname": "41699051005347.png", "query": "How many food items are shown?", "label": "14"},
     ...]

Questions whose label is no number are left out. A percent sign and thousands separators of a label
are removed. ``human`` or ``augmented``, in the name of the file, becomes the category.

Source: https://github.com/vis-nlp/ChartQA, ``ChartQA Dataset``; ahmed-masry/ChartQA on the hub.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.answers import Number
from mm_numeric.importers.importer import ImageImporter, SkippedLine, text_field
from mm_numeric.numbers.numerals import plain_numbers

_CATEGORIES = ("human", "augmented")
NOT_NUMERIC = SkippedLine("questions without a numeric answer")


@dataclass(frozen=True, kw_only=True)
class ChartQA(ImageImporter):
    """Importer for ChartQA: questions about charts with a number as answer."""

    version = 2

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any] | SkippedLine:
        """Convert a question; skip it if its answer is no number."""
        label = text_field(raw, "label").strip()
        question = text_field(raw, "query")
        image = self.folder.fields(text_field(raw, "imgname"))
        try:
            # A comma that separates no thousands, as in 3,4, may separate two answers.
            answer = Number(plain_numbers(label.removesuffix("%").strip())).text
        except ValueError:
            return NOT_NUMERIC
        fields = {"id": identity, **image, "question": question, "answer": answer}
        category = [name for name in _CATEGORIES if name in identity]
        return fields | {"category": category[0]} if category else fields
