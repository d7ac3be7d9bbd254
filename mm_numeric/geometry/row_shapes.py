"""Read image paths, and boxes and polygons in pixels, from the samples of a data set."""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mm_numeric.answers import Box, Instance, Instances, Point, Polygon, Shape
from mm_numeric.geometry.masks import box_and_point, mask_row, read_mask

LONGEST_PX = 1_000_000_000
"""Largest width or height of an image. Sizes far above it would overflow a float."""

_BOX_FIELDS = {"box": False, "box_xyxy": False, "box_xywh": True}  # True: x, y, width, height


def read_id(row: Mapping[str, Any], names: Sequence[str], image: Path) -> str:
    """Return a row's id: its first non-empty field among ``names``, or else its image path."""
    found = (row[name] for name in names if row.get(name) not in (None, ""))
    return str(next(found, image))


def pixel_size(width: Any, height: Any) -> tuple[int, int] | None:
    """Return (width, height) as integers; None unless both are valid whole numbers of pixels.

    640.0 is a whole number, too: pandas writes it in a column with empty cells.
    """
    for edge in (width, height):
        is_number = type(edge) in (int, float)
        if not (is_number and 1 <= edge <= LONGEST_PX and edge == int(edge)):
            return None
    return int(width), int(height)


def read_image(row: Mapping[str, Any], where: str) -> tuple[Path, tuple[int, int] | None]:
    """Return a row's image path, and its (width, height) or None if it declares no size."""
    image = next((row[name] for name in ("image", "file", "img_path") if row.get(name)), None)
    if not isinstance(image, str):
        raise ValueError(f'{where}: no image; each row needs "image" (a path).')
    width, height = (_whole_number(row.get(name)) for name in ("width", "height"))
    if width is None and height is None:
        return Path(image), None
    size = pixel_size(width, height)
    if size is None:
        raise ValueError(
            f"{where}: width {width!r:.40} and height {height!r:.40} are not the pixels of an "
            "image; give both as whole numbers, or neither."
        )
    return Path(image), size


def _whole_number(value: Any) -> Any:
    """Convert a CSV field: a whole number becomes an int, and an empty text becomes None."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,10}", value):
        return int(value)
    return None if value == "" else value


def read_phrases(row: Mapping[str, Any], where: str, *, optional: bool = False) -> list[str]:
    """Return the phrases of a row, from ``phrase``, ``sentence`` or ``sentences``.

    If ``optional``, the result may be empty. Otherwise, raise ValueError for a row without phrase.
    """
    found = row.get("phrase") or row.get("sentence") or row.get("sentences")
    if found is None and optional:
        return []
    phrases = [found] if isinstance(found, str) else found
    if not (isinstance(phrases, list) and phrases and all(map(is_text, phrases))):
        raise ValueError(f'{where}: no phrase; each row needs "phrase" (or "sentences").')
    return phrases


def is_text(value: Any) -> bool:
    """Return True if a value is a text that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def read_box(value: Any, where: str, *, xywh: bool = False) -> Box:
    """Read a box from ``[x1, y1, x2, y2]``, or from ``[x, y, width, height]`` if ``xywh``."""
    numbers = finite_numbers(value, where)
    if len(numbers) != 4:
        form = "x, y, width, height" if xywh else "x1, y1, x2, y2"
        raise ValueError(f"{where}: a box is [{form}], not {len(numbers)} numbers.")
    x1, y1, x2, y2 = numbers
    found = f"the box [{x1:g}, {y1:g}, {x2:g}, {y2:g}]"  # as in the file
    if xywh:
        x2, y2 = x1 + x2, y1 + y2
        finite_numbers([x2, y2], f"{where}, right and bottom edge")
    if x2 < x1 or y2 < y1:
        raise ValueError(
            f"{where}: {found} is reversed; "
            + ("width and height are at least 0." if xywh else "write the smaller x and y first.")
        )
    if x1 == x2 or y1 == y2:
        raise ValueError(f"{where}: {found} has no area.")
    return Box(x1, y1, x2, y2)


def read_row_box(row: Mapping[str, Any], where: str) -> Box:
    """Read ``box``, ``box_xyxy`` or ``box_xywh`` of a row; reject ``bbox``, which is ambiguous."""
    given = [name for name in _BOX_FIELDS if row.get(name) is not None]
    if len(given) > 1:
        raise ValueError(f"{where}: {' and '.join(given)} both define the box; keep one.")
    if given:
        return read_box(row[given[0]], f"{where}, {given[0]}", xywh=_BOX_FIELDS[given[0]])
    if row.get("bbox") is not None:
        raise ValueError(
            f'{where}: "bbox" may be x1, y1, x2, y2 or x, y, width, height; name it "box" or '
            '"box_xywh".'
        )
    raise ValueError(f'{where}: no box; each row needs "box" as [x1, y1, x2, y2].')


