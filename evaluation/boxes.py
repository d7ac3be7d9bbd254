"""Overlap of boxes and polygons, and how well one of them is found.

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
    found = np.zeros(len(targets))
    boxes: list[tuple[int, Box, Box]] = []
    others: list[tuple[int, Shape, Shape]] = []
    for i, (prediction, target) in enumerate(zip(predictions, targets, strict=True)):
        if isinstance(prediction, Box) and isinstance(target, Box):
            boxes.append((i, prediction, target))
        elif prediction is not None:
            others.append((i, prediction, target))
    if boxes:
        rows, a, b = zip(*boxes, strict=True)
        found[list(rows)] = box_ious(a, b)
    if others:
        rows, c, d = zip(*others, strict=True)
        found[list(rows)] = polygon_ious(c, d)
    return found


def box_ious(predictions: Sequence[Box], targets: Sequence[Box]) -> NDArray[np.float64]:
    """Return the IoU of each pair of boxes, [n]."""
    a, b = _corners(predictions), _corners(targets)
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
    area = shapely.area(_outline(target))
    return "small" if area < 32**2 else "medium" if area < 96**2 else "large"


def _corners(boxes: Sequence[Box]) -> NDArray[np.float64]:
    rows = [(box.x1, box.y1, box.x2, box.y2) for box in boxes]
    return np.array(rows, dtype=np.float64).reshape(len(boxes), 4)


def _areas(corners: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return areas, [n]; 0 for a reversed box."""
    sides: NDArray[np.float64] = (corners[:, 2:] - corners[:, :2]).clip(min=0)
    return sides.prod(axis=1)


def _outline(shape: Shape) -> shapely.Geometry:
    if len(shape.points) > 2:
        return shapely.Polygon(shape.points)
    if isinstance(shape, Box) and shape.x1 <= shape.x2 and shape.y1 <= shape.y2:
        return shapely.box(shape.x1, shape.y1, shape.x2, shape.y2)
    return shapely.Polygon()  # of a reversed box too, which shapely would turn round


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
