"""Match the objects of many candidate lists with the objects of many true lists at once.

For each pair of lists, the matches are those that the detection scorer uses for F1, but each shape
is converted only once.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from mm_numeric.answers import Instances
from mm_numeric.evaluation.metrics.polygon_iou import (
    Pairs,
    Shapes,
    collect_shapes,
    greedy_one_to_one,
    ious,
    overlapping_pairs,
)
from mm_numeric.inference.number_distribution import Floats, Ints


def matched_objects(
    candidates: Sequence[Instances], truths: Sequence[Instances], threshold: float
) -> tuple[Ints, Ints, Floats]:
    """Match the objects of each candidate list with the objects of each true list.

    For each pair of a candidate and a true list, objects with the same label and an IoU of at least
    ``threshold`` are matched one-to-one, greedily by decreasing IoU. Returns three arrays with one
    entry for each match: the index of the object among the objects of all candidates, the index of
    the true list, and the IoU.
    """
    labels = {item.label: None for answer in (*candidates, *truths) for item in answer.items}
    (detections, at), (objects, true_at) = (
        _by_label(side, labels) for side in (candidates, truths)
    )
    found = overlapping_pairs(detections, objects)
    iou = ious(detections, objects, found)
    order = np.argsort(-iou, kind="stable")
    order = order[iou[order] >= threshold]
    found = found.select(order)
    pairs = Pairs(at[found.detection], true_at[found.truth], found.intersection)
    candidate, truth = owners(candidates)[pairs.detection], owners(truths)[pairs.truth]
    # An object can be matched once for each pair of lists, so it has an index for each pair.
    slots = Pairs(
        pairs.detection * len(truths) + truth,
        pairs.truth * len(candidates) + candidate,
        pairs.intersection,
    )
    matched = greedy_one_to_one(slots)
    return pairs.detection[matched], truth[matched], iou[order][matched]


def _by_label(answers: Sequence[Instances], labels: Iterable[str]) -> tuple[Shapes, Ints]:
    """Return the shapes of all objects, grouped by label, and the index of each shape's object."""
    items = [item for answer in answers for item in answer.items]
    groups: dict[str, list[int]] = {label: [] for label in labels}
    for index, item in enumerate(items):
        groups[item.label].append(index)
    shapes = collect_shapes([[items[i].shape for i in own] for own in groups.values()])
    return shapes, np.array([i for own in groups.values() for i in own], np.int64)


def owners(answers: Sequence[Instances]) -> Ints:
    """Return, for each object of all lists in turn, the index of its list, [objects]."""
    return np.repeat(np.arange(len(answers)), [len(answer.items) for answer in answers])
