"""Metrics for points at several objects or in a region, and for clicks on one element of a screen.

``POINTS`` has the rules for points at several objects (PixMo-Points) or in a region (Where2Place,
RefSpatial). All metrics are means over the rows. A region includes its boundary, and points are not
rounded (the scripts of Molmo and RoboPoint read a mask at a rounded pixel). If a region has a mask,
a point is inside if the mask contains its pixel, as in RoboPoint's script. Rows with an object that
has no region only count in ``count_accuracy`` and ``count_mae``.

``CLICKS`` has the rules for clicks (ScreenSpot v1, v2, Pro; OSWorld-G), from the functions
``eval_sample_positive_gt`` and ``eval_sample_negative_gt`` of ScreenSpot-Pro,
eval_screenspot_pro.py. VLMEvalKit averages the platforms in a group, such as icons, differently: a
platform's weight is its squared size. 10 of 10 right and 0 of 30 right are 10 % instead of 25 %.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from mm_numeric.answers import Box, Instance, Instances, Point
from mm_numeric.evaluation.metrics import repeats
from mm_numeric.evaluation.metrics.base import (
    UNREADABLE,
    RowColumns,
    Scorer,
    Success,
    error_metric,
    mean_of,
    part_of,
    percentage,
    unparseable,
)
from mm_numeric.evaluation.metrics.matching import MatchedShapes
from mm_numeric.evaluation.metrics.polygon_iou import collect_shapes
from mm_numeric.geometry.masks import mask_contains
from mm_numeric.geometry.row_shapes import centre, read_instances


def contains(region: Instance, points: Sequence[Point]) -> NDArray[np.bool_]:
    """Return True for each point, in pixels, that is in the region of an object or on its boundary.

    If the region has a mask, the mask decides. A region without an area contains no point.
    """
    x, y = np.array(points, dtype=np.float64).reshape(-1, 2).T
    if region.mask is not None:
        return mask_contains(region.mask, x, y)
    shape = region.shape
    if isinstance(shape, Box):
        return (shape.x1 <= x) & (x <= shape.x2) & (shape.y1 <= y) & (y <= shape.y2)
    geometry = collect_shapes([[shape]]).polygons[0]
    return np.asarray(shapely.covers(geometry, shapely.points(x, y)), dtype=np.bool_)


def regions_of(target: Instances) -> list[Instance]:
    """Return the regions of a target that are not ignored."""
    return [item for item in target.items if not item.ignore]


def score_clicks(
    predictions: Sequence[Instances | None], targets: Sequence[Instances]
) -> RowColumns:
    """Compare one click per row with the element; return columns of 0 or 1 with one value per row.

    A correct answer has ``right_present`` 1 if there is an element, and ``right_absent`` 1 if not.
    """
    absent = np.array([not regions_of(target) for target in targets], dtype=np.float64)
    correct = np.array(
        [float(_is_right(p, regions_of(t))) for p, t in zip(predictions, targets, strict=True)]
    )
    return {
        "correct": correct,
        "present": 1 - absent,
        "right_present": correct * (1 - absent),
        "absent": absent,
        "right_absent": correct * absent,
        "unreadable": unparseable(predictions),
    }


def _is_right(prediction: Instances | None, regions: Sequence[Instance]) -> bool:
    if prediction is None:
        return False
    if not regions or not prediction.items:
        return not regions and not prediction.items
    return bool(contains(regions[0], prediction.items[0].shape.points[:1])[0])


CLICKS = Scorer(
    columns=score_clicks,
    metrics=(
        percentage("accuracy", "accuracy", mean_of("correct")),
        percentage("present_accuracy", "element present", part_of("right_present", "present")),
        percentage("absent_accuracy", "element absent", part_of("right_absent", "absent")),
        percentage("unreadable", "wrong format", good=False),
    ),
    success=Success(label="in the element", column="correct"),
    protocols={
        "accuracy": {
            "variant": "ScreenSpot-Pro, eval_screenspot_pro.py: the point lies in the closed box",
            "matching": "the first point of the answer; of a box, its centre",
            "element absent": "correct if the answer has no point",
            "groups": "the share over the rows of a group",
            "unreadable answer": "wrong",
        }
    },
)
"""Scorer for clicks on one element."""


_SHARES = {
    "f1": "F1",
    "precision": "precision",
    "recall": "recall",
    "in_region": "points in a region",
}


def score_points(
    predictions: Sequence[Instances | None], targets: Sequence[Instances]
) -> RowColumns:
    """Compare the points of each row with its objects; return columns with one value per row.

    If an object has no region, ``scored``, F1, precision, recall and ``in_region`` are 0.
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
    columns = dict(zip(names, values, strict=True))
    return columns | {"unreadable": unparseable(predictions)} | repeats.columns_of(predictions)


