"""Import text regions from the JSON files of MMOCR, such as ``textdet_test.json``.

Source: https://mmocr.readthedocs.io, dataset classes. Example: tests/data/det_toy_dataset in MMOCR.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mm_numeric.importers.files import FileImporter, ImageFolder, image_row, rows_from_objects
from mm_numeric.importers.importer import (
    ImagesFolder,
    ImportedItem,
    InvalidRowError,
    declared_size,
    parse_box,
    parse_polygon,
    parse_text,
    shorten,
)


@dataclass(frozen=True, kw_only=True)
class MMOCR(FileImporter):
    """Importer for MMOCR's JSON: text regions as polygons or boxes, one row per image."""

    endings = (".json",)

    images: ImagesFolder = None

    def rows(self, files: Sequence[Path]) -> Iterator[ImportedItem]:
        """Yield one row per image, or instead one error per invalid text region of the image."""
        return rows_from_objects(files, partial(self._image, ImageFolder(self.images)))

    def _image(
        self, image_folder: ImageFolder, where: str, identity: str, raw: Mapping[str, Any]
    ) -> Iterator[ImportedItem]:
        name = parse_text(raw.get("img_path"), "img_path")
        fields = {"id": name, **image_folder.fields(name, declared_size(raw))}
        if not isinstance(raw.get("instances"), list):
            raise InvalidRowError("instances", 'there is no list "instances".')
        objects = ((f"instances.{i}", item) for i, item in enumerate(raw["instances"]))
        yield from image_row(where, fields, objects, _instance)


def _instance(raw: Any) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise InvalidRowError("instances", f"expected an object, found {raw!r:.40}.")
    instance: dict[str, Any]
    if raw.get("polygon") is not None:
        instance = {"polygon": parse_polygon(raw["polygon"])}
    else:
        instance = {"box": parse_box(raw.get("bbox"))}
    text = raw.get("text")
    if text is not None:
        if not isinstance(text, str):
            raise InvalidRowError("text", f"text must be a text, not {shorten(text)}.")
        instance["text"] = text  # may be empty, as in ICDAR 2015
    ignore = raw.get("ignore", False)
    if ignore not in (True, False):
        raise InvalidRowError("ignore", f"ignore must be true or false, not {ignore!r:.20}.")
    if ignore:
        instance["ignore"] = True
    return instance
