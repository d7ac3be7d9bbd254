"""Base classes of tasks whose answers are lists of shapes, or whose training boxes have noise."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from mm_numeric.answers import Box, Instance, Instances, Point, Shape, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.grammar import list_regex
from mm_numeric.geometry.row_shapes import around, clipped, corners_of, instance_row, read_instances
from mm_numeric.tasks.base import BaseTask, check_choice, frame_of_image


@dataclass(frozen=True, kw_only=True)
class ShapeListTask(BaseTask):
    """Base class of tasks whose answer is a list of boxes or polygons, such as detection."""

    report_sections: ClassVar[tuple[str, ...]] = ("shapes",)

    sampled_answers: ClassVar[int] = 32

    labels: ClassVar[bool] = False
    """True if the shapes in an answer may have labels."""

    shape: str = "polygon"
    """``polygon``: use shapes as the rows have them. ``box``: replace them by bounding boxes.
    ``rotated_box``: shapes have four corners, written clockwise from the topmost one."""

    order: str = "raster"
    """Order of the shapes in the training text. ``raster``: by smallest y, then smallest x.
    ``area``: largest first. ``random``: random but fixed for the shapes of an image. ``rows``: as
    in the row. ``raster`` and ``area`` compare coordinates as they are written, after rounding;
    shapes that are equal in these are sorted by smallest y, smallest x, all other coordinates and
    the label. Scoring always uses the order of the row."""

    outside: str = "refuse"
    """Treatment of shapes that extend more than one pixel beyond the image. ``refuse``: raise an
    error. ``clip``: move their points to the image edge in the training text."""

    def __post_init__(self) -> None:
        check_choice("shape", self.shape, ("polygon", "box", "rotated_box"))
        check_choice("order", self.order, ("raster", "area", "random", "rows"))
        check_choice("outside", self.outside, ("refuse", "clip"))

    def read_shapes(self, row: Any, where: str) -> list[Instance]:
        """Read the field ``instances`` of a row, as the option ``shape`` names them."""
        items = [replace(item, mask=None) for item in read_instances(row, where).items]
        if self.shape == "box":
            boxes = []
            for i, item in enumerate(items):
                box = around(item.shape)
                if box.x1 < box.x2 and box.y1 < box.y2:
                    boxes.append(replace(item, shape=box))
                elif not item.ignore:  # an ignored region without an area excludes nothing
                    raise ValueError(
                        f"{where}, instances.{i}: the box around the polygon, [{box.x1:g}, "
                        f"{box.y1:g}, {box.x2:g}, {box.y2:g}], has no area; remove the polygon."
                    )
            return boxes
        if self.shape == "rotated_box":
            return [replace(item, shape=corners_of(item.shape, where)) for item in items]
        return items

    def moved_answer(self, answer: Instances) -> Instances:
        """Let the corners of rotated boxes begin at the topmost one again."""
        if self.shape != "rotated_box":
            return answer
        items = (replace(i, shape=corners_of(i.shape, "augment")) for i in answer.items)
        return replace(answer, items=tuple(items))

    def format(self, answer: Instances, frame: Frame | None = None) -> Written:
        """Sort shapes by the option ``order`` and format them as text, skipping ignored shapes."""
        frame = self.text_frame(frame_of_image(frame))
        items = [item for item in answer.items if not item.ignore]
        if self.outside == "clip":
            size = frame.width_px, frame.height_px
            items = [replace(item, shape=clipped(item.shape, *size)) for item in items]
        if self.order != "rows":
            # By rounded shapes, so that the shapes parsed from the text are in its order.
            keys = {item: _raster(frame.quantised(item.shape), item.label) for item in items}
            items.sort(key=keys.__getitem__)
            if self.order == "area":
                items.sort(key=lambda item: _area(frame.quantised(item.shape)))
            elif self.order == "random":
                random.Random(repr([keys[item] for item in items])).shuffle(items)
        return frame.write(items)

    def parse(self, text: str, frame: Frame | None = None) -> Instances | Unreadable:
        """Parse all shapes in a generated text."""
        return self.text_frame(frame_of_image(frame)).read(text)

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of a list of shapes: polygons and boxes, or boxes only."""
        frame = self.text_frame(frame_of_image(frame))
        return list_regex(frame, polygons=self.shape != "box", labels=self.labels)

    def record(self, answer: Instances) -> list[dict[str, Any]]:
        """Convert shapes to JSON, in pixels of the original image."""
        return [instance_row(item) for item in answer.items]

    def recorded(self, value: Any) -> Instances:
        """Convert a JSON value in predictions.jsonl back to shapes."""
        return read_instances({"instances": value}, "the target")