def read_polygon(value: Any, where: str) -> Polygon:
    """Read a polygon from ``[x1, y1, x2, y2, x3, y3, ...]`` or ``[[x1, y1], [x2, y2], ...]``."""
    if isinstance(value, list) and all(isinstance(p, list) and len(p) == 2 for p in value):
        value = [number for point in value for number in point]
    numbers = finite_numbers(value, where)
    if len(numbers) < 6 or len(numbers) % 2:
        raise ValueError(
            f"{where}: a polygon is [x1, y1, x2, y2, x3, y3, ...] with at least three points, not "
            f"{len(numbers)} numbers."
        )
    return Polygon(tuple(zip(numbers[::2], numbers[1::2], strict=True)))


def read_point(value: Any, where: str) -> Point:
    """Read a point from ``[x, y]``, in pixels."""
    numbers = finite_numbers(value, where)
    if len(numbers) != 2:
        raise ValueError(f"{where}: a point is [x, y], not {len(numbers)} numbers.")
    return numbers[0], numbers[1]


def read_rotated_box(value: Any, where: str) -> Polygon:
    """Read a rotated box from ``[centre x, centre y, width, height, degrees]``.

    The angle is clockwise in the image, from the x axis to the side ``width``, as in mmcv and
    mmrotate, but in degrees. (mmrotate's conventions oc, le90 and le135 describe the same boxes,
    turned by 90 degrees with width and height exchanged.) detectron2's angle is the negative.
    """
    numbers = finite_numbers(value, where)
    if len(numbers) != 5 or min(numbers[2:4]) <= 0:
        raise ValueError(
            f"{where}: a rotated box is [centre x, centre y, width, height, degrees] with a width "
            f"and height above 0, not {value!r:.60}."
        )
    x, y, width, height, degrees = numbers
    box = Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    return _turned(box, (x, y), degrees)


def _turned(box: Box, centre: Point, degrees: float) -> Polygon:
    """Turn a box clockwise about a centre, in pixels with y downwards; return its four corners."""
    (x1, y1), (x2, y2) = box.points
    cx, cy = centre
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    corners = [(x - cx, y - cy) for x, y in ((x1, y1), (x2, y1), (x2, y2), (x1, y2))]
    return Polygon(tuple((cx + x * cos - y * sin, cy + x * sin + y * cos) for x, y in corners))


def corners_of(shape: Shape, where: str) -> Polygon:
    """Return the four corners of a box or quadrilateral, in the order of ``from_topmost``."""
    points = corners(shape)
    if len(points) != 4:
        raise ValueError(
            f"{where}: a rotated box has 4 corners, and this polygon has {len(points)}; set "
            "`shape: polygon` for polygons of any kind."
        )
    return from_topmost(points)


def from_topmost(points: tuple[Point, ...]) -> Polygon:
    """Return the polygon of these corners, clockwise from the topmost (then leftmost) corner."""
    ring = zip(points, points[1:] + points[:1], strict=True)
    if sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in ring) < 0:
        points = points[::-1]
    first = min(range(len(points)), key=lambda i: points[i][::-1])
    return Polygon(points[first:] + points[:first])


def read_instances(row: Mapping[str, Any], where: str, *, points: bool = False) -> Instances:
    """Read the objects of a dataset row from the list in its field ``instances``.

    An object may have a ``mask`` (``mm_numeric.geometry.masks``). If it has no other shape, its
    shape is the bounding box of the mask. With ``points``, an object may have only a ``point``
    [x, y], which becomes its shape. An object with a mask but no point gets a point in the mask.
    """
    raw = row.get("instances")
    if not isinstance(raw, list):
        raise ValueError(f'{where}: no "instances" (a list); use an empty list for no objects.')
    return Instances(
        tuple(_instance(r, f"{where}, instances.{i}", points) for i, r in enumerate(raw))
    )


