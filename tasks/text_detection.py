"""Find every word of an image: quadrilaterals, polygons or boxes.

Rows     {"id": text, "image": path, "instances": [{"polygon": [x1, y1, x2, y2, ...],
         "ignore": true or false}, ...]}; or "box": [x1, y1, x2, y2] in place of a polygon;
         in pixels of the original, upright image; "width" and "height" of it may be given
Answer   the shapes that are not ignored, in a declared order, as the family writes them
Score    mm_numeric.evaluation.metrics.detection, with the truth in the order of the rows, as the
         ICDAR 2015 protocol goes by
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
    """Images in, the shapes of their words out."""

    version: ClassVar[int] = 1  # raise it when a prompt, an order or a parse changes a score

    report_sections: ClassVar[tuple[str, ...]] = ("shapes",)

    prompt: str = "Locate every word."
    """What is asked with every image."""

    shape: str = "polygon"
    """polygon: as the rows have them; box: the upright box around each."""

    order: str = "raster"
    """Of the answer: raster, by the topmost point, then the leftmost; area, the largest first;
    random, another for each image and the same each time; rows, as the rows have them. The truth
    that is scored against keeps the order of the rows."""

    outside: str = "refuse"
    """refuse: a shape that reaches more than a pixel out of its image is an error; clip: its
    points are moved to the edge, in the answer that is trained on."""

    page: PageStyle = field(default_factory=PageStyle)
    """What rendered pages hold."""

    def __post_init__(self) -> None:
        """Refuse choices that there are not."""
        check_choice("shape", self.shape, ("polygon", "box"))
        check_choice("order", self.order, ("raster", "area", "random", "rows"))
        check_choice("outside", self.outside, ("refuse", "clip"))

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Turn rows into examples.

        Args:
            rows: File and line of each row, and its fields.
            training: Not looked at: the same rows are trained on and tested.

        Raises:
            ValueError: If a row has no image, or an instance has no shape.
        """
        for where, row in rows:
            image, size_px = read_image(row, where)
            identity = read_id(row, ("id",), image)
            # What is written on a word is not asked for: a label would be trained as an answer.
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
        """Write the shapes that are not ignored.

        Raises:
            ValueError: If one reaches out of the image.
        """
        if frame is None:
            raise ValueError("shapes need the frame that they are written in")
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
        """Read every shape of a text.

        Raises:
            ValueError: If there is no frame to read them in.
        """
        if frame is None:
            raise ValueError("shapes need the frame that they were written in")
        return frame.read(text)

    def record(self, answer: Instances) -> list[dict[str, Any]]:
        """Return shapes as predictions.jsonl holds them, in pixels of the original image."""
        return [instance_row(item) for item in answer.items]

    def recorded(self, value: Any) -> Instances:
        """Read shapes that ``record`` wrote.

        Raises:
            ValueError: If they are none.
        """
        return read_instances({"instances": value}, "the target")

    @property
    def render_settings(self) -> dict[str, Any]:
        """What a rendered image depends on, beside the count and the seed."""
        return asdict(self.page)

    def render(self, folder: Path, count: int, seed: int, categories: Sequence[str] = ()) -> Path:
        """Render pages, and return the file of their rows."""
        return render_pages(folder, count, seed, self.page)


def _raster(item: Instance) -> tuple[float, float]:
    """Return what reading order sorts by: the topmost point, then the leftmost."""
    xs, ys = zip(*item.shape.points, strict=True)
    return min(ys), min(xs)


def _area(item: Instance) -> float:
    """Return what sorts the largest first: minus the area, by the shoelace formula."""
    points = item.shape.points
    if isinstance(item.shape, Box):
        (x1, y1), (x2, y2) = points
        return -(x2 - x1) * (y2 - y1)
    pairs = zip(points, points[1:] + points[:1], strict=True)
    return -abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in pairs)) / 2
