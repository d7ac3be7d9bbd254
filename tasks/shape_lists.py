"""The base class of tasks whose answers are lists of shapes."""

import math
import random
from dataclasses import dataclass, replace
from typing import Any, ClassVar

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
    ``rotated_box``: shapes have four corners, written clockwise from the topmost corner."""

    order: str = "raster"
    """Order of the shapes in the training text. ``raster``: by smallest y, then smallest x.
    ``area``: largest first. ``random``: random but fixed for the shapes of an image. ``rows``: as
    in the row. ``raster`` and ``area`` use rounded coordinates, as in the text. Shapes with equal
    keys are sorted by smallest y, smallest x, all other coordinates and the label. Scoring always
    uses the order of the row."""

    outside: str = "refuse"
    """Treatment of shapes that extend more than one pixel beyond the image. ``refuse``: raise an
    error. ``clip``: move their points to the image edge in the training text."""

    def __post_init__(self) -> None:
        check_choice("shape", self.shape, ("polygon", "box", "rotated_box"))
        check_choice("order", self.order, ("raster", "area", "random", "rows"))
        check_choice("outside", self.outside, ("refuse", "clip"))

    def read_shapes(self, row: Any, where: str) -> list[Instance]:
        """Read the shapes in ``instances`` of a row, and convert them by the option ``shape``."""
        items = [replace(item, mask=None) for item in read_instances(row, where).items]
        if self.shape == "box":
            boxes = []
            for i, item in enumerate(items):
                box = around(item.shape)
                if box.x1 < box.x2 and box.y1 < box.y2:
                    boxes.append(replace(item, shape=box))
                elif not item.ignore:  # an ignored region without an area has no effect
                    raise ValueError(
                        f"{where}, instances.{i}: the box around the polygon, [{box.x1:g}, "
                        f"{box.y1:g}, {box.x2:g}, {box.y2:g}], has no area; remove the polygon."
                    )
            return boxes
        if self.shape == "rotated_box":
            return [replace(item, shape=corners_of(item.shape, where)) for item in items]
        return items

    def allows(self, answer: Instances, frame: Frame | None = None) -> bool:
        """Return True if each object has the shape of the task, and overlaps the image."""
        width, height = (math.inf, math.inf) if frame is None else (frame.width_px, frame.height_px)
        kinds = {"box": (2,), "rotated_box": (2, 4)}  # numbers of points: a box has two corners
        for item in answer.items:
            box, points = around(item.shape), len(item.shape.points)
            overlaps = min(box.x2, box.y2) > 0 and box.x1 < width and box.y1 < height
            if not overlaps or points not in kinds.get(self.shape, (points,)):
                return False
        return True

    def moved_answer(self, answer: Instances) -> Instances:
        """Reorder the corners of rotated boxes to begin with the topmost corner again."""
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
            # Sort rounded shapes, so that shapes parsed from the text have the same order.
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
