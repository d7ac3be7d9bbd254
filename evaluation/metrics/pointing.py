"""Metrics for points at several objects (PixMo-Points), or in a region (Where2Place, RefSpatial).

``f1``, ``precision``, ``recall``  answered points and objects are assigned one-to-one with the
    least sum of distances. A point is right if it is in the region of its object. Precision and
    recall of each row, and means over the rows; ``PointingEval`` of Molmo (allenai/molmo,
    olmo/eval/evaluators.py). If there is no object, they are 1 for an answer without points.
``in_region``  share of the answered points of a row that are in any of the regions, mean over the
    rows; robopoint/eval/summarize_vqa.py of RoboPoint, on Where2Place. That script leaves out
    answers that it cannot parse; here they have 0, as every metric of an unparseable answer.
``count_accuracy``, ``count_mae``  number of answered points next to the number of objects

A region is closed, in pixels that are not rounded (the scripts read a mask at a rounded pixel). Of
a region with a mask, the pixel of a point is looked up, as in RoboPoint's script.
Rows with an object that has no region only count in ``count_accuracy`` and ``count_mae``.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Instance, Instances, Point
from mm_numeric.evaluation.metrics.assignment import assign
from mm_numeric.evaluation.metrics.base import (
    Metric,
    RowColumns,
    Scorer,
    Success,
    mean_of,
    percentage,
    share_of,
    unparseable,
)
from mm_numeric.evaluation.metrics.matching import MatchedShapes
from mm_numeric.evaluation.metrics.points import contains, regions_of
from mm_numeric.geometry.row_shapes import centre, read_instances

_SHARES = ("f1", "precision", "recall", "in_region")


def score_points(
    predictions: Sequence[Instances | None], targets: Sequence[Instances]
) -> RowColumns:
    """Compare the points of each row with its objects; return columns with one value per row.

    Columns: ``f1``, ``precision``, ``recall``, ``in_region`` (0 to 1; 0 in a row that is not
    scored), ``scored``, ``same_count``, ``unreadable`` (0 or 1), ``count_error``.
    """
    rows = []
    for prediction, target in zip(predictions, targets, strict=True):
        regions = regions_of(target)
        points = [] if prediction is None else [i.shape.points[0] for i in prediction.items]
        scored = all(len(region.shape.points) > 1 for region in regions)
        shares = (0.0,) * 4 if prediction is None or not scored else _shares(points, regions)
        same = prediction is not None and len(points) == len(regions)
        rows.append([*shares, float(scored), float(same), abs(len(points) - len(regions))])
    names = (*_SHARES, "scored", "same_count", "count_error")
    values = np.array(rows, dtype=np.float64).reshape(-1, len(names)).T
    return {**dict(zip(names, values, strict=True)), "unreadable": unparseable(predictions)}


def _shares(points: Sequence[Point], regions: Sequence[Instance]) -> tuple[float, ...]:
    """Return F1, precision, recall, and the share of points in any region."""
    if not points or not regions:
        return (float(not points and not regions),) * 4
    pairs, inside = right_pairs(points, regions)
    hits = len(pairs)
    precision, recall = hits / len(points), hits / len(regions)
    f1 = 2 * hits / (len(points) + len(regions))
    return f1, precision, recall, float(inside.any(axis=1).mean())


def right_pairs(
    points: Sequence[Point], regions: Sequence[Instance]
) -> tuple[list[tuple[int, int]], NDArray[np.bool_]]:
    """Return the pairs of a point and the region assigned to it, if the point is in the region.

    Also return whether each point is in each region, [points, regions].
    """
    inside = np.zeros((len(points), len(regions)), dtype=np.bool_)
    if not inside.size:
        return [], inside
    for i, region in enumerate(regions):
        inside[:, i] = contains(region, points)
    annotated = [
        centre(region.shape) if region.point is None else region.point for region in regions
    ]
    return [pair for pair in assign(_distances(points, annotated)) if inside[pair]], inside


def match_points(row: Mapping[str, Any]) -> MatchedShapes:
    """Match the answered points of a row of ``scores.jsonl`` with its objects, for a drawing.

    The IoU of a matched object is 1. Of a click, only the first point counts.
    """
    target, answer = (
        read_instances({"instances": row[name] or []}, name, points=True)
        for name in ("target", "parsed")
    )
    truths = regions_of(target)
    answers = answer.items[:1] if "correct" in row else answer.items
    pairs, _ = right_pairs([item.shape.points[0] for item in answers], truths)
    partner = {region: point for point, region in pairs}
    return MatchedShapes(
        truths=truths,
        ignored=[item for item in target.items if item.ignore],
        answers=answers,
        ious=[float(i in partner) for i in range(len(truths))],
        partners=[partner.get(i) for i in range(len(truths))],
        counts=[True] * len(answers),
    )


def _distances(a: Sequence[Point], b: Sequence[Point]) -> NDArray[np.float64]:
    difference = np.array(a, dtype=np.float64)[:, None] - np.array(b, dtype=np.float64)
    return np.asarray(np.hypot(difference[..., 0], difference[..., 1]))


POINTS = Scorer(
    columns=score_points,
    metrics=(
        *(
            percentage(name, label, share_of(name, "scored", nothing=np.nan))
            for name, label in zip(
                _SHARES, ("F1", "precision", "recall", "points in a region"), strict=True
            )
        ),
        percentage("count_accuracy", "right count", mean_of("same_count")),
        Metric(
            name="count_mae",
            label="count MAE",
            unit="",
            higher_is_better=False,
            value=mean_of("count_error"),
            bounds=(0.0, math.inf),
        ),
        percentage("unreadable", "unreadable", good=False),
    ),
    by_category=("f1", "in_region", "count_accuracy"),
    success=Success(label="all objects, and nothing else", column="f1", scored="scored"),
    protocols={
        "f1, precision, recall": {
            "variant": "PointingEval of Molmo (olmo/eval/evaluators.py)",
            "matching": "least sum of distances between points and annotated points",
            "comparison": "the point lies in the closed region of its object",
            "no objects": "1 without a point, else 0",
            "unreadable answer": "0",
        },
        "in_region": {
            "variant": "RoboPoint's summarize_vqa.py on Where2Place",
            "masks": "the pixel that contains the point; grey pixels of a JPEG are in or out",
            "unreadable answer": "0; the script leaves it out",
        },
    },
)
"""Scorer for points at several objects."""
