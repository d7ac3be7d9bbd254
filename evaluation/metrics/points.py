"""Metrics for clicks on one element of a screen (ScreenSpot v1, v2, Pro; OSWorld-G).

``accuracy`` is the share of clicks in the closed region of the element, and of empty answers where
there is none, as ``eval_sample_positive_gt`` and ``eval_sample_negative_gt`` of ScreenSpot-Pro,
eval_screenspot_pro.py. An unparseable answer is wrong (``wrong_format`` there). A group, such as
icons, has the share over its rows. VLMEvalKit weighs the platforms of a group by the square of
their size: 10 right of 10 and 0 right of 30 are 10 %, instead of 25 %.

The first point of an answer counts. Points are in pixels, not rounded.
"""

from collections.abc import Sequence

import numpy as np
import shapely
from numpy.typing import NDArray

from mm_numeric.answers import Box, Instance, Instances, Point
from mm_numeric.evaluation.metrics.base import (
    RowColumns,
    Scorer,
    Success,
    mean_of,
    percentage,
    share_of,
    unparseable,
)
from mm_numeric.evaluation.metrics.polygon_iou import collect_shapes
from mm_numeric.geometry.masks import mask_contains


def contains(region: Instance, points: Sequence[Point]) -> NDArray[np.bool_]:
    """Return for each point, in pixels, True if it is in the closed region of an object.

    Of a region with a mask, the pixels of the mask count. A region without an area contains no
    point.
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
    """Compare one click per row with the element; return columns with one value per row, 0 or 1.

    Columns: ``correct``, ``unreadable``; ``present`` and ``absent``, whether there is an element;
    ``right_present`` and ``right_absent``, the same if the answer is correct.
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
        percentage(
            "present_accuracy",
            "element present",
            share_of("right_present", "present", nothing=np.nan),
        ),
        percentage(
            "absent_accuracy", "element absent", share_of("right_absent", "absent", nothing=np.nan)
        ),
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
        },
    },
)
"""Scorer for clicks on one element."""
