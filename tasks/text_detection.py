"""Task: detect every word in an image, as quadrilaterals, polygons or boxes.

Rows     {"id": text, "image": path, "instances": [{"polygon": [x1, y1, x2, y2, ...],
         "ignore": true or false}, ...]}; or "box": [x1, y1, x2, y2] instead of a polygon;
         in pixels of the original, upright image; "width" and "height" are optional
Answer   all shapes without "ignore": true, in the order that the option ``order`` names (such as
         by y, then x), in the coordinate format of the model family
Scorer   mm_numeric.evaluation.metrics.detection; ``order`` does not change the ground truth
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.answers import Example, Instances
from mm_numeric.geometry.row_shapes import read_id, read_image
from mm_numeric.tasks.base import Rows
from mm_numeric.tasks.rendering.word_pages import PageStyle, render_pages
from mm_numeric.tasks.shape_lists import ShapeListTask


@dataclass(frozen=True, kw_only=True)
class TextDetection(ShapeListTask):
    """Task: detect the words in an image."""

    # 2: coordinates are rounded from the original pixels; crossing polygons as in the RRC script
    # 3: answers without special tokens; 4: several boxes within one pair of tags, fenced []
    version: ClassVar[int] = 4

    prompt: str = "Locate every word."
    """Prompt, the same for every image."""

    page: PageStyle = field(default_factory=PageStyle)
    """Options for rendered pages."""

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row, in training and in evaluation alike."""
        for where, row in rows:
            image, size_px = read_image(row, where)
            # Without labels, because frame.write would add the transcriptions to the answer.
            items = [replace(item, label="") for item in self.read_shapes(row, where)]
            yield Example(
                id=read_id(row, ("id",), image),
                image=image,
                prompt=self.prompt,
                answer=Instances(tuple(items)),
                where=where,
                size_px=size_px,
            )

    @property
    def render_settings(self) -> dict[str, Any]:
        """Return the style options of the generated pages, which affect the images."""
        return asdict(self.page)

    def render(self, folder: Path, count: int, seed: int, categories: Sequence[str] = ()) -> Path:
        """Generate images of words; return the path of the .jsonl file with their rows."""
        return render_pages(folder, count, seed, self.page)
