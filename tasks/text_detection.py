"""Task: detect every word in an image, as quadrilaterals, polygons or boxes.

Example  {"id": "1", "image": "1.png", "instances": [{"polygon": [2, 3, 90, 3, 90, 20, 2, 20]}]}
Prompt   Locate every word.
Text     [{"poly_2d": [2, 3, 90, 3, 90, 20, 2, 20]}]

Rows     {"id": text, "image": path, "instances": [{"polygon": [x1, y1, x2, y2, ...],
         "ignore": true or false}, ...]}; or "box": [x1, y1, x2, y2] instead of a polygon;
         in pixels of the original, upright image; "width" and "height" are optional
Answer   all shapes without "ignore": true, sorted by the option ``order`` (such as by y, then x),
         in the coordinate format of the model family
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

    # Version 2 rounds coordinates from the original pixels, and scores crossing polygons like the
    # RRC script. The parser accepts since version 3: answers without special tokens. 4: several
    # boxes in one pair of tags, [] in a code fence. 5: other coordinate formats.
    version: ClassVar[int] = 5
    augmentations: ClassVar[tuple[str, ...]] = ("crop", "rotate", "scale")  # no mirrored words

    prompt: str = "Locate every word."
    """Prompt of all images."""

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row."""
        for where, row in rows:
            # Remove labels: they are transcriptions, which frame.write would add to the answer.
            items = [replace(item, label="") for item in self.read_shapes(row, where)]
            yield image_example(row, where, prompt=self.prompt, answer=Instances(tuple(items)))
