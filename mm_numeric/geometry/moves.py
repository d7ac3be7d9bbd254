"""Move the shapes of an answer by the affine map that moves the pixels of the image.

Coordinates are in pixels; the first pixel of an image covers 0 to 1 of both axes.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from mm_numeric.answers import Box, Instance, Instances, Mask, Point, Polygon, Shape
from mm_numeric.geometry.masks import box_and_point, mask_of
from mm_numeric.geometry.row_shapes import around, clipped

_TOLERANCE_PX = 1.0  # frames accept points that are outside of the image by this much
_TINY = 1e-9


class Affine(NamedTuple):
    """The map ``x' = a x + b y + c``, ``y' = d x + e y + f``, from pixels to pixels."""

    a: float
    b: float
    c: float
    d: float
    e: float
    f: float

    @classmethod
    def scaling(cls, x: float, y: float, left: float = 0.0, top: float = 0.0) -> "Affine":
        """Return the map that multiplies by ``x`` and ``y``, then adds ``left`` and ``top``."""
        return cls(x, 0.0, left, 0.0, y, top)

    @classmethod
    def rotation(cls, degrees: float, centre: Point) -> "Affine":
        """Return the clockwise rotation about a centre (y points downwards)."""
        cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        x, y = centre
        return cls(cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)

    @property
    def determinant(self) -> float:
        """Return the factor by which areas grow; it is negative if the map mirrors."""
        return self.a * self.e - self.b * self.d

    def point(self, point: Point) -> Point:
        """Return the moved point."""
        x, y = point
        return self.a * x + self.b * y + self.c, self.d * x + self.e * y + self.f

    def inverse(self) -> "Affine":
        """Return the inverse map, which ``Image.transform`` of Pillow expects."""
        a, b, c, d, e, f = self
        size = self.determinant
        rows = e / size, -b / size, -d / size, a / size
        return Affine(
            *rows[:2], -(rows[0] * c + rows[1] * f), *rows[2:], -(rows[2] * c + rows[3] * f)
        )


@dataclass(frozen=True)
class KeptShare:
    """Limits that an object must satisfy to stay in the answer after its image was moved."""

    share: float
    """Smallest share of a box's area that must be inside the image, above 0 and at most 1."""

    smallest_px: float
    """Smallest width and height in pixels of a moved object, unless it was smaller before."""

    def shape(self, shape: Shape, move: Affine, size: tuple[int, int]) -> Shape | None:
        """Return a moved shape; None if it does not satisfy the limits.

        Boxes are clipped to the image. Polygons and points must lie completely inside the image.
        """
        moved = moved_shape(shape, move)
        if len(shape.points) == 1:
            return moved if _is_inside(moved, size) else None
        full, before = around(moved), around(shape)
        if isinstance(moved, Box):
            try:
                moved = clipped(moved, *size)
            except ValueError:
                return None
            if _area(around(moved)) < self.share * _area(full) - _TINY:
                return None
        elif not _is_inside(moved, size):
            return None
        least = min(self.smallest_px, _side(before))
        return moved if _side(around(moved)) >= least - _TINY else None

    def answer(self, answer: Any, move: Affine, size: tuple[int, int]) -> Any:
        """Move the shapes of an answer to an image of ``size`` (width and height).

        Return None if an object does not satisfy the limits; ignored objects may be anywhere.
        Answers without shapes, such as numbers, are returned unchanged.
        """
        if isinstance(answer, Shape):
            return self.shape(answer, move, size)
        if not isinstance(answer, Instances):
            return answer
        found = [self._instance(item, move, size) for item in answer.items]
        kept = tuple(item for item in found if item is not None)
        return None if len(kept) < len(found) else replace(answer, items=kept, spans=())

    def _instance(self, item: Instance, move: Affine, size: tuple[int, int]) -> Instance | None:
        point = None if item.point is None else move.point(item.point)
        if item.ignore:
            shape = moved_shape(item.shape, move)
            return replace(item, shape=shape, point=point, mask=None)
        if point is not None and not _is_inside(Polygon((point,)), size):
            return None
        kept = self.shape(item.shape, move, size)
        if kept is None:
            return None
        if item.mask is None or isinstance(kept, Polygon):  # answers use the polygon, not the mask
            return replace(item, shape=kept, point=point, mask=None)
        mask = moved_mask(item.mask, move, size)
        if not any(mask.counts[1::2]):
            return None
        kept, inner = box_and_point(mask)
        return replace(item, shape=kept, point=inner, mask=mask)


def moved_shape(shape: Shape, move: Affine) -> Shape:
    """Return a moved box or polygon.

    If the map rotates, a box becomes the box around its moved inner ellipse, as in albumentations'
    ``ellipse`` and https://arxiv.org/abs/2109.13488. (The outline of the object in the box is
    unknown, and a box around the moved corners is too large for most objects.) A polygon keeps its
    direction, clockwise or not, and its first corner.
    """
    if isinstance(shape, Polygon):
        first, *others = map(move.point, shape.points)
        return Polygon((first, *(others[::-1] if move.determinant < 0 else others)))
    x, y = move.point(((shape.x1 + shape.x2) / 2, (shape.y1 + shape.y2) / 2))
    wide, high = (shape.x2 - shape.x1) / 2, (shape.y2 - shape.y1) / 2
    right, down = math.hypot(move.a * wide, move.b * high), math.hypot(move.d * wide, move.e * high)
    return Box(x - right, y - down, x + right, y + down)


def moved_mask(mask: Mask, move: Affine, size: tuple[int, int]) -> Mask:
    """Return a mask moved to an image of ``size`` (width and height); it may have no pixel."""
    inside = np.repeat(np.arange(len(mask.counts)) % 2, mask.counts).astype(np.uint8)
    pixels = Image.fromarray(np.ascontiguousarray(inside.reshape(mask.size[::-1]).T))
    moved = pixels.transform(size, Image.Transform.AFFINE, tuple(move.inverse()), fillcolor=0)
    return mask_of(np.asarray(moved))


def _is_inside(shape: Shape, size: tuple[int, int]) -> bool:
    least, (width, height) = -_TOLERANCE_PX, size
    return all(
        least <= x <= width + _TOLERANCE_PX and least <= y <= height + _TOLERANCE_PX
        for x, y in shape.points
    )


def _area(box: Box) -> float:
    return (box.x2 - box.x1) * (box.y2 - box.y1)


def _side(box: Box) -> float:
    return min(box.x2 - box.x1, box.y2 - box.y1)
