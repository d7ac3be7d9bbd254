"""Task: locate the object that a phrase describes, as one box.

Example  {"id": "1", "image": "1.png", "phrase": "the red cup", "box": [20, 30, 120, 200]}
Prompt   Locate: the red cup
Text     [{"bbox_2d": [20, 30, 120, 200]}]

Rows     {"id": text, "image": path, "phrase": text, "box": [x1, y1, x2, y2]}
         "box" is in pixels of the original, upright image; "box_xyxy" is a synonym
         "box_xywh": [x, y, width, height] may replace "box"
         "sentences": [text, ...] may replace "phrase": the row yields one example per text
         "width", "height" and "category" are optional; metrics are also reported per category
Answer   the box, in the coordinate format of the model family
Scorer   mm_numeric.evaluation.metrics.boxes
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from mm_numeric.answers import Box, Example, Instance, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.grammar import box_regex, rest_of_box
from mm_numeric.geometry.row_shapes import clipped, read_box, read_phrases, read_row_box, shape_row
from mm_numeric.tasks.base import (
    BaseTask,
    Rows,
    check_choice,
    check_placeholders,
    frame_of_image,
    image_example,
    one_per_phrase,
)


@dataclass(frozen=True, kw_only=True)
class Grounding(BaseTask):
    """Task: locate one object in an image."""

    # Version 2 rounds coordinates from the original pixels. The parser accepts since version 3:
    # answers without special tokens. 4: several boxes in one pair of tags. 6: other formats.
    version: ClassVar[int] = 6

    report_sections: ClassVar[tuple[str, ...]] = ("shapes",)

    sampled_answers: ClassVar[int] = 32
    is_enumerated: ClassVar[bool] = True
    augmentations: ClassVar[tuple[str, ...]] = ("crop", "flip", "rotate", "scale")

    prompt: str = "Locate: {phrase}"
    """Prompt; ``{phrase}`` is replaced by the phrase of the row."""

    outside: str = "refuse"
    """Treatment of boxes that extend more than one pixel beyond the image. ``refuse``: raise an
    error. ``clip``: clip the box to the image in the training text."""

    def __post_init__(self) -> None:
        check_placeholders("prompt", self.prompt, "phrase")
        check_choice("outside", self.outside, ("refuse", "clip"))

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per phrase."""
        for where, row in rows:
            example = image_example(
                row,
                where,
                prompt=self.prompt,
                answer=read_row_box(row, where),
                ids=("id", "ref_id"),
                bucket_fields=("category",),
            )
            yield from one_per_phrase(example, read_phrases(row, where))

    def format(self, answer: Box, frame: Frame | None = None) -> Written:
        """Format a box as text."""
        frame = frame_of_image(frame)
        clip = self.outside == "clip"
        shape = clipped(answer, frame.width_px, frame.height_px) if clip else answer
        return frame.write([Instance(shape)])

    def parse(self, text: str, frame: Frame | None = None) -> Box | Unreadable:
        """Parse the first box in a generated text, in any known coordinate format."""
        frame = frame_of_image(frame)
        found = frame.read(text)
        if isinstance(found, Unreadable):
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
        """Return a regular expression of a box in the image."""
        return box_regex(frame_of_image(frame))

    def grammar_after(self, frame: Frame | None = None) -> Callable[[str], str | None] | None:
        """Return a function that requires x2 and y2 of a box not to be smaller than x1 and y1."""
        return None if frame is None else partial(rest_of_box, frame)

    def record(self, answer: Box) -> Any:
        """Convert a box to JSON, in pixels of the original image."""
        return shape_row(answer)

    def recorded(self, value: Any) -> Box:
        """Convert a JSON value in predictions.jsonl back to a box."""
        return read_box(value.get("box") if isinstance(value, Mapping) else value, "the target")
