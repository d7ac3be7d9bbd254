"""Task: locate the object that a phrase describes, as one box or as a list of labelled boxes.

Rows     {"id": text, "image": path, "phrase": text, "box": [x1, y1, x2, y2]}
         "box" is in pixels of the original, upright image; "box_xyxy" is a synonym
         "box_xywh": [x, y, width, height] may replace "box"
         "sentences": [text, ...] may replace "phrase": the row yields one example per text
         "width" and "height" of the image are optional
         for ``answer: list``, "instances": [{"box": [...], "label": text}, ...] replaces "box": the
         objects that match the phrase (perhaps none), or all objects if the row has no phrase;
         "polygon": [x1, y1, x2, y2, x3, y3, ...] may replace the "box" of an object
Answer   the box, or the boxes with labels, in the coordinate format of the model family
Scorer   mm_numeric.evaluation.metrics.boxes, or mm_numeric.evaluation.metrics.detection for a list
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.answers import Box, Example, Instance, Instances, Shape, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.grammar import box_regex, list_regex, rest_of_box
from mm_numeric.geometry.row_shapes import (
    clipped,
    instance_row,
    read_box,
    read_id,
    read_image,
    read_instances,
    shape_row,
)
from mm_numeric.tasks.base import BaseTask, Rows, check_choice
from mm_numeric.tasks.rendering.scenes import SceneStyle, render_scenes

_BOXES = {"box": False, "box_xyxy": False, "box_xywh": True}
_LABELLED = "mm_numeric.evaluation.metrics.detection:LABELLED_DETECTION"
_EVERYTHING = "every object"  # the phrase of rows without one


@dataclass(frozen=True, kw_only=True)
class Grounding(BaseTask):
    """Task: locate one object or several objects in an image."""

    # 2: coordinates are rounded from the original pixels; 3: answers without special tokens
    version: ClassVar[int] = 3

    reads_by: ClassVar[tuple[str, ...]] = ("answer",)

    report_sections: ClassVar[tuple[str, ...]] = ("shapes",)

    sampled_answers: ClassVar[int] = 32

    prompt: str = "Locate: {phrase}"
    """Prompt; ``{phrase}`` is replaced by the phrase of the row."""

    answer: str = "box"
    """``box``: one box. ``list``: zero or more boxes with labels, in the order of the row."""

    outside: str = "refuse"
    """Treatment of boxes that extend more than one pixel beyond the image. ``refuse``: raise an
    error. ``clip``: clip the box to the image in the training text."""

    label_noise_pixels: float = 0.0
    """Standard deviation of Gaussian noise, in pixels of the original image, added to each edge of
    the boxes of training labels to simulate annotation errors. Test labels have no noise."""

    label_noise_seed: int = 0
    """Seed of the label noise. The noise of a row depends only on this seed and the row's id."""

    scene: SceneStyle = field(default_factory=SceneStyle)
    """Options for rendered scenes."""

    def __post_init__(self) -> None:
        if not 0 <= self.label_noise_pixels < math.inf:
            raise ValueError(f"label_noise_pixels is 0 or more, not {self.label_noise_pixels}")
        if "{phrase}" not in self.prompt:
            raise ValueError(f"prompt needs {{phrase}} where the phrase goes, not {self.prompt!r}")
        check_choice("answer", self.answer, ("box", "list"))
        check_choice("outside", self.outside, ("refuse", "clip"))

    def with_noise_of(self, seed: int) -> "Grounding | None":
        """Return the task with the label noise of another seed; None if labels have no noise."""
        if not self.label_noise_pixels:
            return None
        return replace(self, label_noise_seed=self.label_noise_seed + seed)

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per phrase, in training and in evaluation alike.

        With ``label_noise_pixels``, random errors are added to the boxes in training data.
        """
        for where, row in rows:
            image, size_px = read_image(row, where)
            phrases = _phrases(row, where, optional=self.answer == "list")
            answer = _box(row, where) if self.answer == "box" else read_instances(row, where)
            identity = read_id(row, ("id", "ref_id"), image)
            if training and self.label_noise_pixels:
                try:
                    answer = self._with_noise(answer, size_px, identity)
                except ValueError as error:
                    raise ValueError(f"{where}: {error}") from None
            for i, phrase in enumerate(phrases):
                yield Example(
                    id=identity if len(phrases) == 1 else f"{identity}.{i}",
                    image=image,
                    prompt=self.prompt.replace("{phrase}", phrase),
                    answer=answer,
                    where=where,
                    size_px=size_px,
                )

    def _with_noise(
        self, answer: Box | Instances, size_px: tuple[int, int] | None, identity: str
    ) -> Box | Instances:
        if size_px is None:
            raise ValueError(
                "label_noise_pixels needs the width and height of the image, so that boxes stay "
                "inside; add both to the row."
            )
        noise = random.Random(f"{self.label_noise_seed}:{identity}")
        moved = partial(_moved, size_px=size_px, noise=noise, deviation_px=self.label_noise_pixels)
        if isinstance(answer, Box):
            return moved(answer)
        items = tuple(replace(item, shape=moved(item.shape)) for item in answer.items)
        return replace(answer, items=items)

    @property
    def scorer(self) -> str | None:
        """Return the import path of the scorer for box lists; None selects the one-box scorer."""
        return _LABELLED if self.answer == "list" else None

    def format(self, answer: Box | Instances, frame: Frame | None = None) -> Written:
        """Format a box or a list of boxes as text; boxes marked as ``ignore`` are left out."""
        if frame is None:
            raise ValueError("a box needs the frame of its image")
        items = (Instance(answer),) if isinstance(answer, Box) else answer.items
        written = [item for item in items if not item.ignore]
        if self.outside == "clip":
            size = frame.width_px, frame.height_px
            written = [replace(item, shape=clipped(item.shape, *size)) for item in written]
        return frame.write(written)

    def parse(self, text: str, frame: Frame | None = None) -> Box | Instances | Unreadable:
        """Parse the first box in a generated text, or all boxes if the task asks for a list."""
        if frame is None:
            raise ValueError("a box needs the frame that it was written in")
        found = frame.read(text)
        if isinstance(found, Unreadable) or self.answer == "list":
            return found
        boxes = [item.shape for item in found.items if isinstance(item.shape, Box)]
        if not boxes:
            return Unreadable("no box")
        box = boxes[0]
        if box.x2 < box.x1 or box.y2 < box.y1:
            return Unreadable("reversed box", lenient=box)
        if min(box.x2, box.y2) < 0 or box.x1 > frame.width_px or box.y1 > frame.height_px:
            return Unreadable("outside the image")
        return box

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of a box in the image, or of a list of labelled shapes.

        Shapes are boxes and polygons, because rows may have either.
        """
        if frame is None:
            raise ValueError("a box needs the frame of its image")
        if self.answer == "list":
            return list_regex(frame, polygons=True, labels=True)
        return box_regex(frame)

    def grammar_after(self, frame: Frame | None = None) -> Callable[[str], str | None] | None:
        """Return a function that lets the second corner of one box only be right and below."""
        if frame is None or self.answer == "list":
            return None
        return partial(rest_of_box, frame)

    def record(self, answer: Box | Instances) -> Any:
        """Convert boxes to JSON, in pixels of the original image."""
        if isinstance(answer, Box):
            return shape_row(answer)
        return [instance_row(item) for item in answer.items]

    def recorded(self, value: Any) -> Box | Instances:
        """Convert a JSON value in predictions.jsonl back to a box or a list of boxes."""
        if self.answer == "list":
            return read_instances({"instances": value}, "the target")
        return read_box(value.get("box") if isinstance(value, Mapping) else value, "the target")

    @property
    def render_settings(self) -> dict[str, Any]:
        """Return the options that affect the generated images and rows."""
        return {**asdict(self.scene), "answer": self.answer}

    def describe(self) -> str:
        """Describe the label noise in a sentence, for a report."""
        if not self.label_noise_pixels:
            return super().describe()
        noise = f"{self.label_noise_pixels:g}"
        return f"Trained on boxes with Gaussian noise of {noise} pixels, tested on clean ones."

    def render(self, folder: Path, count: int, seed: int, categories: Sequence[str] = ()) -> Path:
        """Generate images of coloured shapes; return the path of the file with their rows."""
        return render_scenes(folder, count, seed, self.scene, lists=self.answer == "list")


