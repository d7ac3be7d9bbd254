"""Task: detect every word in an image, as quadrilaterals, polygons or boxes.

Rows     {"id": text, "image": path, "instances": [{"polygon": [x1, y1, x2, y2, ...],
         "ignore": true or false}, ...]}; or "box": [x1, y1, x2, y2] instead of a polygon;
         in pixels of the original, upright image; "width" and "height" are optional
Answer   all shapes without "ignore": true, in the order that the option ``order`` names (such as
         by y, then x), in the coordinate format of the model family
Scorer   mm_numeric.evaluation.metrics.detection; ``order`` does not change the ground truth
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.answers import Box, Example, Instance, Instances, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.grammar import list_regex
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
    """Task: detect the words in an image."""

    # 2: coordinates are rounded from the original pixels; crossing polygons as in the RRC script
    # 3: answers without special tokens
    version: ClassVar[int] = 3

    report_sections: ClassVar[tuple[str, ...]] = ("shapes",)

    sampled_answers: ClassVar[int] = 32

    prompt: str = "Locate every word."
    """Prompt, the same for every image."""

    shape: str = "polygon"
    """``polygon``: use shapes as the rows have them. ``box``: replace them by bounding boxes."""

    order: str = "raster"
    """Order of the shapes in the training text. ``raster``: by smallest y, then smallest x.
    ``area``: largest first. ``random``: random but fixed for each image. ``rows``: as in the row.
    Scoring always uses the order of the row."""

    outside: str = "refuse"
    """Treatment of shapes that extend more than one pixel beyond the image. ``refuse``: raise an
    error. ``clip``: move their points to the image edge in the training text."""

    page: PageStyle = field(default_factory=PageStyle)
    """Options for rendered pages."""

    def __post_init__(self) -> None:
        check_choice("shape", self.shape, ("polygon", "box"))
        check_choice("order", self.order, ("raster", "area", "random", "rows"))
        check_choice("outside", self.outside, ("refuse", "clip"))

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row, in training and in evaluation alike."""
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
        """Sort shapes by the option ``order`` and format them as text, skipping ignored shapes."""
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
        """Parse all shapes in a generated text."""
        if frame is None:
            raise ValueError("shapes need the frame that they were written in")
        return frame.read(text)

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of a list of shapes: polygons and boxes, or boxes only."""
        if frame is None:
            raise ValueError("shapes need the frame of their image")
        return list_regex(frame, polygons=self.shape == "polygon")

    def record(self, answer: Instances) -> list[dict[str, Any]]:
        """Convert shapes to JSON, in pixels of the original image."""
        return [instance_row(item) for item in answer.items]

    def recorded(self, value: Any) -> Instances:
        """Convert a JSON value in predictions.jsonl back to shapes."""
        return read_instances({"instances": value}, "the target")

    @property
    def render_settings(self) -> dict[str, Any]:
        """Return the style options of the generated pages, which affect the images."""
        return asdict(self.page)

    def render(self, folder: Path, count: int, seed: int, categories: Sequence[str] = ()) -> Path:
        """Generate images of words; return the path of the .jsonl file with their rows."""
        return render_pages(folder, count, seed, self.page)


def _raster(item: Instance) -> tuple[float, float]:
    xs, ys = zip(*item.shape.points, strict=True)
    return min(ys), min(xs)


def _area(item: Instance) -> float:
    points = item.shape.points
    if isinstance(item.shape, Box):
        (x1, y1), (x2, y2) = points
        return -(x2 - x1) * (y2 - y1)
    pairs = zip(points, points[1:] + points[:1], strict=True)
    return -abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in pairs)) / 2
