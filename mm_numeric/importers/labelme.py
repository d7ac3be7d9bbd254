"""Import LabelMe: one JSON file per image.

    {"imagePath": "1.jpg", "imageWidth": 640, "imageHeight": 480, "shapes": [
      {"label": "dog", "shape_type": "rectangle", "points": [[10, 20], [110, 90]]}]}

Rectangles have two corners in any order. Polygons have at least three points. A circle has its
centre and a point on it, and becomes the box around it. Points, lines and masks are counted and
left out. Shapes with the same label and ``group_id`` are parts of one object, and become the box
around them, as in LabelMe's own labelme2coco.py.

Source: https://github.com/wkentaro/labelme. The file name of ``imagePath`` is used, without its
folder.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_numeric.importers.importer import (
    ImageImporter,
    ImportedItem,
    InvalidRowError,
    Row,
    SkippedLine,
    declared_size,
    image_row,
    invalid_as,
    parse_box,
    parse_number_list,
    parse_polygon,
    shorten,
    text_field,
)
from mm_numeric.io.files import read_json


@dataclass(frozen=True, kw_only=True)
class LabelMe(ImageImporter):
    """Importer for LabelMe: JSON files with rectangles and polygons, one row per image."""

    endings = (".json",)
    version = 2  # 2: shapes of one group are one object

    def entries(self, path: Path) -> Iterator[tuple[str, str, Path]]:
        """Yield the file itself, which is about one image."""
        yield str(path), path.stem, path

    def items(self, where: str, identity: str, path: Path) -> Iterator[ImportedItem]:
        """Yield the row of an image, or instead one error per invalid shape."""
        with invalid_as("json", f"{path}: "):
            raw = read_json(path)
        if not isinstance(raw, Mapping) or not isinstance(raw.get("shapes"), list):
            raise InvalidRowError("json", 'not a file of LabelMe: there is no list "shapes".')
        name = text_field(raw, "imagePath").replace("\\", "/").rpartition("/")[2]
        size = {"width": raw.get("imageWidth"), "height": raw.get("imageHeight")}
        fields = {"id": identity, **self.folder.fields(name, declared_size(size))}
        objects = ((f"shapes.{i}", shape) for i, shape in enumerate(raw["shapes"]))
        for item in image_row(where, fields, objects, _object):
            yield from _grouped(item) if isinstance(item, Row) else [item]


def _grouped(row: Row) -> Iterator[ImportedItem]:
    """Yield a row with one instance for each group of shapes, and a count of the other shapes."""
    instances = row.fields["instances"]
    found: dict[Any, dict[str, Any]] = {}
    for i, instance in enumerate(instances):
        group = instance.pop("group_id", None)
        key = i if group is None else (instance["label"], repr(group))
        if key in found:
            first, second = (own.get("box") or own["polygon"] for own in (found[key], instance))
            xs, ys = (first + second)[::2], (first + second)[1::2]
            box = [min(xs), min(ys), max(xs), max(ys)]
            instance = {"box": box, "label": instance["label"]}
            yield SkippedLine("further shapes of an object (group_id)")
        found[key] = instance
    yield Row(row.where, {**row.fields, "instances": list(found.values())})


def _object(shape: Any) -> dict[str, Any] | SkippedLine:
    if not isinstance(shape, Mapping):
        raise InvalidRowError("shape", f"expected an object, found {shorten(shape)}.")
    kind = shape.get("shape_type") or "polygon"
    if kind not in ("rectangle", "polygon", "circle"):
        return SkippedLine(f"shapes without an area ({shorten(kind)})")
    named = {"label": text_field(shape, "label"), "group_id": shape.get("group_id")}
    raw = shape.get("points")
    if not isinstance(raw, list):
        raise InvalidRowError("points", f"points is a list, not {shorten(raw)}.")
    points = [parse_number_list(point) for point in raw]
    if any(len(point) != 2 for point in points):
        raise InvalidRowError("points", "each point is [x, y].")
    if kind == "polygon":
        return {"polygon": parse_polygon(points), **named}
    if len(points) != 2:
        raise InvalidRowError("points", f"a {kind} has two points, not {len(points)}.")
    (x1, y1), (x2, y2) = points
    if kind == "circle":
        radius = math.hypot(x2 - x1, y2 - y1)
        return {"box": parse_box([x1 - radius, y1 - radius, x1 + radius, y1 + radius]), **named}
    edges = [min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)]
    return {"box": parse_box(edges), **named}
