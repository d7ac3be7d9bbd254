"""Overlap of boxes and polygons, and how well one of them is found.

IoU is the area that two shapes share over the area that either covers, in pixels of the original
image, edges where they are: the box [0, 0, 10, 10] has an area of 100 (not 121, as tools say that
count its last pixel in). A box that could not be read has an IoU of 0 and is never left out. A
reversed box covers nothing. Acc@t is the share of rows with an IoU of at least t, as in RefCOCO's
scripts (which some write as more than t: for boxes in whole pixels that is rarely another figure).
The ``lenient`` figures are of the same answers with reversed corners swapped and clipped to the
image; they stand beside the strict ones and never in their place.
"""

from collections.abc import Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Box, Shape
from mm_numeric.evaluation.metrics.base import Metric, Scorer, mean_of
from mm_numeric.evaluation.metrics.polygon_iou import gather, ious, shared_areas

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


def lenient_box(shape: Shape | None, size_px: tuple[int, int] | None) -> Shape | None:
    """Return a box with its corners in their order and moved into the image.

    Args:
        shape: A box; another shape, or None, is returned as it is.
        size_px: Width and height of the image; nothing is moved where they are not known.
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


def _share(column: str, label: str, *, good: bool = True) -> Metric:
    name = column.replace("iou", "mean_iou")
    return Metric(name=name, label=label, unit="%", higher_is_better=good, value=mean_of(column))


BOXES = Scorer(
    columns=score_shapes,
    metrics=(
        *(_share(f"accuracy_at_{t:g}", f"Acc@{t:g}") for t in THRESHOLDS),
        _share("iou", "mean IoU"),
        _share("unreadable", "unreadable", good=False),
        *(_share(f"lenient_accuracy_at_{t:g}", f"lenient Acc@{t:g}") for t in THRESHOLDS),
        _share("lenient_iou", "lenient mean IoU"),
    ),
    buckets={"size": size_of},
    protocols={
        "accuracy_at_*, mean_iou": {
            "variant": "RefCOCO, RefCOCO+, RefCOCOg: Acc@t over sentences",
            "thresholds": list(THRESHOLDS),
            "comparison": "IoU >= t",
            "matching": "the first box of the answer",
            "clipping": "none",
            "reversed corners": "an unreadable answer",
            "unreadable answer": "IoU 0; it stays in the mean",
        },
        "lenient_*": {
            "variant": "the same, of a kinder reading",
            "clipping": "to the image, where its size is written beside the prediction",
            "reversed corners": "swapped",
        },
    },
    lenient=lenient_box,
)
"""One shape a row: grounding."""
