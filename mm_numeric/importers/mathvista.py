"""MathVista: ``testmini.json`` (or ``annot_testmini.json``), or the rows of its parquet files.

    {"1": {"pid": "1", "question": ..., "image": "images/1.jpg", "choices": null, "unit": "g",
           "precision": 1, "answer": "1.2", "question_type": "free_form", "answer_type": "float",
           "metadata": {"split": "testmini", "skills": [...], ...}}, ...}

From parquet, rows come as .json or .jsonl with ``query`` and the path of a saved image in
``decoded_image``. Fields keep their names; ``metadata.split`` says that the rows are for testing.

Source: https://github.com/lupantech/MathVista, data/testmini.json; AI4Math/MathVista on the hub.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.files import read_json
from mm_numeric.importers.files import ImageFolder, listed, read_objects
from mm_numeric.importers.importer import (
    BadLine,
    Found,
    ImagesFolder,
    RefusedError,
    Row,
    shown,
    text_of,
)
from mm_numeric.tasks.mathvista import MathVista as Task

_KEPT = (
    *("question", "choices", "unit", "precision", "answer", "question_type", "answer_type"),
    *("metadata", "query"),
)


@dataclass(frozen=True, kw_only=True)
class MathVista:
    """MathVista's questions, for testing alone: a row a question."""

    version: ClassVar[int] = 1

    images: ImagesFolder = None

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return the files that will be read."""
        return listed(inputs, (".json", ".jsonl"))

    def rows(self, files: Sequence[Path]) -> Iterator[Found]:
        """Read each question as the task would."""
        image_folder = ImageFolder(self.images)
        for path in files:
            for item in _problems(path):
                if isinstance(item, BadLine):
                    yield item
                    continue
                where, raw = item
                try:
                    yield Row(where, _fields(where, raw, image_folder))
                except RefusedError as refusal:
                    yield refusal.at(where)


def _problems(path: Path) -> Iterator[tuple[str, dict[str, Any]] | BadLine]:
    """Yield each question of an object by pid, or of a list."""
    found = read_json(path) if path.suffix.lower() == ".json" else None
    if not isinstance(found, dict):
        yield from read_objects(path)
        return
    for pid, raw in found.items():
        where = f"{path}, {pid}"
        if isinstance(raw, dict):
            yield where, {"pid": pid, **raw}
        else:
            yield BadLine(where, f"expected an object, found {shown(raw)}.", "json")


def _fields(where: str, raw: Mapping[str, Any], image_folder: ImageFolder) -> dict[str, Any]:
    """Return a row, after its task has read it.

    Raises:
        RefusedError: If the task would refuse it, or its image is not there.
    """
    saved = raw.get("decoded_image")
    image = text_of(saved if isinstance(saved, str) and saved else raw.get("image"), "image")
    kept = {name: raw[name] for name in _KEPT if not _is_missing(raw.get(name))}
    if isinstance(kept.get("precision"), float) and kept["precision"].is_integer():
        kept["precision"] = int(kept["precision"])  # parquet holds 1.0
    row = {"id": text_of(raw.get("pid"), "pid"), **image_folder.facts(image), **kept}
    try:
        list(Task().examples([(where, row)], training=False))
    except ValueError as error:
        raise RefusedError("row", str(error).removeprefix(where).lstrip(":, ")) from error
    return row


def _is_missing(value: Any) -> bool:
    """Return whether a field says nothing: null, which pandas writes as NaN where numbers are."""
    return value is None or (isinstance(value, float) and math.isnan(value))
