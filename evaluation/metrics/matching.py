"""Which true shape of a scored row was found by which answered one, for drawing and histograms.

Rows     as ``scores.jsonl`` has them: ``target`` and ``parsed`` are a shape, a list of shapes, or
         None for what could not be read; a shape is {"box": [x1, y1, x2, y2]} or {"polygon": [...]}
         with "label" and "ignore" where they are wanted, in pixels of the original image
Pairs    one to one, the highest IoU first; a pair is a find from an IoU of 0.5
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mm_numeric.answers import Box, Instance, Instances, Polygon, Shape
from mm_numeric.evaluation.metrics.boxes import THRESHOLDS
from mm_numeric.evaluation.metrics.detection import paired
from mm_numeric.evaluation.metrics.polygon_iou import ious, one_to_one
from mm_numeric.geometry.row_shapes import around, corners

FIND = THRESHOLDS[0]
"""The IoU from which a true shape is found."""

_FARTHEST_PX = 1e6  # a shape with a corner beyond it is nowhere in an image


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
    """Say whether all corners of a shape are numbers, and near an image."""
    return all(abs(at) <= _FARTHEST_PX for point in corners(shape) for at in point)


def pair(rows: Sequence[Mapping[str, Any]], where: str) -> list[Paired]:
    """Pair the shapes of each row.

    Where truths have labels, both shapes of a pair have the same.

    Raises:
        ValueError: If a row has something that is no shape.
    """
    wanted, given = (
        [read_shapes(row[key], f"{where}, {row['id']!r:.40}, {key}") for row in rows]
        for key in ("target", "parsed")
    )
    answers, truths, pairs, outside, care = paired(
        [Instances(tuple(items)) for items in given],
        [Instances(tuple(items)) for items in wanted],
        labelled=any(truth.label for items in wanted for truth in items),
    )
    iou = ious(answers, pairs.detection, truths, pairs.truth, pairs.shared)
    order = np.argsort(-iou, kind="stable")
    order = order[outside[pairs.detection[order]]]
    taken = order[one_to_one(pairs.at(order))]
    best, partner = np.zeros(len(care)), np.full(len(care), -1)
    best[pairs.truth[taken]], partner[pairs.truth[taken]] = iou[taken], pairs.detection[taken]
    found, truth, answer = [], 0, 0
    for mine, theirs in zip(wanted, given, strict=True):
        own = [truth + i for i, item in enumerate(mine) if not item.ignore]
        found.append(
            Paired(
                truths=[item for item in mine if not item.ignore],
                ignored=[item for item in mine if item.ignore],
                answers=theirs,
                ious=best[own].tolist(),
                partners=[None if at < 0 else at - answer for at in partner[own].tolist()],
                counts=outside[answer : answer + len(theirs)].tolist(),
            )
        )
        truth, answer = truth + len(mine), answer + len(theirs)
    return found


def mean_box(rows: Sequence[Paired]) -> Box | None:
    """Return the mean, corner by corner, of the boxes around all that is to be found."""
    boxes = [around(truth.shape) for row in rows for truth in row.truths]
    edges = [(box.x1, box.y1, box.x2, box.y2) for box in boxes]
    return Box(*np.mean(edges, axis=0).tolist()) if edges else None
