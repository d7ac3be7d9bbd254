"""Detect every word in an image: quadrilaterals, polygons or boxes.

Rows     {"id": text, "image": path, "instances": [{"polygon": [x1, y1, x2, y2, ...],
         "ignore": true or false}, ...]}; or "box": [x1, y1, x2, y2] instead of a polygon;
         in pixels of the original, upright image; "width" and "height" are optional
Answer   the shapes that are not ignored, in ``order``, in the coordinate format of the family
Score    mm_numeric.evaluation.metrics.detection; its ICDAR 2015 matching depends on the order of
         the ground truth, which stays that of the rows
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.answers import Box, Example, Instance, Instances, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.row_shapes import (
    around,
    clipped,
    instance_row,
    read_id,
    read_image,
    read_instances,
)
from mm_numeric.tasks.base import BaseTask, Rows, check_choice
from mm_numeric.tasks.rendering.word_pages import PageStyle, render_pages


@dataclass(frozen=True, kw_only=True)
class TextDetection(BaseTask):
    """Detect the words in an image."""

    report_sections: ClassVar[tuple[str, ...]] = ("shapes",)

    prompt: str = "Locate every word."
    """The question about every image."""

    shape: str = "polygon"
    """``polygon``: the shapes of the rows. ``box``: the upright bounding box of each shape."""

    order: str = "raster"
    """Order of the shapes in the training text. ``raster``: by topmost, then leftmost point.
    ``area``: largest first. ``random``: shuffled, but always the same for an image. ``rows``: the
    order of the rows, which the ground truth for scoring always has."""

    outside: str = "refuse"
    """Shapes that extend more than one pixel beyond the image: ``refuse`` raises an error, ``clip``
    moves their points to the edge in the training text."""

    page: PageStyle = field(default_factory=PageStyle)
    """Content of rendered pages."""

    def __post_init__(self) -> None:
        check_choice("shape", self.shape, ("polygon", "box"))
        check_choice("order", self.order, ("raster", "area", "random", "rows"))
        check_choice("outside", self.outside, ("refuse", "clip"))

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row; ``training`` makes no difference."""
        for where, row in rows:
            image, size_px = read_image(row, where)
            identity = read_id(row, ("id",), image)
            # Without labels, because frame.write would add the transcriptions to the answer.
            items = [replace(item, label="") for item in read_instances(row, where).items]
            if self.shape == "box":
                items = [replace(item, shape=around(item.shape)) for item in items]
            yield Example(
                id=identity,
                image=image,
                prompt=self.prompt,
                answer=Instances(tuple(items)),
                where=where,
                size_px=size_px,
            )

    def format(self, answer: Instances, frame: Frame | None = None) -> Written:
        """Format the shapes that are not ignored."""
        if frame is None:
            raise ValueError("shapes need the frame of their image")
        items = [item for item in answer.items if not item.ignore]
        if self.order == "random":
            random.Random(repr(items)).shuffle(items)
        elif self.order != "rows":
            items.sort(key=_raster if self.order == "raster" else _area)
        if self.outside == "clip":
            size = frame.width_px, frame.height_px
            items = [replace(item, shape=clipped(item.shape, *size)) for item in items]
        return frame.write(items)

    def parse(self, text: str, frame: Frame | None = None) -> Instances | Unreadable:
        """Parse all shapes of a text."""
        if frame is None:
            raise ValueError("shapes need the frame that they were written in")
        return frame.read(text)

    def record(self, answer: Instances) -> list[dict[str, Any]]:
        """Return shapes in pixels of the original image."""
        return [instance_row(item) for item in answer.items]

    def recorded(self, value: Any) -> Instances:
        """Return the shapes that ``record`` wrote."""
        return read_instances({"instances": value}, "the target")

    @property
    def render_settings(self) -> dict[str, Any]:
        """Everything that rendered images depend on except count and seed."""
        return asdict(self.page)

    def render(self, folder: Path, count: int, seed: int, categories: Sequence[str] = ()) -> Path:
        """Render pages of words, and return the file of their rows."""
        return render_pages(folder, count, seed, self.page)


def _raster(item: Instance) -> tuple[float, float]:
    """Return the sort key of ``raster``: topmost, then leftmost coordinate."""
    xs, ys = zip(*item.shape.points, strict=True)
    return min(ys), min(xs)


def _area(item: Instance) -> float:
    """Return the sort key of ``area``: the negative area, by the shoelace formula."""
    points = item.shape.points
    if isinstance(item.shape, Box):
        (x1, y1), (x2, y2) = points
        return -(x2 - x1) * (y2 - y1)
    pairs = zip(points, points[1:] + points[:1], strict=True)
    return -abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in pairs)) / 2