def _shares(points: Sequence[Point], regions: Sequence[Instance]) -> tuple[float, ...]:
    """Return F1, precision, recall, and the share of points that are in any region."""
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
    """Assign points to regions one-to-one, by the smallest sum of distances.

    Return the pairs (point, region) whose point is in the region, and a mask, [points, regions]:
    True if the point is in the region.
    """
    inside = np.zeros((len(points), len(regions)), dtype=np.bool_)
    if not inside.size:
        return [], inside
    for i, region in enumerate(regions):
        inside[:, i] = contains(region, points)
    annotated = np.array([region.point or centre(region.shape) for region in regions])
    between = np.array(points)[:, None] - annotated
    apart = np.hypot(between[..., 0], between[..., 1])
    return [pair for pair in assign(apart) if inside[pair]], inside


def match_points(row: Mapping[str, Any]) -> MatchedShapes:
    """Match the answered points of a row of ``scores.jsonl`` with its objects, for a drawing.

    The IoU of a matched object is 1. For a click, only the first point counts.
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


POINTS = Scorer(
    columns=score_points,
    metrics=(
        *(percentage(name, label, part_of(name, "scored")) for name, label in _SHARES.items()),
        percentage("count_accuracy", "right count", mean_of("same_count")),
        error_metric("count_mae", "count MAE", "", mean_of("count_error")),
        UNREADABLE,
        *repeats.METRICS,
    ),
    largest=repeats.LARGEST,
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
            "boxes": "their centre; the script takes each pixel of a box",
            "masks": "the pixel that contains the point; grey pixels of a JPEG are in or out",
            "unreadable answer": "0; the script leaves it out",
        },
        **repeats.RULES,
    },
)
"""Scorer for points at several objects."""


def assign(costs: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return the pairs (row, column) with the least sum of costs, sorted by row.

    This is the Hungarian algorithm with shortest augmenting paths, as in scipy. ``costs`` is [rows,
    columns] and finite. The result has min(rows, columns) pairs.
    """
    rows, columns = costs.shape
    if rows > columns:
        return sorted((row, column) for column, row in assign(costs.T))
    of_row, of_column = np.zeros(rows + 1), np.zeros(columns + 1)  # potentials; index 0 is unused
    owner = np.zeros(columns + 1, dtype=np.int64)  # row of each column, from 1; 0 if unassigned
    for row in range(1, rows + 1):
        owner[0], column = row, 0
        shortest, before = np.full(columns + 1, np.inf), np.zeros(columns + 1, dtype=np.int64)
        used = np.zeros(columns + 1, dtype=np.bool_)
        while owner[column]:
            used[column] = True
            at = owner[column]
            reduced = costs[at - 1] - of_row[at] - of_column[1:]
            is_shorter = ~used[1:] & (reduced < shortest[1:])
            shortest[1:][is_shorter] = reduced[is_shorter]
            before[1:][is_shorter] = column
            nearest = int(np.where(used, np.inf, shortest)[1:].argmin()) + 1
            step = shortest[nearest]
            of_row[owner[used]] += step
            of_column[used] -= step
            shortest[~used] -= step
            column = nearest
        while column:
            owner[column] = owner[before[column]]
            column = before[column]
    return sorted((int(owner[c]) - 1, c - 1) for c in range(1, columns + 1) if owner[c])
