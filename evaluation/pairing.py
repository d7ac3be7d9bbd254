"""Which true shape of a scored row was found by which answered one, for drawing and histograms.

Rows     as ``scores.jsonl`` has them: ``target`` and ``parsed`` are a shape, a list of shapes, or
         None for what could not be read; a shape is {"box": [x1, y1, x2, y2]} or {"polygon": [...]}
         with "label" and "ignore" where they are wanted, in pixels of the original picture
Pairs    one to one, the highest IoU first; a pair is a find from an IoU of 0.5
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import shapely

from mm_numeric.answers import Box, Instance, Polygon, Shape
from mm_numeric.evaluation.boxes import THRESHOLDS, shape_ious
from mm_numeric.evaluation.pictures import corners

FIND = THRESHOLDS[0]
"""The IoU from which a true shape is found."""

_FARTHEST_PX = 1e6  # a shape with a corner beyond it is nowhere in a picture
_IGNORED_SHARE = 0.5  # a detection more of which is in one region to be ignored is left out


@dataclass(frozen=True)
class Paired:
    """What became of the shapes of one row."""

    truths: Sequence[Instance]
    """To be found."""

    ignored: Sequence[Instance]
    """Need not be found."""

    answers: Sequence[Instance]
    """As the model gave them."""

    ious: Sequence[float]
    """Of each truth with its answer; 0 without one."""

    partners: Sequence[int | None]
    """Which answer each truth is paired with."""

    counts: Sequence[bool]
    """Of each answer, whether it counts: not if it covers what is to be ignored."""

    @property
    def found(self) -> list[bool]:
        """Of each truth, whether it was found."""
        return [iou >= FIND for iou in self.ious]

    @property
    def right(self) -> list[bool]:
        """Of each answer, whether it finds something."""
        finds = {p for p, found in zip(self.partners, self.found, strict=True) if found}
        return [index in finds for index in range(len(self.answers))]


def read_shapes(value: Any, where: str) -> list[Instance]:
    """Read the shapes of ``target`` or ``parsed``; none of None.

    What a model answered stays as it stands: a box may be reversed, a polygon have one corner.

    Raises:
        ValueError: If there is something that is no shape.
    """
    found = []
    items = [] if value is None else value if isinstance(value, list) else [value]
    for item in items:
        numbers: Any = None
        if isinstance(item, Mapping):
            numbers = item.get("box") or item.get("polygon")
        odd = not isinstance(numbers, list) or len(numbers) % 2
        if odd or not numbers or not all(type(n) in (int, float) for n in numbers):
            raise ValueError(f"{where}: a box or a polygon belongs here, not {item!r:.60}")
        shape: Shape
        if item.get("box"):
            if len(numbers) != 4:
                raise ValueError(f"{where}: a box is [x1, y1, x2, y2], not {numbers!r:.60}")
            shape = Box(*numbers)
        else:
            shape = Polygon(tuple(zip(numbers[::2], numbers[1::2], strict=True)))
        label, ignore = str(item.get("label") or ""), item.get("ignore") is True
        found.append(Instance(shape, label, ignore))
    return found


def is_drawable(shape: Shape) -> bool:
    """Say whether all corners of a shape are numbers, and near a picture."""
    return all(abs(at) <= _FARTHEST_PX for point in corners(shape) for at in point)


def around(shape: Shape) -> Box:
    """Return the upright box around a shape."""
    xs, ys = zip(*corners(shape), strict=True)
    return Box(min(xs), min(ys), max(xs), max(ys))


def pair(rows: Sequence[Mapping[str, Any]], where: str) -> list[Paired]:
    """Pair the shapes of each row.

    Where truths have labels, both shapes of a pair have the same.

    Raises:
        ValueError: If a row has something that is no shape.
    """
    sides = [
        [read_shapes(row[key], f"{where}, {row['id']!r:.40}, {key}") for row in rows]
        for key in ("target", "parsed")
    ]
    labelled = any(truth.label for truths in sides[0] for truth in truths)
    candidates: list[tuple[int, int, int]] = []  # row, truth, answer
    for index, (truths, answers) in enumerate(zip(*sides, strict=True)):
        candidates += [
            (index, t, a)
            for t, a in _overlapping(truths, answers)
            if not labelled
            or truths[t].label == answers[a].label
            or (truths[t].ignore and not truths[t].label)
        ]
    ious = shape_ious(
        [sides[1][index][a].shape for index, _, a in candidates],
        [sides[0][index][t].shape for index, t, _ in candidates],
    )
    by_row: list[list[tuple[float, int, int]]] = [[] for _ in rows]
    for (index, t, a), iou in zip(candidates, ious.tolist(), strict=True):
        by_row[index].append((iou, t, a))
    return [_pair_row(*row) for row in zip(*sides, by_row, strict=True)]


def _pair_row(
    truths: Sequence[Instance],
    answers: Sequence[Instance],
    overlaps: Sequence[tuple[float, int, int]],
) -> Paired:
    counts = [True] * len(answers)
    for iou, t, a in overlaps:
        if truths[t].ignore:
            areas = _area_px(truths[t].shape), _area_px(answers[a].shape)
            shared = iou * sum(areas) / (1 + iou)  # as IoU = shared / (sum of both - shared)
            counts[a] &= not shared > _IGNORED_SHARE * areas[1]
    partners: dict[int, int] = {}
    best: dict[int, float] = {}
    for iou, t, a in sorted(overlaps, key=lambda o: -o[0]):
        free = t not in partners and a not in partners.values()
        if iou > 0 and free and counts[a] and not truths[t].ignore:
            partners[t], best[t] = a, iou
    wanted = [t for t, truth in enumerate(truths) if not truth.ignore]
    return Paired(
        truths=[truths[t] for t in wanted],
        ignored=[truth for truth in truths if truth.ignore],
        answers=answers,
        ious=[best.get(t, 0.0) for t in wanted],
        partners=[partners.get(t) for t in wanted],
        counts=counts,
    )


def mean_box(rows: Sequence[Paired]) -> Box | None:
    """Return the mean, corner by corner, of the boxes around all that is to be found."""
    boxes = [around(truth.shape) for row in rows for truth in row.truths]
    edges = [(box.x1, box.y1, box.x2, box.y2) for box in boxes]
    return Box(*np.mean(edges, axis=0).tolist()) if edges else None


def _overlapping(truths: Sequence[Instance], answers: Sequence[Instance]) -> list[tuple[int, int]]:
    """Return which pairs have boxes around them that share an area."""
    a, b = _bounds(truths), _bounds(answers)
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    return [(t, d) for t, d in np.argwhere((low < high).all(axis=2)).tolist()]


def _bounds(instances: Sequence[Instance]) -> Any:
    """Return x1, y1, x2, y2 around each, [n, 4]; nan for what is nowhere, which shares nothing."""
    found = np.full((len(instances), 4), np.nan)
    for row, item in enumerate(instances):
        if is_drawable(item.shape):
            box = around(item.shape)
            found[row] = box.x1, box.y1, box.x2, box.y2
    return found


def _area_px(shape: Shape) -> float:
    points = corners(shape)
    if len(points) < 3:
        return 0.0
    return float(shapely.area(shapely.make_valid(shapely.Polygon(points))))
