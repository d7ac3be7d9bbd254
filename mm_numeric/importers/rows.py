"""Rows that were made elsewhere in the form that tasks read: checked one by one, sizes added.

    {"ref_id": 5044, "image": "1.jpg", "box_xyxy": [285, 23, 424, 146], "sentences": ["a bush"]}
    {"id": "7", "image": "2.jpg", "instances": [{"polygon": [...], "ignore": true}]}
    {"id": "8", "question": "What is 3 + 4?", "answer": 7}

What a task does not look at is kept as it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.geometry.row_shapes import read_id, read_image
from mm_numeric.importers.files import ImageFolder, listed, read_each
from mm_numeric.importers.importer import (
    Found,
    ImagesFolder,
    RefusedError,
    Row,
)
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.tasks.numbers import Numbers

_OTHER_NAMES = {"file": "image", "img_path": "image", "box_xyxy": "box", "ref_id": "id"}


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of your own, as grounding, text_detection and numbers read them: each is checked."""

    version: ClassVar[int] = 1

    images: ImagesFolder = None

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return the files that will be read."""
        return listed(inputs, (".json", ".jsonl"))

    def rows(self, files: Sequence[Path]) -> Iterator[Found]:
        """Read each row as its task would."""
        return read_each(files, partial(_row, ImageFolder(self.images)))


def _row(
    image_folder: ImageFolder, where: str, identity: str, raw: Mapping[str, Any]
) -> Iterator[Found]:
    yield Row(where, _fields(where, raw, image_folder))


def _fields(where: str, raw: Mapping[str, Any], image_folder: ImageFolder) -> dict[str, Any]:
    """Return a row under one name each, after its task has read it.

    Raises:
        RefusedError: If the task would refuse it, or its image is not there.
    """
    text_only = {"question", "answer"} <= set(raw) and not raw.get("image")
    task = Grounding(answer="list" if "instances" in raw else "box")
    try:
        list((Numbers() if text_only else task).examples([(where, raw)], training=True))
        if text_only:
            return {**raw, "id": str(raw["id"])}
        image, size_px = read_image(raw, where)
        identity = read_id(raw, ("id", "ref_id"), image)
    except ValueError as error:
        raise RefusedError("row", str(error).removeprefix(where).lstrip(":, ")) from error
    kept = {_OTHER_NAMES.get(name, name): value for name, value in raw.items()}
    return {**kept, "id": identity, **image_folder.facts(str(image), size_px)}
