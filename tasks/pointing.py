"""Tasks: point at the objects that a phrase describes, or click on an element of a screen.

Example  {"id": "1", "image": "1.png", "phrase": "cups", "points": [[20, 30], [120, 200]]}
Prompt   Point at: cups
Text     [{"point_2d": [20, 30]}, {"point_2d": [120, 200]}]

Rows     {"id": text, "image": path, "phrase": text, "instances": [{"polygon": [x1, y1, ...],
         "point": [x, y]}, ...]}; "box" may replace "polygon", "point" is optional, and an object
         may have a "point" only; the list is empty if nothing matches the phrase
         "mask": {"size": [height, width], "counts": [...]} may replace "polygon", too: the run
         lengths of COCO files; a point is in the object if its pixel is
         "points": [[x, y], ...] may replace "instances"
         A row of the task ``click`` has the "box", "box_xywh": [x, y, width, height] or "polygon"
         of one element; or "instances": [] if the element is not on the screen
         "category" and "step" of pointing, and "ui_type" (such as text or icon), "platform",
         "application", "group" and "category" of clicks are optional; metrics are also reported for
         each of their values
Answer   one point in each object (its "point", or else its centre), by y, then x, in the coordinate
         format of the model family; without an object, ``[]`` or ``none``, depending on the format
Scorer   mm_numeric.evaluation.metrics.pointing; rows with an object that has only a "point" are
         scored by the number of points alone
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mm_numeric.answers import (
    Box,
    Example,
    Instance,
    Instances,
    Point,
    Polygon,
    Unreadable,
    Written,
)
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.grammar import points_regex
from mm_numeric.geometry.masks import check_masks
from mm_numeric.geometry.row_shapes import (
    centre,
    instance_row,
    read_instances,
    read_phrases,
    read_polygon,
    read_row_box,
)
from mm_numeric.tasks.base import (
    BaseTask,
    Rows,
    check_placeholders,
    frame_of_image,
    image_example,
    one_per_phrase,
)


@dataclass(frozen=True, kw_only=True)
class PointTask(BaseTask):
    """Base class of tasks whose answers are points. The correct answer is a list of regions.

    A box or a polygon in a generated answer is parsed as the point at its centre.
    """

    # What the parser accepts since version 2: several boxes in one pair of tags, [] in a code
    # fence. 3: actions on a screen. 4: lists of pairs, and other coordinate formats.
    version: ClassVar[int] = 4
    report_sections: ClassVar[tuple[str, ...]] = ("points",)
    risk = "exact"

    several: ClassVar[bool] = True
    """True if an answer may have several points, False if it has at most one."""

    bucket_fields: ClassVar[tuple[str, ...]] = ("category",)
    """Fields of a row for whose values metrics are also reported."""

    prompt: str
    """Prompt; ``{phrase}`` is replaced by the phrase of the row."""

    def __post_init__(self) -> None:
        check_placeholders("prompt", self.prompt, "phrase")

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per phrase."""
        for where, row in rows:
            example = image_example(
                row,
                where,
                prompt=self.prompt,
                answer=self.regions(row, where),
                bucket_fields=self.bucket_fields,
            )
            if example.size_px is not None:
                check_masks(example.answer, *example.size_px, f"{where}: ")
            yield from one_per_phrase(example, read_phrases(row, where))

    @abstractmethod
    def regions(self, row: Mapping[str, Any], where: str) -> Instances:
        """Read the regions to point at from a row; the list may be empty."""

    def format(self, answer: Instances, frame: Frame | None = None) -> Written:
        """Return the text of one point in each region, sorted by rounded y, then by rounded x."""
        frame = frame_of_image(frame)
        check_masks(answer, frame.width_px, frame.height_px)
        regions = [item for item in answer.items if not item.ignore]
        points = [Polygon((point_in(item),)) for item in regions]
        points.sort(key=lambda point: frame.quantised(point).points[0][::-1])
        return frame.write([Instance(point) for point in points])

    def parse(self, text: str, frame: Frame | None = None) -> Instances | Unreadable:
        """Parse all points in a generated text, also in actions such as ``click(x=3, y=5)``.

        A box or a polygon is parsed as the point at its centre.
        """
        found = frame_of_image(frame).read(text, points=True)
        if isinstance(found, Unreadable):
            return found
        items = (replace(item, shape=Polygon((centre(item.shape),))) for item in found.items)
        return replace(found, items=tuple(items))

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of points, or of the answer if there is no object."""
        return points_regex(frame_of_image(frame), several=self.several)

    def record(self, answer: Instances) -> list[dict[str, Any]]:
        """Convert regions or points to JSON, in pixels of the original image."""
        return [
            {"point": list(item.shape.points[0])}
            if len(item.shape.points) == 1
            else instance_row(item)
            for item in answer.items
        ]

    def recorded(self, value: Any) -> Instances:
        """Convert a JSON value in predictions.jsonl back to regions or points."""
        return read_instances({"instances": value}, "the target", points=True)


@dataclass(frozen=True, kw_only=True)
class Pointing(PointTask):
    """Task: point at all objects that match a phrase."""

    bucket_fields: ClassVar = ("category", "step")
    augmentations: ClassVar[tuple[str, ...]] = ("crop", "flip", "rotate", "scale")
    scorer = "mm_numeric.evaluation.metrics.pointing:POINTS"

    prompt: str = "Point at: {phrase}"
    """Prompt; ``{phrase}`` is replaced by the phrase of the row."""

    def regions(self, row: Mapping[str, Any], where: str) -> Instances:
        """Read the objects to point at from a row; the list may be empty."""
        points = row.get("points")
        if row.get("instances") is not None or not isinstance(points, list):
            return read_instances(row, where, points=True)
        return read_instances(
            {"instances": [{"point": point} for point in points]}, where, points=True
        )


@dataclass(frozen=True, kw_only=True)
class Click(PointTask):
    """Task: click on one element of a screen."""

    several: ClassVar[bool] = False
    scorer = "mm_numeric.evaluation.metrics.pointing:CLICKS"
    augmentations: ClassVar[tuple[str, ...]] = ("crop", "rotate", "scale")  # no mirrored texts
    bucket_fields: ClassVar = ("ui_type", "platform", "application", "group", "category")

    prompt: str = "Click on: {phrase}"
    """Prompt; ``{phrase}`` is replaced by the instruction of the row."""

    def regions(self, row: Mapping[str, Any], where: str) -> Instances:
        """Return a list with the element to click on; empty if it is not on the screen."""
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


def point_in(item: Instance) -> Point:
    """Return the annotated point of a region, or its centre, or else any point inside it."""
    if item.point is not None:
        return item.point
    middle = centre(item.shape)
    if isinstance(item.shape, Box) or len(item.shape.points) < 3:
        return middle
    import shapely  # imported here, because tasks without polygons do not need it

    polygon = shapely.make_valid(shapely.Polygon(item.shape.points))
    if polygon.covers(shapely.Point(middle)):
        return middle
    inside = polygon.representative_point()
    return inside.x, inside.y
