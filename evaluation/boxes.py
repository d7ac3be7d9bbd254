"""Overlap of boxes and polygons, and how well one of them is found.

IoU is the area that two shapes share over the area that either covers, in pixels of the original
picture, edges where they are: the box [0, 0, 10, 10] has an area of 100 (not 121, as tools say that
count its last pixel in). A box that could not be read has an IoU of 0 and is never left out. A
reversed box covers nothing. Acc@t is the share of rows with an IoU of at least t, as in RefCOCO's
scripts (which some write as more than t: for boxes in whole pixels that is rarely another figure).
"""

from collections.abc import Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Shape
from mm_numeric.evaluation.overlaps import gather, ious, shared_areas
from mm_numeric.evaluation.scorer import Metric, Scorer, mean_of

THRESHOLDS = (0.5, 0.75, 0.9)
"""Of Acc@t."""

SIZES = ("small", "medium", "large")
SIZE_LIMITS_PX = (32**2, 96**2)
"""COCO's areas from which a shape is medium, and large."""


def iou(prediction: Shape, target: Shape) -> float:
    """Return the IoU of two shapes, 0 to 1."""
    return float(shape_ious([prediction], [target])[0])


def shape_ious(
    predictions: Sequence[Shape | None], targets: Sequence[Shape]
) -> NDArray[np.float64]:
    """Return the IoU of each pair, [n]; 0 for None.

    Args:
        predictions: None where the answer could not be read.
        targets: As many shapes.
    """
    if len(predictions) != len(targets):
        raise ValueError(f"{len(predictions)} predictions for {len(targets)} targets.")
    is_read = np.array([prediction is not None for prediction in predictions], dtype=np.bool_)
    a = gather([[prediction for prediction in predictions if prediction is not None]])
    b = gather([list(compress(targets, is_read))])
    pairs = np.arange(len(a.areas))
    found = np.zeros(len(targets))
    found[is_read] = ious(a, pairs, b, pairs, shared_areas(a, pairs, b, pairs))
    return found


def score_shapes(
    predictions: Sequence[Shape | None], targets: Sequence[Shape]
) -> dict[str, NDArray[np.float64]]:
    """Judge each pair.

    Args:
        predictions: None where the answer could not be read.
        targets: As many shapes.

    Returns:
        One value a row for each column: IoU, and 0 or 1 for the rest.
    """
    ious = shape_ious(predictions, targets)
    right = {f"accuracy_at_{t:g}": (ious >= t).astype(np.float64) for t in THRESHOLDS}
    unreadable = np.array([shape is None for shape in predictions], dtype=np.float64)
    return {"iou": ious, **right, "unreadable": unreadable}


def size_of(target: Shape) -> str:
    """Return COCO's name for the size of a shape, by its area: small, medium or large."""
    return size_name(float(gather([[target]]).areas[0]))


def size_name(area: float) -> str:
    """Return COCO's name for an area in pixels."""
    return SIZES[int(np.digitize(area, SIZE_LIMITS_PX))]


BOXES = Scorer(
    columns=score_shapes,
    metrics=(
        *(
            Metric(
                name=f"accuracy_at_{t:g}",
                label=f"Acc@{t:g}",
                unit="%",
                higher_is_better=True,
                value=mean_of(f"accuracy_at_{t:g}"),
            )
            for t in THRESHOLDS
        ),
        Metric(
            name="mean_iou",
            label="mean IoU",
            unit="%",
            higher_is_better=True,
            value=mean_of("iou"),
        ),
        Metric(
            name="unreadable",
            label="unreadable",
            unit="%",
            higher_is_better=False,
            value=mean_of("unreadable"),
        ),
    ),
    buckets={"size": size_of},
)
"""One shape a row: grounding."""
