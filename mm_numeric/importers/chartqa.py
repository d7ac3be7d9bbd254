"""Import ChartQA: ``train_human.json``, ``test_augmented.json`` and the other JSON files.

    [{"imgname": "41699051005347.png", "query": "How many food items are shown?", "label": "14"},
     ...]

Questions whose label is no number are left out. A percent sign and thousands separators of a label
are removed. ``human`` or ``augmented``, in the name of the file, becomes the category.

Source: https://github.com/vis-nlp/ChartQA, ``ChartQA Dataset``; ahmed-masry/ChartQA on the hub.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mm_numeric.answers import Number
from mm_numeric.importers.files import FileImporter, ImageFolder, rows_from_objects
from mm_numeric.importers.importer import ImagesFolder, ImportedItem, Row, SkippedLine, parse_text

_CATEGORIES = ("human", "augmented")


@dataclass(frozen=True, kw_only=True)
class ChartQA(FileImporter):
    """Importer for ChartQA: questions about charts with a number as answer."""

    endings = (".json", ".jsonl")

    images: ImagesFolder = None

    def rows(self, files: Sequence[Path]) -> Iterator[ImportedItem]:
        """Yield one row per question whose answer is a number; an invalid one yields an error."""
        return rows_from_objects(files, partial(_row, ImageFolder(self.images)))


def _row(
    image_folder: ImageFolder, where: str, identity: str, raw: Mapping[str, Any]
) -> Iterator[ImportedItem]:
    label = parse_text(raw.get("label"), "label").strip()
    question = parse_text(raw.get("query"), "query")
    image = image_folder.fields(parse_text(raw.get("imgname"), "imgname"))
    try:
        answer = Number(label.removesuffix("%").strip().replace(",", "")).text
    except ValueError:
        yield SkippedLine("questions without a numeric answer")
        return
    fields = {"id": identity, **image, "question": question, "answer": answer}
    category = [name for name in _CATEGORIES if name in identity]
    yield Row(where, fields | {"category": category[0]} if category else fields)
