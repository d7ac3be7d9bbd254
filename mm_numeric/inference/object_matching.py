"""Match the objects of many lists with those of many other lists at once.

The result is equal to that of the detection scorer (``f1_at_T``) for each pair of lists, but each
shape is converted only once.
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
    """Match the objects of each candidate with those of each truth, as the detection scorer does.

    Objects with the same label and an IoU of at least ``threshold`` are matched one-to-one,
    greedily by decreasing IoU, separately for each candidate and truth. Returns for each of m pairs
    the index of the object among the objects of all candidates, the index of the truth, and the
    IoU.
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
    # An object can be matched once in each (candidate, truth), hence one index for each of these.
    slots = Pairs(
        pairs.detection * len(truths) + truth,
        pairs.truth * len(candidates) + candidate,
        pairs.intersection,
    )
    matched = greedy_one_to_one(slots)
    return pairs.detection[matched], truth[matched], iou[order][matched]


def _by_label(answers: Sequence[Instances], labels: Iterable[str]) -> tuple[Shapes, Ints]:
    """Return the shapes of all objects, sorted by label, and the index of the object of each."""
    items = [item for answer in answers for item in answer.items]
    groups: dict[str, list[int]] = {label: [] for label in labels}
    for index, item in enumerate(items):
        groups[item.label].append(index)
    shapes = collect_shapes([[items[i].shape for i in own] for own in groups.values()])
    return shapes, np.array([i for own in groups.values() for i in own], np.int64)


def owners(answers: Sequence[Instances]) -> Ints:
    """Return, for each object in a sequence of lists, the index of its list, [objects]."""
    return np.repeat(np.arange(len(answers)), [len(answer.items) for answer in answers])
