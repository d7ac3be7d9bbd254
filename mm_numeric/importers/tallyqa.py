"""Import TallyQA: ``train.json`` and ``test.json``, lists of questions about counts.

    [{"answer": 4, "data_source": "imported_genome", "image": "VG_100K_2/2410408.jpg",
      "image_id": 92410408, "issimple": false, "question": "How many headlights does the bus have?",
      "question_id": 30095774}, ...]

Simple and complex questions become the categories ``simple`` and ``complex``. Training questions
without ``issimple`` have no category.

Source: https://github.com/manoja328/TallyQA_dataset, README (arXiv 1810.12440).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.importers.importer import ImageImporter, InvalidRowError, shorten, text_field

_CATEGORIES = {True: "simple", False: "complex"}


@dataclass(frozen=True, kw_only=True)
class TallyQA(ImageImporter):
    """Importer for TallyQA: how many objects are in an image, one row per question."""

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Convert a question."""
        count, number, is_simple = raw.get("answer"), raw.get("question_id"), raw.get("issimple")
        if type(count) is not int or count < 0:
            raise InvalidRowError("answer", f"answer must be a count, not {shorten(count)}.")
        if not isinstance(is_simple, bool | None):
            why = f"issimple is true or false, not {shorten(is_simple)}."
            raise InvalidRowError("issimple", why)
        fields = {
            "id": identity if number is None else str(number),
            **self.folder.fields(text_field(raw, "image")),
            "question": text_field(raw, "question"),
            "answer": count,
        }
        return fields if is_simple is None else fields | {"category": _CATEGORIES[is_simple]}
