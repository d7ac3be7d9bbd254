"""Metrics for one box or polygon per row: IoU and Acc@t; ``BOXES`` has the rules of each metric.

Coordinates are continuous, in pixels of the original image: the box [0, 0, 10, 10] has area 100,
not 121 as in tools that include the last pixel. Some of RefCOCO's scripts use IoU > t, not >= t.
"""

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Box, Shape
from mm_numeric.evaluation.metrics.base import (
    THRESHOLDS,
    UNREADABLE,
    Columns,
    RowColumns,
    Scorer,
    Success,
    mean_of,
    percentage,
    unparseable,
)
from mm_numeric.evaluation.metrics.polygon_iou import (
    Pairs,
    collect_shapes,
    intersection_areas,
    ious,
)

SIZES = ("small", "medium", "large")
SIZE_LIMITS_PX = (32**2, 96**2)
"""Smallest area of a medium and of a large shape as defined by COCO, in square pixels."""


def iou(prediction: Shape, target: Shape) -> float:
    """Compute the intersection over union of two shapes, 0 to 1."""
    return float(shape_ious([prediction], [target])[0])


def shape_ious(
    predictions: Sequence[Shape | None], targets: Sequence[Shape]
) -> NDArray[np.float64]:
    """Return the IoU of each ``predictions[i]`` with ``targets[i]``; 0 for a prediction of None."""
    if len(predictions) != len(targets):
        raise ValueError(f"{len(predictions)} predictions for {len(targets)} targets.")
    is_read = np.array([prediction is not None for prediction in predictions], dtype=np.bool_)
    a = collect_shapes([[prediction for prediction in predictions if prediction is not None]])
    b = collect_shapes([list(compress(targets, is_read))])
    at = np.arange(len(a.areas))
    values = np.zeros(len(targets))
    values[is_read] = ious(a, b, Pairs(at, at, intersection_areas(a, at, b, at)))
    return values


def score_shapes(predictions: Sequence[Shape | None], targets: Sequence[Shape]) -> RowColumns:
    """Compare one predicted shape per row with the true shape; return columns with a value per row.

    The column ``iou`` is from 0 to 1. ``accuracy_at_t`` (IoU >= t) and ``unreadable`` are 0 or 1.
    """
    ious = shape_ious(predictions, targets)
    accuracies = {f"accuracy_at_{t:g}": (ious >= t).astype(np.float64) for t in THRESHOLDS}
    return {"iou": ious, **accuracies, "unreadable": unparseable(predictions)}


def mean_iou_at_success(columns: Columns) -> Any:
    """Compute the mean IoU of the rows with IoU >= 0.5; nan if there are no such rows."""
    success = columns[f"accuracy_at_{THRESHOLDS[0]:g}"]
    count = np.asarray(success.sum(axis=-1))
    total = (columns["iou"] * success).sum(axis=-1)
    return np.divide(total, count, out=np.full_like(count, np.nan), where=count > 0)


def size_of(target: Shape) -> str:
    """Return COCO's size class of a shape: ``small``, ``medium`` or ``large``."""
    return size_name(float(collect_shapes([[target]]).areas[0]))


def size_name(area: float) -> str:
    """Return COCO's size class of an area: ``small`` (< 32^2), ``medium`` (< 96^2) or ``large``."""
    return SIZES[int(np.digitize(area, SIZE_LIMITS_PX))]


def lenient_box(shape: Shape | None, size_px: tuple[int, int] | None) -> Shape | None:
    """Swap the corners of a reversed box, and clip the box to the image.

    The box is not clipped if ``size_px`` (width and height of the image) is None. Polygons, and
    None for an unparseable answer, are returned unchanged.
    """
    if not isinstance(shape, Box):
        return shape
    xs, ys = sorted((shape.x1, shape.x2)), sorted((shape.y1, shape.y2))
    if size_px is not None:
        xs, ys = (
            [min(max(at, 0), edge) for at in side]
            for side, edge in zip((xs, ys), size_px, strict=True)
        )
    return Box(xs[0], ys[0], xs[1], ys[1])


BOXES = Scorer(
    columns=score_shapes,
    metrics=(
        *(percentage(f"accuracy_at_{t:g}", f"Acc@{t:g}") for t in THRESHOLDS),
        percentage("mean_iou", "mean IoU", mean_of("iou")),
        percentage("mean_iou_at_success", "mean IoU at success", mean_iou_at_success),
        UNREADABLE,
        *(percentage(f"lenient_accuracy_at_{t:g}", f"lenient Acc@{t:g}") for t in THRESHOLDS),
        percentage("lenient_mean_iou", "lenient mean IoU", mean_of("lenient_iou")),
    ),
    buckets={"size": size_of},
    protocols={
        "accuracy_at_*, mean_iou": {
            "variant": "RefCOCO, RefCOCO+, RefCOCOg: Acc@t over sentences",
            "thresholds": list(THRESHOLDS),
            "comparison": "IoU >= t",
            "matching": "the first box of the answer (VLM-R1's script takes the last one)",
            "clipping": "none",
            "reversed corners": "an unparseable answer",
            "unreadable answer": "IoU 0; it stays in the mean",
        },
        "mean_iou_at_success": {"variant": "mean IoU of the rows with IoU >= 0.5"},
        "lenient_*": {
            "variant": "the same, for a lenient reading of the answer",
            "clipping": "to the image, if its size is stored with the prediction",
            "reversed corners": "swapped",
        },
    },
    success=Success(label="IoU of at least 0.5", column="iou", least=THRESHOLDS[0]),
    lenient=lenient_box,
)
"""Scorer for answers that are one shape, as in visual grounding."""