def _instance(row: Any, where: str, points: bool) -> Instance:
    if not isinstance(row, Mapping):
        raise ValueError(f'{where}: expected an object {{"polygon": [...]}}, found {row!r:.40}.')
    point = None if row.get("point") is None else read_point(row["point"], f"{where}, point")
    shape: Shape
    mask = None
    if row.get("mask") is not None:
        mask = read_mask(row["mask"], f"{where}, mask")
        around_mask, inner = box_and_point(mask)
        point = point or (inner if points else None)
    if row.get("polygon") is not None:
        shape = read_polygon(row["polygon"], f"{where}, polygon")
    elif any(row.get(name) is not None for name in (*_BOX_FIELDS, "bbox")):
        shape = read_row_box(row, where)
    elif mask is not None:
        shape = around_mask
    elif points and point is not None:
        shape, point = Polygon((point,)), None
    elif row.get("rotated_box") is not None:
        shape = read_rotated_box(row["rotated_box"], f"{where}, rotated_box")
    else:
        raise ValueError(
            f'{where}: no shape; each instance needs "polygon", "box", "rotated_box" or "mask".'
        )
    ignore = False if row.get("ignore") is None else row["ignore"]
    if not isinstance(ignore, bool):
        raise ValueError(f"{where}: ignore is true or false, not {ignore!r:.20}.")
    label = "" if row.get("label") is None else row["label"]
    if not isinstance(label, str):
        raise ValueError(f"{where}: a label is a text, not {label!r:.20}.")
    return Instance(shape, label, ignore, point, mask)


def instance_row(instance: Instance) -> dict[str, Any]:
    """Convert an object to a dictionary for JSON: its box or polygon, its label, ``ignore``."""
    row: dict[str, Any] = shape_row(instance.shape)
    if instance.mask is not None:
        row["mask"] = mask_row(instance.mask)
    if instance.label:
        row["label"] = instance.label
    if instance.ignore:
        row["ignore"] = True
    if instance.point is not None:
        row["point"] = list(instance.point)
    return row


def shape_row(shape: Shape) -> dict[str, list[float]]:
    """Return a shape as a dictionary for JSON: ``{"box": [...]}`` or ``{"polygon": [...]}``."""
    name = "box" if isinstance(shape, Box) else "polygon"
    return {name: [coordinate for point in shape.points for coordinate in point]}


def around(shape: Shape) -> Box:
    """Return the axis-aligned bounding box of a shape, with x1 <= x2 and y1 <= y2."""
    xs, ys = zip(*shape.points, strict=True)
    return Box(min(xs), min(ys), max(xs), max(ys))


def centre(shape: Shape) -> Point:
    """Return the centre of the bounding box of a shape, in pixels."""
    box = around(shape)
    return (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2


def clipped(shape: Shape, width: float, height: float) -> Shape:
    """Move every point of a shape into the image; raise ValueError if no area is left."""
    points: tuple[Point, ...] = tuple(
        (min(max(x, 0.0), width), min(max(y, 0.0), height)) for x, y in shape.points
    )
    axes = zip(zip(*shape.points, strict=True), zip(*points, strict=True), strict=True)
    if any(len(set(after)) == 1 < len(set(before)) for before, after in axes):
        x, y = shape.points[0]
        raise ValueError(
            f"the shape that begins at ({x:g}, {y:g}) is outside the image of {width} x {height} "
            "pixels, so that clipping leaves no area"
        )
    return Box(*points[0], *points[1]) if isinstance(shape, Box) else Polygon(points)


def clipped_answer(answer: Any, width: float, height: float) -> Any:
    """Clip the shapes of an answer to the image; answers without shapes are unchanged."""
    if isinstance(answer, Instances):
        items = (replace(item, shape=clipped(item.shape, width, height)) for item in answer.items)
        return replace(answer, items=tuple(items))
    return clipped(answer, width, height) if isinstance(answer, Box | Polygon) else answer


def finite_numbers(value: Any, where: str) -> list[float]:
    """Return a list of numbers as floats; raise ValueError for nan and infinite numbers.

    All boxes and polygons are checked by this function. Comparisons with nan are always false, so a
    test such as ``iou < 0.5`` would let a box of nan match everything.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{where}: expected a list of numbers, found {value!r:.40}.")
    for number in value:
        if type(number) not in (int, float) or not abs(number) <= sys.float_info.max:  # nan is not
            kind = "finite number" if type(number) in (int, float) else "number"
            raise ValueError(f"{where}: {number!r:.40} is not a {kind}.")
    return [float(number) for number in value]


def finite_xywh(value: Any, where: str) -> list[float]:
    """Return a box [x, y, width, height] as floats; raise ValueError for a corner at infinity."""
    numbers = finite_numbers(value, where)
    if len(numbers) != 4:
        raise ValueError(f"{where} is [x, y, width, height], not {value!r:.60}.")
    x, y, width, height = numbers
    finite_numbers([x + width, y + height], f"{where}, right and bottom edge")
    return numbers


def corners(shape: Shape) -> tuple[Point, ...]:
    """Return the corners of a polygon in order, or the four corners of a box."""
    if isinstance(shape, Box):
        x1, y1, x2, y2 = shape.x1, shape.y1, shape.x2, shape.y2
        return (x1, y1), (x2, y1), (x2, y2), (x1, y2)
    return shape.points
