"""Find repeated shapes in an answer, and compute the metrics of repetition.

A predicted shape is a duplicate if its IoU with an earlier shape of the same label in the same
answer is at least ``DUPLICATE_IOU``, or if both have equal coordinates (for points and boxes
without area). A run is a sequence of shapes in which each shape repeats the shape before it.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from mm_numeric.answers import Instance, Instances, Shape
from mm_numeric.evaluation.metrics.base import (
    RowColumns,
    error_metric,
    mean_of,
    part_of,
    percentage,
)
from mm_numeric.evaluation.metrics.polygon_iou import (
    Bools,
    Ints,
    Pairs,
    collect_shapes,
    intersection_areas,
    ious,
    pairs_in_groups,
)

DUPLICATE_IOU = 0.9
"""Least IoU of a duplicate: different objects of one label rarely overlap so much, but a copy that
is shifted by 5 % of its width does."""

TRUNCATED = "truncated"
"""Column, and field of rows: 1 or True if the answer was truncated at the token limit."""


def find_duplicates(
    answers: Sequence[Sequence[Instance]], least_iou: float = DUPLICATE_IOU
) -> tuple[Bools, Bools]:
    """Return two masks, [s], of all s shapes: duplicates, and repeats of the previous shape.

    The shapes are in the order of the answers. ``least_iou`` must be above 0.
    """
    items = list(chain.from_iterable(answers))
    shapes = collect_shapes([[item.shape for item in own] for own in answers])
    image, labels = shapes.image, np.array([item.label for item in items], dtype=object)
    firsts = dict[tuple[int, str, Shape], int]()
    keys = ((at, item.label, item.shape) for at, item in zip(image.tolist(), items, strict=True))
    first = np.array([firsts.setdefault(key, i) for i, key in enumerate(keys)], dtype=np.int64)
    is_duplicate, repeats = first < np.arange(len(items)), np.zeros(len(items), dtype=np.bool_)

    def close(later: Ints, earlier: Ints) -> Ints:
        """Return ``later`` indices of shapes that repeat those at the same ``earlier`` place."""
        chosen = (earlier < later) & (labels[later] == labels[earlier]).astype(np.bool_)
        later, earlier = later[chosen], earlier[chosen]
        areas = intersection_areas(shapes, later, shapes, earlier)
        is_close = ious(shapes, shapes, Pairs(later, earlier, areas)) >= least_iou
        return later[is_close | (first[later] == first[earlier])]

    distinct = np.flatnonzero(~is_duplicate)  # saves time: an answer may have very many copies
    for later, earlier in pairs_in_groups(image[distinct], image[distinct]):
        is_duplicate[close(distinct[later], distinct[earlier])] = True
    after = np.flatnonzero(image[1:] == image[:-1]) + 1
    repeats[close(after, after - 1)] = True
    return is_duplicate, repeats


def columns_of(predictions: Sequence[Instances | None]) -> RowColumns:
    """Return columns with the duplicates of each answer and the length of its longest run.

    ``TRUNCATED`` and ``end_known`` (1 if the row has ``truncated``) are 0; ``score`` fills them.
    """
    answers = [() if prediction is None else prediction.items for prediction in predictions]
    is_duplicate, repeats = find_duplicates(answers)
    image = np.repeat(np.arange(len(answers)), list(map(len, answers)))
    position = np.arange(len(image))
    runs = position - np.maximum.accumulate(np.where(repeats, 0, position)) + 1
    longest = np.zeros(len(answers))
    np.maximum.at(longest, image, runs)
    duplicates = np.bincount(image[is_duplicate], minlength=len(answers)).astype(np.float64)
    unknown = {name: np.zeros(len(answers)) for name in (TRUNCATED, "end_known")}
    return {"duplicates": duplicates, "longest_run": longest, **unknown}


METRICS = (
    error_metric("duplicates", "duplicates per answer", "", mean_of("duplicates")),
    percentage(TRUNCATED, "truncated answers", part_of(TRUNCATED, "end_known"), good=False),
)

LARGEST = {"longest run of one shape": "longest_run"}
"""Value of ``Scorer.largest`` for scorers that use these columns."""

RULES = {
    "duplicates": {
        "thresholds": [DUPLICATE_IOU],
        "comparison": "IoU >= t with an earlier shape of the label, or equal coordinates",
    }
}
