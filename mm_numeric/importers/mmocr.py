"""Import text regions from the JSON files of MMOCR, such as ``textdet_test.json``.

Source: https://mmocr.readthedocs.io, dataset classes. Example: tests/data/det_toy_dataset of MMOCR.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.importers.importer import (
    ImageImporter,
    ImportedItem,
    InvalidRowError,
    declared_size,
    image_row,
    of_shape,
    parse_box,
    parse_polygon,
    shorten,
    text_field,
)


@dataclass(frozen=True, kw_only=True)
class MMOCR(ImageImporter):
    """Importer for MMOCR's JSON: text regions as polygons or boxes, one row per image."""

    endings = (".json",)

    def items(self, where: str, identity: str, raw: Mapping[str, Any]) -> Iterator[ImportedItem]:
        """Yield an error per invalid region, and the row of the image with the others."""
        name = text_field(raw, "img_path")
        fields = {"id": name, **self.folder.fields(name, declared_size(raw))}
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
    text, ignore = raw.get("text"), raw.get("ignore", False)
    with of_shape(instance):
        if not isinstance(text, str | None):
            raise InvalidRowError("text", f"text must be a text, not {shorten(text)}.")
        if ignore not in (True, False):
            raise InvalidRowError("ignore", f"ignore must be true or false, not {ignore!r:.20}.")
    # The text may be empty, as in ICDAR 2015.
    texts = {} if text is None else {"text": text}
    return {**instance, **texts, **({"ignore": True} if ignore else {})}
