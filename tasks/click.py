"""Task: click on the element of a screen that an instruction describes (GUI grounding).

Rows     {"id": text, "image": path, "phrase": text, "box": [x1, y1, x2, y2]}, as for grounding;
         "box_xywh": [x, y, width, height] or "polygon": [x1, y1, x2, y2, ...] may replace "box";
         "instances": [] is an instruction about an element that is not on the screen
         "ui_type" (such as text or icon), "platform", "application", "group" and "category" are
         optional; metrics are also reported for each of their values
Answer   the centre of the element as a point, in the coordinate format of the model family; the
         text for an empty list (``[]`` or ``none``) if there is no such element
Scorer   mm_numeric.evaluation.metrics.pointing
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.answers import Instance, Instances
from mm_numeric.geometry.row_shapes import read_instances, read_polygon, read_row_box
from mm_numeric.tasks.points import PointTask
from mm_numeric.tasks.rendering.screens import ScreenStyle, render_screens


@dataclass(frozen=True, kw_only=True)
class Click(PointTask):
    """Task: click on one element of a screen."""

    several: ClassVar[bool] = False
    bucket_fields: ClassVar = ("ui_type", "platform", "application", "group", "category")

    prompt: str = "Click on: {phrase}"
    """Prompt; ``{phrase}`` is replaced by the instruction of the row."""

    screen: ScreenStyle = field(default_factory=ScreenStyle)
    """Options for rendered screens."""

    def regions(self, row: Mapping[str, Any], where: str) -> Instances:
        """Return the element to click on, as a list of one region; the list is empty for none."""
        if row.get("polygon") is not None:
            return Instances((Instance(read_polygon(row["polygon"], f"{where}, polygon")),))
        if row.get("instances") is None:
            return Instances((Instance(read_row_box(row, where)),))
        found = read_instances(row, where)
        if len(found.items) > 1:
            raise ValueError(
                f"{where}: {len(found.items)} instances; a click has one element or none. Set "
                "`task: pointing` for several."
            )
        return found

    @property
    def scorer(self) -> str:
        """Return the import path of the scorer of clicks."""
        return "mm_numeric.evaluation.metrics.pointing:CLICKS"

    @property
    def render_settings(self) -> dict[str, Any]:
        """Return the options that affect the generated images and rows."""
        return asdict(self.screen)

    def render(self, folder: Path, count: int, seed: int, categories: Sequence[str] = ()) -> Path:
        """Generate images of screens with buttons; return the path of the file with their rows."""
        return render_screens(folder, count, seed, self.screen)