def _moved(
    shape: Shape, size_px: tuple[int, int], noise: random.Random, deviation_px: float
) -> Box:
    """Move each edge of a box by Gaussian noise, inside the image.

    An axis on which nothing would be left of the box keeps its edges. Raises ValueError for a
    polygon.
    """
    if not isinstance(shape, Box):
        raise ValueError("label_noise_pixels moves boxes, and this row has a polygon.")

    def two_edges(first: float, second: float, limit: int) -> list[float]:
        shifted = (edge + noise.gauss(0, deviation_px) for edge in (first, second))
        # A box that is outside before stays so, for ``outside`` to treat.
        least, most = min(0.0, first), max(float(limit), second)
        low, high = sorted(min(max(edge, least), most) for edge in shifted)
        return [low, high] if low < high else [first, second]

    x1, x2 = two_edges(shape.x1, shape.x2, size_px[0])
    y1, y2 = two_edges(shape.y1, shape.y2, size_px[1])
    return Box(x1, y1, x2, y2)


def _phrases(row: Mapping[str, Any], where: str, *, optional: bool) -> list[str]:
    found = row.get("phrase") or row.get("sentence") or row.get("sentences")
    if found is None and optional:
        return [_EVERYTHING]
    phrases = [found] if isinstance(found, str) else found
    valid = isinstance(phrases, list) and all(isinstance(p, str) and p.strip() for p in phrases)
    if not (valid and phrases):
        raise ValueError(f'{where}: no phrase; each row needs "phrase" (or "sentences").')
    return phrases


def _box(row: Mapping[str, Any], where: str) -> Box:
    """Read ``box``, ``box_xyxy`` or ``box_xywh`` of a row; reject ``bbox``, which is ambiguous."""
    given = [name for name in _BOXES if row.get(name) is not None]
    if len(given) > 1:
        raise ValueError(f"{where}: {' and '.join(given)} both define the box; keep one.")
    if given:
        return read_box(row[given[0]], f"{where}, {given[0]}", xywh=_BOXES[given[0]])
    if row.get("bbox") is not None:
        raise ValueError(
            f'{where}: "bbox" may be x1, y1, x2, y2 or x, y, width, height; name it "box" or '
            '"box_xywh".'
        )
    raise ValueError(f'{where}: no box; each row needs "box" as [x1, y1, x2, y2].')
