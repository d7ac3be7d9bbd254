"""Convert pixels of the original image to the text of coordinates, and back.

    pixels of the original image --View--> pixels of the resized image
    --Coordinates--> numbers, such as 0.499 --CoordinateFormat--> text

A ``Frame`` does these conversions for one image and one model family. It is computed from the image
size and the family's settings, and is saved with every prediction. Pixel positions are continuous:
(0, 0) is the top left corner of the image and (width, height) is the bottom right corner.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

from mm_numeric.answers import (
    Box,
    Instance,
    Instances,
    Mark,
    Point,
    Polygon,
    Shape,
    Unreadable,
    Written,
)
from mm_numeric.geometry.coordinate_formats import Piece
from mm_numeric.geometry.coordinates import Coordinates, integer_ratio
from mm_numeric.geometry.layouts import find_shapes, has_location_tokens, is_nothing
from mm_numeric.settings import read_dataclass

MAX_ASPECT_RATIO = 200
"""Largest aspect ratio that ``smart`` resizing accepts: longer side divided by shorter side."""

TOKENS_REMOVED = "special tokens were removed; decode with skip_special_tokens=False"
"""Reason of a parse failure: without its special tokens, the answer is ambiguous."""

NO_LOCATION_TOKENS = f"no location tokens: none were generated, or {TOKENS_REMOVED}"
"""Reason of a parse failure: the answer has no location tokens; they may have been removed."""

LOCATION_TOKENS = "location tokens, which the declared frame does not have"
"""Reason of a parse failure: the text has location tokens, but the frame writes digits."""

_READ: dict[str, Any] = {}  # cache, because most rows of predictions.jsonl have the same frame
_SLACK_PX = 1.0  # rounded annotations may be outside the image by this much; they are clamped
_LARGEST_EDGE_PX = 1_000_000  # Pillow rejects wider images, unless they are very flat
_LARGEST_LEVEL = 2.0**53  # above it float64 cannot represent every whole number


@dataclass(frozen=True)
class View:
    """Resizing of one image: ``resized = original * scale + padding``, for x and for y."""

    width_px: int
    """Width of the resized image, including padding, in pixels."""

    height_px: int
    scale_x: float
    scale_y: float
    offset_x_px: float = 0.0
    """Padding on the left, in pixels of the resized image."""

    offset_y_px: float = 0.0

    def __post_init__(self) -> None:
        """Validate the fields, which may have been read from a file."""
        numbers = (self.scale_x, self.scale_y, self.offset_x_px, self.offset_y_px)
        if min(self.width_px, self.height_px) < 1 or min(numbers[:2]) <= 0:
            raise ValueError("sizes in pixels are at least 1, and scales above 0")
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"scales and offsets are finite numbers, not {numbers}")

    def to_resized(self, x: float, y: float) -> Point:
        """Convert a point of the original image to a point of the resized image, in pixels."""
        return x * self.scale_x + self.offset_x_px, y * self.scale_y + self.offset_y_px

    def to_original(self, x: float, y: float) -> Point:
        """Convert a point of the resized image to a point of the original image, in pixels."""
        return (x - self.offset_x_px) / self.scale_x, (y - self.offset_y_px) / self.scale_y

    def fractions(self) -> tuple[tuple[Fraction, Fraction], tuple[Fraction, Fraction]]:
        """Return (scale, padding) for x and for y as exact fractions, such as 1092 / 640.

        They convert original to resized pixels. The float ``scale_x``, in contrast, is rounded.
        """
        x, y = (self.scale_x, self.offset_x_px), (self.scale_y, self.offset_y_px)
        return _fractions(*x), _fractions(*y)


@dataclass(frozen=True, kw_only=True)
class Resize:
    """The method and the settings with which a model family resizes images."""

    kind: str
    """One of four methods.

    ``squash``: resize to a square of ``side`` pixels, without keeping the aspect ratio.
    ``letterbox``: pad to a square with the image in the centre, then resize to ``side`` pixels.
    ``smart``: resize to multiples of ``factor``, with ``min_pixels`` to ``max_pixels`` in total.
    ``none``: do not resize.
    """

    side: int = 0
    """Side of the square in pixels (``squash``, ``letterbox``)."""

    factor: int = 0
    min_pixels: int = 0
    max_pixels: int = 0

    def view(self, width: int, height: int) -> View:
        """Return the new size, scale and padding of an image with this original size."""
        if self.kind == "squash":
            return _squashed(width, height, self.side, self.side)
        if self.kind == "letterbox":
            scale = self.side / max(width, height)
            left, top = ((max(width, height) - edge) // 2 * scale for edge in (width, height))
            return View(self.side, self.side, scale, scale, left, top)
        if self.kind == "smart":
            return _squashed(width, height, *self._smart_size(width, height))
        return _squashed(width, height, width, height)

    def _smart_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the resized width and height, like ``smart_resize`` of transformers (Qwen2-VL)."""
        if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
            raise ValueError(
                f"an image of {width} x {height} pixels has an aspect ratio above "
                f"{MAX_ASPECT_RATIO}"
            )
        factor = self.factor
        seen = [round(edge / factor) * factor for edge in (width, height)]
        if seen[0] * seen[1] > self.max_pixels:
            shrink = math.sqrt(width * height / self.max_pixels)
            seen = [
                max(factor, math.floor(edge / shrink / factor) * factor) for edge in (width, height)
            ]
        elif seen[0] * seen[1] < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (width * height))
            seen = [math.ceil(edge * grow / factor) * factor for edge in (width, height)]
        return seen[0], seen[1]


