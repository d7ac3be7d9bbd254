"""Match the objects of many lists with those of many other lists at once.

The result is that of the detection scorer (``f1_at_T``) for each pair of lists, but shapes are
converted once, and only objects that are close to each other are intersected.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Instances
from mm_numeric.evaluation.metrics.polygon_iou import (
    Pairs,
    Shapes,
    bounds_intersection_areas,
    collect_shapes,
    greedy_one_to_one,
    intersection_areas,
    ious,
    pairs_in_groups,
)

Ints = NDArray[np.int64]


def matched_objects(
    candidates: Sequence[Instances], truths: Sequence[Instances], threshold: float
) -> tuple[Ints, Ints]:
    """Match the objects of each candidate with those of each truth, as the detection scorer does.

    Objects with the same label and an IoU of at least ``threshold`` are matched one-to-one,
    greedily by decreasing IoU, separately for each candidate and truth.

    Returns:
        Two arrays [m] with one entry per matched pair of objects: the index of the object among
        the objects of all candidates, and the index of the truth.
    """
    detections, objects = (
        collect_shapes([[item.shape for answer in answers for item in answer.items]])
        for answers in (candidates, truths)
    )
    texts = [item.label for answer in (*candidates, *truths) for item in answer.items]
    labels = np.unique(np.array(texts, dtype=object), return_inverse=True)[1].astype(np.int64)
    at = _close_pairs(detections, objects, labels, threshold)
    pairs = Pairs(*at, intersection_areas(detections, at[0], objects, at[1]))
    iou = ious(detections, objects, pairs)
    order = np.argsort(-iou, kind="stable")
    pairs = pairs.select(order[iou[order] >= threshold])
    candidate, truth = owners(candidates)[pairs.detection], owners(truths)[pairs.truth]
    # An object can be matched once in each (candidate, truth), hence one index for each of these.
    slots = Pairs(
        pairs.detection * len(truths) + truth,
        pairs.truth * len(candidates) + candidate,
        pairs.intersection,
    )
    matched = greedy_one_to_one(slots)
    return pairs.detection[matched], truth[matched]


def _close_pairs(
    detections: Shapes, truths: Shapes, labels: Ints, threshold: float
) -> tuple[Ints, Ints]:
    """Find the pairs that may have an IoU of at least ``threshold``, by their bounding boxes.

    The exact intersection of two polygons is slow to compute, and few pairs are close enough.

    Args:
        detections: All objects of the candidates.
        truths: All objects of the truths.
        labels: Number of the label of each detection, then of each truth; only objects with the
            same number are paired.
        threshold: Smallest IoU of interest.

    Returns:
        Index of the detection and of the truth of each pair, [p] and [p].
    """
    of_detection, of_truth = np.split(labels, [len(detections.areas)])
    by_label = np.argsort(of_detection, kind="stable"), np.argsort(of_truth, kind="stable")
    kept = [(by_label[0][:0], by_label[1][:0])]
    groups = pairs_in_groups(of_detection[by_label[0]], of_truth[by_label[1]])
    for detection, truth in ((by_label[0][a], by_label[1][b]) for a, b in groups):
        largest = bounds_intersection_areas(detections, detection, truths, truth)
        areas = detections.areas[detection] + truths.areas[truth]
        close = (largest > 0) & (largest >= (threshold - 1e-9) * (areas - largest))
        kept.append((detection[close], truth[close]))
    detection, truth = (np.concatenate(side) for side in zip(*kept, strict=True))
    return detection, truth


def owners(answers: Sequence[Instances]) -> Ints:
    """Return, for each object in a sequence of lists, the index of its list, [objects]."""
    return np.repeat(np.arange(len(answers)), [len(answer.items) for answer in answers])
