"""MMOCR's text detection JSON: ``textdet_test.json``, with a ``data_list``.

Source: https://mmocr.readthedocs.io, the dataset classes; checked on tests/data/det_toy_dataset.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.importers.files import ImageFolder, listed, read_each
from mm_numeric.importers.importer import (
    Found,
    ImagesFolder,
    RefusedError,
    Row,
    box_of,
    polygon_of,
    size_of,
    text_of,
)


@dataclass(frozen=True, kw_only=True)
class MMOCR:
    """MMOCR's JSON: a data_list of images with polygons; a row an image."""

    version: ClassVar[int] = 1

    images: ImagesFolder = None

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return the files that will be read."""
        return listed(inputs, (".json",))

    def rows(self, files: Sequence[Path]) -> Iterator[Found]:
        """Read them; an image with a bad instance has no row."""
        return read_each(files, partial(self._image, ImageFolder(self.images)))

    def _image(
        self, image_folder: ImageFolder, where: str, identity: str, raw: Mapping[str, Any]
    ) -> Iterator[Found]:
        name = text_of(raw.get("img_path"), "img_path")
        fields = {"id": name, **image_folder.facts(name, size_of(raw))}
        if not isinstance(raw.get("instances"), list):
            raise RefusedError("instances", 'there is no list "instances".')
        instances = []
        for i, instance in enumerate(raw["instances"]):
            try:
                instances.append(_instance(instance))
            except RefusedError as refusal:
                yield refusal.at(f"{where}, instances.{i}")
        if len(instances) == len(raw["instances"]):
            yield Row(where, {**fields, "instances": instances})


def _instance(raw: Any) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise RefusedError("instances", f"expected an object, found {raw!r:.40}.")
    instance: dict[str, Any]
    if raw.get("polygon") is not None:
        instance = {"polygon": polygon_of(raw["polygon"])}
    else:
        instance = {"box": box_of(raw.get("bbox"))}
    if raw.get("text") is not None:
        instance["text"] = text_of(raw["text"], "text")
    ignore = raw.get("ignore", False)
    if ignore not in (True, False):
        raise RefusedError("ignore", f"ignore is true or false, not {ignore!r:.20}.")
    if ignore:
        instance["ignore"] = True
    return instance
