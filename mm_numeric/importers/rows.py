"""Validate your own rows, which are already in the format of a task, and add image sizes.

    {"ref_id": 5044, "image": "1.jpg", "box_xyxy": [285, 23, 424, 146], "sentences": ["a bush"]}
    {"id": "7", "image": "2.jpg", "instances": [{"polygon": [...], "ignore": true}]}
    {"id": "8", "question": "What is 3 + 4?", "answer": 7}

Fields that the task does not read are kept unchanged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mm_numeric.geometry.row_shapes import read_id, read_image
from mm_numeric.importers.files import FileImporter, ImageFolder, rows_from_objects
from mm_numeric.importers.importer import ImagesFolder, ImportedItem, InvalidRowError, Row
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.tasks.numbers import Numbers

_OTHER_NAMES = {"file": "image", "img_path": "image", "box_xyxy": "box", "ref_id": "id"}


@dataclass(frozen=True, kw_only=True)
class Rows(FileImporter):
    """Importer for your own JSON rows: checks that mm-numeric can read them, adds image sizes."""

    endings = (".json", ".jsonl")

    images: ImagesFolder = None

    def rows(self, files: Sequence[Path]) -> Iterator[ImportedItem]:
        """Yield each row that can be used for training, and an error for each other row."""
        return rows_from_objects(files, partial(_row, ImageFolder(self.images)))


def _row(
    image_folder: ImageFolder, where: str, identity: str, raw: Mapping[str, Any]
) -> Iterator[ImportedItem]:
    yield Row(where, _fields(where, raw, image_folder))


def _fields(where: str, raw: Mapping[str, Any], image_folder: ImageFolder) -> dict[str, Any]:
    """Validate a row, rename its fields (``file`` becomes ``image``), and add its image size."""
    text_only = {"question", "answer"} <= set(raw) and not raw.get("image")
    task = Numbers() if text_only else Detection() if "instances" in raw else Grounding()
    try:
        list(task.examples([(where, raw)], training=True))
        if text_only:
            return {**raw, "id": str(raw["id"])}
        image, size_px = read_image(raw, where)
        identity = read_id(raw, ("id", "ref_id"), image)
    except ValueError as error:
        raise InvalidRowError("row", str(error).removeprefix(where).lstrip(":, ")) from error
    kept = {_OTHER_NAMES.get(name, name): value for name, value in raw.items()}
    return {**kept, "id": identity, **image_folder.fields(str(image), size_px)}
