"""Name the likely cause of shapes that do not fit their images, such as normalised boxes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from mm_numeric.answers import Box, Instance, Instances, Polygon, Shape
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.row_shapes import around

_RELATIVE_TO = (1, 100, 1000, 1024)
"""Values that published data sets and models use for the right and bottom edge of every image."""

_FEWEST = 20  # shapes needed to infer a range of coordinates; one shape is enough for 0 to 1
TOLERANCE_PX = 1.0
"""A rounded annotation may be this far outside its image, as in ``Frame``."""


@dataclass
class CoordinateRange:
    """The range of the coordinates of all shapes of a data source, before they are formatted."""

    shapes: int = 0
    outside: int = 0
    """Number of shapes that extend more than 1 pixel beyond their image."""

    largest: tuple[float, float] = (0.0, 0.0)
    """Largest x and largest y of all shapes."""

    shares: tuple[float, float] = (0.0, 0.0)
    """Largest x / width and largest y / height, where each shape is divided by its image's size."""

    image_px: tuple[int, int] = (0, 0)
    """Largest width and largest height of all images."""

    short_sides: list[float] = field(default_factory=list)
    """The width or the height of each shape, whichever is smaller; points are left out."""

    def add(self, answer: Any, size_px: tuple[int, int]) -> None:
        """Add the shapes of an answer; ``size_px`` is the width and height of the image."""
        for shape in shapes_of(answer):
            box, (width, height) = around(shape), size_px
            self.shapes += 1
            beyond = max(-box.x1, -box.y1, box.x2 - width, box.y2 - height)
            self.outside += beyond > TOLERANCE_PX
            self.largest = max(self.largest[0], box.x2), max(self.largest[1], box.y2)
            self.shares = (
                max(self.shares[0], box.x2 / width),
                max(self.shares[1], box.y2 / height),
            )
            self.image_px = max(self.image_px[0], width), max(self.image_px[1], height)
            if len(shape.points) > 1:
                self.short_sides.append(min(box.x2 - box.x1, box.y2 - box.y1))

    def relative_to(self) -> int | None:
        """Guess the value that coordinates are relative to: 1, 100, 1000, 1024, or None for pixels.

        Coordinates seem to be relative to a value if x and y use the whole range up to it, and
        images are larger than this range or shapes extend beyond their image.
        """
        for top in _RELATIVE_TO if self.shapes else ():
            if max(self.largest) > top or max(self.image_px) <= top == 1:
                continue
            fills = self.shapes >= _FEWEST and min(self.largest) > 0.85 * top
            fits_no_image = self.outside > 0 or min(self.image_px) > 1.3 * top
            if top == 1 or (fills and fits_no_image):
                return top
        return None

    def frame_note(self) -> str:
        """Return a note if coordinates seem to be normalised (such as 0 to 1000), else "".

        The note names a published frame that has this range.
        """
        top = self.relative_to()
        if top is None:
            return ""
        scale = "" if top == 1 else f" / {top}"
        frames = (name for name, own in COORDINATES.items() if own.max_value in (top, top - 1))
        return (
            f"All coordinates are from 0 to {top}, whatever the size of the image: they seem to be "
            f"normalised (as in the frame {next(frames)}), and rows have pixels. Multiply x by "
            f"width{scale} and y by height{scale} of the image."
        )

    def cause(self, step_px: float) -> str:
        """Return the likely cause of a low ceiling or of shapes outside their image, or "".

        ``step_px`` is the step between two coordinates, in pixels of the original image.
        """
        if note := self.frame_note() or self.outside_note():
            return note
        if self.short_sides and median(self.short_sides) < 4 * step_px:
            return (
                f"The median shape is {median(self.short_sides):.2g} pixels wide or high, and one "
                f"step of the coordinates is {step_px:.2g} pixels of the original image. Use finer "
                "coordinates (model.coordinates) or, if these are pixels of the resized image, "
                "larger images (model.image_size)."
            )
        return ""

    def outside_note(self) -> str:
        """Return a note if at least a fifth of the shapes extend beyond their image, else ""."""
        if self.outside >= 0.2 * self.shapes > 0:
            return (
                f"{self.outside:,} of {self.shapes:,} shapes extend beyond their image, up to "
                f"{self.shares[0]:.2f} times its width and {self.shares[1]:.2f} times its height. "
                "The images may have been resized after they were annotated, or [x1, y1, x2, y2] "
                "was read as [x, y, width, height]."
            )
        return ""


def shapes_of(answer: Any) -> Iterator[Shape]:
    """Yield the boxes, polygons and points of an answer, except those that are ignored."""
    items = answer.items if isinstance(answer, Instances) else [answer]
    for item in items:
        shape = item.shape if isinstance(item, Instance) else item
        ignored = isinstance(item, Instance) and item.ignore
        if isinstance(shape, Box | Polygon) and not ignored:
            yield shape