@dataclass(frozen=True, kw_only=True)
class NoisyBoxTask(BaseTask):
    """Base class of tasks that can add noise to the boxes of training labels."""

    label_noise_pixels: float = 0.0
    """Standard deviation of Gaussian noise, in pixels of the original image, added to each edge of
    the boxes of training labels to simulate annotation errors. Test labels have no noise."""

    label_noise_seed: int = 0
    """Seed of the label noise. The noise of a row depends only on this seed and the row's id."""

    def __post_init__(self) -> None:
        if not 0 <= self.label_noise_pixels < math.inf:
            raise ValueError(f"label_noise_pixels is 0 or more, not {self.label_noise_pixels}")

    def with_noise_of(self, seed: int) -> Self | None:
        """Return the task with the label noise of another seed; None if labels have no noise."""
        if not self.label_noise_pixels:
            return None
        return replace(self, label_noise_seed=self.label_noise_seed + seed)

    def describe(self) -> str:
        """Describe the label noise in a sentence, for a report."""
        if not self.label_noise_pixels:
            return super().describe()
        noise = f"{self.label_noise_pixels:g}"
        return f"Trained on boxes with Gaussian noise of {noise} pixels, tested on clean ones."

    def with_noise(
        self, shapes: Sequence[Shape], size_px: tuple[int, int] | None, identity: str, where: str
    ) -> list[Shape]:
        """Return the training boxes of a row with label noise, or unchanged if there is none.

        The noise depends on ``identity``, the id of the row. Boxes do not leave an image of
        ``size_px``.
        """
        if not self.label_noise_pixels:
            return list(shapes)
        if size_px is None:
            raise ValueError(
                f"{where}: label_noise_pixels needs the width and height of the image, so that "
                "boxes stay inside; add both to the row."
            )
        if not all(isinstance(shape, Box) for shape in shapes):
            raise ValueError(
                f"{where}: label_noise_pixels moves boxes, and this row has a polygon."
            )
        noise = random.Random(f"{self.label_noise_seed}:{identity}")
        return [_moved(shape, size_px, noise, self.label_noise_pixels) for shape in shapes]


def _moved(box: Any, size_px: tuple[int, int], noise: random.Random, deviation_px: float) -> Box:
    """Move each edge of a box by Gaussian noise, inside the image.

    An axis on which nothing would be left of the box keeps its edges.
    """

    def two_edges(first: float, second: float, limit: int) -> list[float]:
        shifted = (edge + noise.gauss(0, deviation_px) for edge in (first, second))
        # A box that is outside before stays so, for ``outside`` to treat.
        least, most = min(0.0, first), max(float(limit), second)
        low, high = sorted(min(max(edge, least), most) for edge in shifted)
        return [low, high] if low < high else [first, second]

    x1, x2 = two_edges(box.x1, box.x2, size_px[0])
    y1, y2 = two_edges(box.y1, box.y2, size_px[1])
    return Box(x1, y1, x2, y2)


def _raster(shape: Shape, label: str) -> tuple[float, float, tuple[Point, ...], str]:
    xs, ys = zip(*shape.points, strict=True)
    return min(ys), min(xs), shape.points, label


def _area(shape: Shape) -> float:
    points = shape.points
    if isinstance(shape, Box):
        (x1, y1), (x2, y2) = points
        return -(x2 - x1) * (y2 - y1)
    pairs = zip(points, points[1:] + points[:1], strict=True)
    return -abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in pairs)) / 2
