"""Find every word of a picture: quadrilaterals, polygons or boxes.

Rows     {"id": text, "image": path, "instances": [{"polygon": [x1, y1, x2, y2, ...],
         "ignore": true or false}, ...]}; or "box": [x1, y1, x2, y2] in place of a polygon;
         in pixels of the original, upright picture; "width" and "height" of it may be given
Answer   the shapes that are not ignored, in a declared order, as the family writes them
Score    mm_numeric.evaluation.detection; order: rows keeps the order of the ground truth's file,
         which the ICDAR 2015 protocol goes by
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mm_numeric.answers import Box, Example, Instance, Instances, Unreadable, Written
from mm_numeric.frames import Frame
from mm_numeric.tasks.shapes import (
    OUTSIDE,
    clipped,
    instance_row,
    read_id,
    read_image,
    read_instance,
)

SHAPES = ("polygon", "box")
ORDERS = ("raster", "rows")


@dataclass(frozen=True, kw_only=True)
class TextDetection:
    """Pictures in, the shapes of their words out."""

    version: ClassVar[int] = 1  # raise it when a prompt, an order or a parse changes a score

    prompt: str = "Locate every word."
    """What is asked with every picture."""

    shape: str = "polygon"
    """polygon: as the rows have them; box: the upright box around each."""

    order: str = "raster"
    """raster: by the topmost point, then the leftmost; rows: as the rows have them."""

    outside: str = "refuse"
    """refuse: a shape that reaches more than a pixel out of its picture is an error; clip: its
    points are moved to the edge, in the answer that is trained on."""

    def __post_init__(self) -> None:
        """Refuse choices that there are not."""
        choices = (("shape", SHAPES), ("order", ORDERS), ("outside", OUTSIDE))
        for name, known in choices:
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} is one of {', '.join(known)}, not {getattr(self, name)!r}"
                )

    def examples(
        self, rows: Iterable[tuple[str, Mapping[str, Any]]], *, training: bool
    ) -> Iterator[Example]:
        """Turn rows into examples.

        Args:
            rows: File and line of each row, and its fields.
            training: Not looked at: the same rows are trained on and tested.

        Raises:
            ValueError: If a row has no picture, or an instance has no shape.
        """
        for where, row in rows:
            image, size_px = read_image(row, where)
            raw = row.get("instances")
            if not isinstance(raw, list):
                raise ValueError(f'{where}: no "instances" (a list); it is empty where no word is.')
            items = [read_instance(r, f"{where}, instances.{i}") for i, r in enumerate(raw)]
            if self.shape == "box":
                items = [replace(item, shape=_around(item)) for item in items]
            if self.order == "raster":
                items.sort(key=_raster)
            yield Example(
                id=read_id(row, ("id",), image),
                image=image,
                prompt=self.prompt,
                answer=Instances(tuple(items)),
                where=where,
                size_px=size_px,
            )

    def format(self, answer: Instances, frame: Frame) -> Written:
        """Write the shapes that are not ignored.

        Raises:
            ValueError: If one reaches out of the picture.
        """
        items = [item for item in answer.items if not item.ignore]
        if self.outside == "clip":
            size = frame.width_px, frame.height_px
            items = [replace(item, shape=clipped(item.shape, *size)) for item in items]
        return frame.write(items)

    def parse(self, text: str, frame: Frame | None) -> Instances | Unreadable:
        """Read every shape of a text.

        Raises:
            ValueError: If there is no frame to read them in.
        """
        if frame is None:
            raise ValueError("shapes need the frame that they were written in")
        found = frame.read(text)
        return found if isinstance(found, Unreadable) else Instances(found)

    def record(self, answer: Instances) -> list[dict[str, Any]]:
        """Return shapes as predictions.jsonl holds them, in pixels of the original picture."""
        return [instance_row(item) for item in answer.items]

    def recorded(self, value: Any) -> Instances:
        """Read shapes that ``record`` wrote.

        Raises:
            ValueError: If they are none.
        """
        if not isinstance(value, list):
            raise ValueError(f"the target {value!r:.40} is not a list of instances")
        items = enumerate(value)
        return Instances(tuple(read_instance(r, f"the target, {i}") for i, r in items))


def _around(item: Instance) -> Box:
    """Return the upright box around a shape."""
    xs, ys = zip(*item.shape.points, strict=True)
    return Box(min(xs), min(ys), max(xs), max(ys))


def _raster(item: Instance) -> tuple[float, float]:
    """Return what reading order sorts by: the topmost point, then the leftmost."""
    xs, ys = zip(*item.shape.points, strict=True)
    return min(ys), min(xs)
