"""Task: point at every object that a phrase describes, or at a place in a region.

Rows     {"id": text, "image": path, "phrase": text, "instances": [{"polygon": [x1, y1, ...],
         "point": [x, y]}, ...]}; "box" may replace "polygon", "point" is optional, and an object
         may have a "point" only; the list is empty if nothing matches the phrase
         "points": [[x, y], ...] may replace "instances"
         "category" is optional; metrics are also reported for each of its values
Answer   one point in each object (its "point", or else its centre), by y, then x, in the coordinate
         format of the model family
Scorer   mm_numeric.evaluation.metrics.pointing; objects need a polygon or a box to be found
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mm_numeric.answers import Example, Instances
from mm_numeric.geometry.row_shapes import read_id, read_image, read_instances, read_phrases
from mm_numeric.tasks.base import Rows
from mm_numeric.tasks.points import PointTask
from mm_numeric.tasks.rendering.scenes import SceneStyle, render_scenes


@dataclass(frozen=True, kw_only=True)
class Pointing(PointTask):
    """Task: point at all objects that match a phrase."""

    prompt: str = "Point at: {phrase}"
    """Prompt; ``{phrase}`` is replaced by the phrase of the row."""

    scene: SceneStyle = field(default_factory=SceneStyle)
    """Options for rendered scenes."""

    def __post_init__(self) -> None:
        if "{phrase}" not in self.prompt:
            raise ValueError(f"prompt needs {{phrase}} where the phrase goes, not {self.prompt!r}")

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per phrase, in training and in evaluation alike."""
        for where, row in rows:
            image, size_px = read_image(row, where)
            answer, identity = _objects(row, where), read_id(row, ("id",), image)
            phrases = read_phrases(row, where)
            for i, phrase in enumerate(phrases):
                yield Example(
                    id=identity if len(phrases) == 1 else f"{identity}.{i}",
                    image=image,
                    prompt=self.prompt.replace("{phrase}", phrase),
                    answer=answer,
                    where=where,
                    size_px=size_px,
                    buckets={"category": str(row["category"])} if row.get("category") else {},
                )

    @property
    def scorer(self) -> str:
        """Return the import path of the scorer of points."""
        return "mm_numeric.evaluation.metrics.pointing:POINTS"

    @property
    def risk(self) -> str:
        """Return the name of the cost that decoding minimises: answers are equal or not."""
        return "exact"

    @property
    def render_settings(self) -> dict[str, Any]:
        """Return the options that affect the generated images and rows."""
        return asdict(self.scene)

    def render(self, folder: Path, count: int, seed: int, categories: Sequence[str] = ()) -> Path:
        """Generate images of coloured shapes; return the path of the file with their rows."""
        return render_scenes(folder, count, seed, self.scene, rows="points")


def _objects(row: Mapping[str, Any], where: str) -> Instances:
    points = row.get("points")
    if row.get("instances") is not None or not isinstance(points, list):
        return read_instances(row, where, points=True)
    return read_instances({"instances": [{"point": point} for point in points]}, where, points=True)
