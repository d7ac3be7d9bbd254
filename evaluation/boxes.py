"""Overlap of boxes and polygons, and how well one box is found.

IoU is the area that two shapes share over the area that either covers, in pixels of the original
picture, edges where they are: the box [0, 0, 10, 10] has an area of 100 (not 121, as tools say that
count its last pixel in). A box that could not be read has an IoU of 0 and is never left out. A
reversed box covers nothing. Acc@t is the share of rows with an IoU of at least t, as in RefCOCO's
scripts (which some write as more than t: for boxes in whole pixels that is rarely another figure).
"""

from collections.abc import Sequence

import numpy as np
import shapely
from numpy.typing import NDArray

from mm_numeric.answers import Box, Shape
from mm_numeric.evaluation.scorer import Metric, Scorer, mean_of

THRESHOLDS = (0.5, 0.75, 0.9)
"""Of Acc@t."""


def iou(prediction: Shape, target: Shape) -> float:
    """Return the IoU of two shapes, 0 to 1."""
    if isinstance(prediction, Box) and isinstance(target, Box):
        return float(box_ious([prediction], [target])[0])
    return float(polygon_ious([prediction], [target])[0])


def box_ious(predictions: Sequence[Box | None], targets: Sequence[Box]) -> NDArray[np.float64]:
    """Return the IoU of each pair, [n]; 0 for None.

    Args:
        predictions: None where the answer could not be read.
        targets: As many boxes.
    """
    if len(predictions) != len(targets):
        raise ValueError(f"{len(predictions)} predictions for {len(targets)} targets.")
    nowhere = Box(0.0, 0.0, 0.0, 0.0)
    a = _corners([nowhere if box is None else box for box in predictions])
    b = _corners(targets)
    sides = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
    shared = sides.clip(min=0).prod(axis=1)
    either = _areas(a) + _areas(b) - shared
    return np.divide(shared, either, out=np.zeros(len(a)), where=either > 0)


def polygon_ious(predictions: Sequence[Shape], targets: Sequence[Shape]) -> NDArray[np.float64]:
    """Return the IoU of each pair of shapes, [n]; a boundary that crosses itself is made valid."""
    a, b = (shapely.make_valid(np.array([_outline(s) for s in side])) for side in
            (predictions, targets))  # fmt: skip
    shared = shapely.area(shapely.intersection(a, b))
    either = shapely.area(a) + shapely.area(b) - shared
    return np.divide(shared, either, out=np.zeros(len(shared)), where=either > 0)


def score_boxes(
    predictions: Sequence[Box | None], targets: Sequence[Box]
) -> dict[str, NDArray[np.float64]]:
    """Judge each row.

    Args:
        predictions: None where the answer could not be read.
        targets: As many boxes.

    Returns:
        One value a row for each column: IoU, and 0 or 1 for the rest.
    """
    ious = box_ious(predictions, targets)
    right = {f"accuracy_at_{t:g}": (ious >= t).astype(np.float64) for t in THRESHOLDS}
    unreadable = np.array([box is None for box in predictions], dtype=np.float64)
    return {"iou": ious, **right, "unreadable": unreadable}


def size_of(target: Box) -> str:
    """Return COCO's name for the size of a box, by its area: small, medium or large."""
    area = (target.x2 - target.x1) * (target.y2 - target.y1)
    return "small" if area < 32**2 else "medium" if area < 96**2 else "large"


def _corners(boxes: Sequence[Box]) -> NDArray[np.float64]:
    rows = [(box.x1, box.y1, box.x2, box.y2) for box in boxes]
    return np.array(rows, dtype=np.float64).reshape(len(boxes), 4)


def _areas(corners: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return areas, [n]; 0 for a reversed box."""
    sides: NDArray[np.float64] = (corners[:, 2:] - corners[:, :2]).clip(min=0)
    return sides.prod(axis=1)


def _outline(shape: Shape) -> shapely.Geometry:
    if isinstance(shape, Box):
        return shapely.box(shape.x1, shape.y1, shape.x2, shape.y2)
    return shapely.Polygon(shape.points) if len(shape.points) > 2 else shapely.Polygon()


BOXES = Scorer(
    columns=score_boxes,
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
"""One box a row: grounding."""
