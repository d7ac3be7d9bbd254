"""Task: detect every word in an image, as quadrilaterals, polygons or boxes.

Example  {"id": "1", "image": "1.png", "instances": [{"polygon": [2, 3, 90, 3, 90, 20, 2, 20]}]}
Prompt   Locate every word.
Text     [{"poly_2d": [2, 3, 90, 3, 90, 20, 2, 20]}]

Rows     {"id": text, "image": path, "instances": [{"polygon": [x1, y1, x2, y2, ...],
         "ignore": true or false}, ...]}; or "box": [x1, y1, x2, y2] instead of a polygon;
         in pixels of the original, upright image; "width" and "height" are optional
Answer   all shapes without "ignore": true, in the order that the option ``order`` names (such as
         by y, then x), in the coordinate format of the model family
Scorer   mm_numeric.evaluation.metrics.detection; ``order`` does not change the ground truth
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from mm_numeric.answers import Example, Instances
from mm_numeric.tasks.base import Rows, image_example
from mm_numeric.tasks.shape_lists import ShapeListTask


@dataclass(frozen=True, kw_only=True)
class TextDetection(ShapeListTask):
    """Task: detect the words in an image."""

    # 2: coordinates are rounded from the original pixels; crossing polygons as in the RRC script
    # 3: answers without special tokens; 4: several boxes within one pair of tags, fenced []
    # 5: layouts that differ from the frame's
    version: ClassVar[int] = 5
    augmentations: ClassVar[tuple[str, ...]] = ("crop", "rotate", "scale")  # no mirrored words

    prompt: str = "Locate every word."
    """Prompt, the same for every image."""

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row, in training and in evaluation alike."""
        for where, row in rows:
            # Without labels, because frame.write would add the transcriptions to the answer.
            items = [replace(item, label="") for item in self.read_shapes(row, where)]
            yield image_example(row, where, prompt=self.prompt, answer=Instances(tuple(items)))