def _fractions(scale: float, offset: float) -> tuple[Fraction, Fraction]:
    """Return the exact scale and padding of a resizing, which are stored as rounded floats.

    For example, the scale 1.70625 is the fraction 1092 / 640. If no fraction with a denominator up
    to 1,000,000 rounds to the float, the result is the exact value of the float.
    """
    quotient = Fraction(scale).limit_denominator(_LARGEST_EDGE_PX)
    exact = quotient if float(quotient) == scale else Fraction(scale)
    padding = round(offset / scale)
    return exact, padding * exact if padding * scale == offset else Fraction(offset)


def _squashed(width: int, height: int, seen_width: int, seen_height: int) -> View:
    return View(seen_width, seen_height, seen_width / width, seen_height / height)


def _snapped(position: float, edge: float, reach: float) -> float:
    """Move a pixel position to the image edge if it is at most ``reach`` pixels outside."""
    if -reach <= position < 0:
        return 0.0
    return float(edge) if edge < position <= edge + reach else position


@dataclass(frozen=True)
class Frame:
    """Converts pixel positions in one image to the coordinates in a model's text, and back."""

    width_px: int
    """Width of the original image after EXIF rotation, in pixels."""

    height_px: int
    view: View
    coordinates: Coordinates

    def __post_init__(self) -> None:
        if min(self.width_px, self.height_px) < 1:
            raise ValueError(f"an image of {self.width_px} x {self.height_px} pixels has no pixels")

    @property
    def edges(self) -> tuple[int, int]:
        """Return the width and height of the reference image (``Coordinates.space``)."""
        if self.coordinates.space == "original":
            return self.width_px, self.height_px
        return self.view.width_px, self.view.height_px

    @property
    def step_px(self) -> tuple[float, float]:
        """Return the distance between neighbouring coordinates in x and y, in original pixels."""
        steps = tuple(self.coordinates.step(edge) for edge in self.edges)
        if self.coordinates.space == "original":
            return steps[0], steps[1]
        return steps[0] / self.view.scale_x, steps[1] / self.view.scale_y

    def encode(self, point: Point) -> tuple[int, int]:
        """Convert a point in original image pixels to integer coordinates, such as (499, 20).

        A point that is up to 1 pixel outside the image is first moved to the edge.
        """
        x, y = point
        inside_x = -_SLACK_PX <= x <= self.width_px + _SLACK_PX
        if not (inside_x and -_SLACK_PX <= y <= self.height_px + _SLACK_PX):
            raise ValueError(
                f"the point ({x:g}, {y:g}) is outside the image of {self.width_px} x "
                f"{self.height_px} pixels"
            )
        x, y = min(max(x, 0.0), self.width_px), min(max(y, 0.0), self.height_px)
        level_x, level_y = (
            self.coordinates.rounded(
                per_px * numerator + offset * denominator, common * denominator, edge
            )
            for (per_px, offset, common), edge, (numerator, denominator) in zip(
                self._steps, self.edges, map(integer_ratio, (x, y)), strict=True
            )
        )
        return level_x, level_y

    @cached_property
    def _steps(self) -> list[tuple[int, int, int]]:
        """Return (a, b, c) for x and for y: the coordinate of pixel p is ``(a * p + b) / c``.

        p is in pixels of the original image. a, b and c are integers, so that the coordinate has no
        rounding errors of floats.
        """
        found = []
        for edge, (scale, offset) in zip(self.edges, self.view.fractions(), strict=True):
            per_px = self.coordinates.steps_per_px(edge)
            if self.coordinates.space == "original":
                scale, offset = Fraction(1), Fraction(0)
            slope, start = scale * per_px, offset * per_px
            common = math.lcm(slope.denominator, start.denominator)
            found.append((int(slope * common), int(start * common), common))
        return found

    def decode(self, level_x: float, level_y: float) -> Point:
        """Convert integer coordinates, such as (499, 20), to pixels of the original image.

        The result may be outside the image. If it is outside by at most the rounding error (half a
        coordinate step), it is moved to the edge.
        """
        x, y = map(self.coordinates.position, (level_x, level_y), self.edges)
        if self.coordinates.space == "resized":
            x, y = self.view.to_original(x, y)
        step_x, step_y = self.step_px
        return _snapped(x, self.width_px, step_x / 2), _snapped(y, self.height_px, step_y / 2)

    def quantised(self, shape: Shape) -> Shape:
        """Round the points of a box or polygon, as if it were written as text and parsed again."""
        return self._shape(self._levels(shape))

    def _levels(self, shape: Shape) -> list[tuple[int, int]]:
        return [self.encode(point) for point in shape.points]

    def write(self, instances: Iterable[Instance]) -> Written:
        """Format labelled boxes and polygons as text, and return the position of each coordinate.

        Each ``Mark`` has the start and end of a coordinate as character indices in the text, its
        axis (x or y), and the index of the box or polygon.
        """
        shapes = []
        for instance in instances:
            numerals = self.coordinates.numerals(self._levels(instance.shape))
            shapes.append((numerals, instance.label, isinstance(instance.shape, Box)))
        return write_pieces(self.coordinates.text.write(shapes), self.coordinates.order)

    def read(self, text: str, *, points: bool = False) -> Instances | Unreadable:
        """Parse the boxes and polygons in a text. A single point becomes a polygon of one point.

        The text may have any coordinate format that ``geometry.layouts`` lists, but its numbers
        must have the range and the order of the frame. With ``points``, pairs of numbers in a list
        are separate points, and actions on a screen are parsed.

        Returns the shapes in pixels of the original image, in the order of the text. If none can be
        parsed, returns ``Unreadable`` with the reason. Shapes are not corrected: boxes may have
        swapped corners, and points may be outside the image.
        """
        coordinates = self.coordinates
        if not text.strip() and not coordinates.bins:
            return Unreadable("empty answer")
        shapes, cut, ambiguous = find_shapes(text, coordinates, points=points)
        if not any(shape.numerals for shape in shapes) and is_nothing(text, coordinates.text):
            return Instances(())
        if ambiguous:
            return Unreadable(NO_LOCATION_TOKENS if coordinates.bins else TOKENS_REMOVED)
        if not shapes and not coordinates.bins and has_location_tokens(text):
            return Unreadable(LOCATION_TOKENS)
        problem = "cut off within a shape" if cut else "no coordinates"
        instances, spans = [], []
        for numerals, label, span in shapes:
            if len(numerals) % 2:
                problem = "an odd number of coordinates"
                continue
            levels = coordinates.read_numerals(numerals)
            if any(abs(level) > _LARGEST_LEVEL for point in levels for level in point):
                problem = "a coordinate beyond any image"
            elif levels:
                instances.append(Instance(self._shape(levels), label))
                spans.append(span)
        if instances:
            malformed = len(shapes) - len(instances)
            return Instances(tuple(instances), cut, malformed, spans=tuple(spans))
        return Unreadable(problem)

    def rewritten(
        self, text: str, spans: Container[tuple[int, int]], *, points: bool = False
    ) -> str:
        """Parse the shapes of a text, and write those whose span from ``read`` is in ``spans``.

        Numerals and labels stay unchanged. Raises ValueError if the format cannot write a label.
        """
        shapes = [
            (shape.numerals, shape.label, len(shape.numerals) == 4)
            for shape in find_shapes(text, self.coordinates, points=points).shapes
            if shape.span in spans
        ]
        return "".join(piece.text for piece in self.coordinates.text.write(shapes))

    def _shape(self, levels: Sequence[tuple[float, float]]) -> Shape:
        points = tuple(self.decode(*point) for point in levels)
        return Box(*points[0], *points[1]) if len(points) == 2 else Polygon(points)

    def to_dict(self) -> dict[str, Any]:
        """Return the image size, resizing and coordinate settings as a dictionary for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Create a ``Frame`` from the result of ``to_dict``; equal results share one frame."""
        if len(_READ) == 1000:
            _READ.clear()
        if (found := _READ.get(key := repr(raw))) is None:
            found = _READ[key] = read_dataclass(cls, raw, "frame")
        return found


def write_pieces(pieces: Iterable[Piece], roles: Sequence[str]) -> Written:
    """Join the pieces of a list of shapes; return the text with a ``Mark`` for each number.

    The numbers of a shape have the ``roles``, such as ``xy``, in turn. Without roles, there are no
    marks.
    """
    text, marks, group = "", [], -1
    format_digits: set[int] = set()
    for piece in pieces:
        if piece.number is not None:
            group += piece.number == 0
            if roles:
                role = roles[piece.number % len(roles)]
                end = len(text) + len(piece.text)
                marks.append(Mark(len(text), end, role, -1 if role == "free" else group))
        elif not piece.is_label:
            digits = (i for i, character in enumerate(piece.text) if character.isdigit())
            format_digits.update(len(text) + i for i in digits)
        text += piece.text
    return Written(text, tuple(marks), frozenset(format_digits))
