"""Match detections to true shapes as pycocotools does, for all images and labels at once.

A detection can only match a true shape (truth) with the same image and label. So the first step can
match the most confident detection of every image and label at once, without a loop over images. The
second step matches the second most confident detections, and so on.

Shapes  [d] detections, [g] truths, [p] overlapping pairs, [a] area ranges, [t] IoU thresholds
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mm_numeric.evaluation.metrics.polygon_iou import Bools, Floats, Ints, pairs_in_groups

IouOfPairs = Callable[[Ints, Ints], Floats]
"""Function that returns the IoU of each pair, [p], given indices of detections and of truths."""

_MOST_MATCHED = 20_000  # detections per step, which bounds the memory
_HIGHEST_THRESHOLD = 1 - 1e-10  # as in pycocotools, so that a threshold of 1 can be reached


@dataclass(frozen=True)
class Side:
    """All detections, or all true shapes, of a data set as arrays, in the order of the file."""

    image: Ints
    """Index of the image, [d] or [g]; images are ordered as pycocotools sorts their ids."""

    label: Ints
    """Index of the label, [d] or [g]."""

    areas: Floats
    """Area in square pixels, [d] or [g]."""

    scores: Floats
    """Confidence of each detection, [d]; not used for truths."""

    crowd: Bools
    """True for a truth that is a crowd region, [g]; not used for detections."""

    def __len__(self) -> int:
        return len(self.image)


@dataclass(frozen=True)
class Matches:
    """The detections that AP ranks, and whether each of them matches a true shape."""

    kept: Ints
    """Indices of the ranked detections, [d], sorted by label, image and decreasing score."""

    rank: Ints
    """Number of detections of the same image and label with a higher score, [d]."""

    matched: Bools
    """True for a detection that matches a truth, [d, a, t]."""

    ignored: Bools
    """True for a detection that is neither correct nor wrong, [d, a, t]."""

    truth_ignored: Bools
    """True for a crowd region and for a truth outside of the area range, [g, a]."""


def match(
    detections: Side,
    truths: Side,
    iou_of_pairs: IouOfPairs,
    *,
    thresholds: Sequence[float],
    areas: Sequence[tuple[float, float]],
    max_detections: int,
) -> Matches:
    """Match detections to truths, best score first, for each area range and IoU threshold.

    For each image and label, only the ``max_detections`` detections with the highest scores are
    used. A pair matches if IoU >= threshold. ``areas`` has the limits of each range.
    """
    images = int(max(detections.image.max(initial=-1), truths.image.max(initial=-1))) + 1
    group = detections.label * images + detections.image
    kept = np.lexsort((-detections.scores, group))
    rank = _rank_in_run(group[kept])
    kept, rank = kept[rank < max_detections], rank[rank < max_detections]
    limits = np.array(areas)
    low, high = limits[:, 0], limits[:, 1]
    outside = (truths.areas[:, None] < low) | (truths.areas[:, None] > high)
    truth_ignored = truths.crowd[:, None] | outside
    needed = np.minimum(np.array(thresholds), _HIGHEST_THRESHOLD)
    overlaps = find_overlaps(
        kept, group, truths.label * images + truths.image, iou_of_pairs, needed.min()
    )
    shape = (len(kept), len(limits), len(needed))
    matched, ignored = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    used = np.zeros((len(truths), *shape[1:]), np.bool_)
    for detection, truth, iou in _steps(*overlaps, rank):
        starts = np.flatnonzero(np.diff(detection, prepend=-1))
        free = ~used[truth] | truths.crowd[truth, None, None]
        fits = free & (iou[:, None] >= needed)[:, None]
        # The last pair that fits has the highest IoU; truths that are not ignored are preferred.
        preferred = np.arange(len(truth))[:, None] + len(truth) * ~truth_ignored[truth]
        best = np.maximum.reduceat(np.where(fits, preferred[..., None], -1), starts, axis=0)
        found, at = best >= 0, detection[starts]
        chosen = truth[best % len(truth)]
        of_area = np.arange(len(limits))[:, None]
        matched[at], ignored[at] = found, found & truth_ignored[chosen, of_area]
        which, a, t = np.nonzero(found)
        used[chosen[which, a, t], a, t] = True
    own = detections.areas[kept, None]
    ignored |= ~matched & ((own < low) | (own > high))[..., None]
    return Matches(kept, rank, matched, ignored, truth_ignored)


def _rank_in_run(values: Ints) -> Ints:
    """Count the equal values directly before each value: [7, 7, 3] -> [0, 1, 0]."""
    position = np.arange(len(values))
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    return position - np.repeat(starts, np.diff(starts, append=len(values)))


def find_overlaps(
    kept: Ints, group: Ints, truth_group: Ints, iou_of_pairs: IouOfPairs, lowest: float
) -> tuple[Ints, Ints, Floats]:
    """Find pairs of one image and label with IoU >= ``lowest``; return detection, truth and IoU."""
    by_group = np.argsort(truth_group, kind="stable")
    groups = np.concatenate([group[kept], truth_group])
    dense = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    for detection, nth in pairs_in_groups(dense[: len(kept)], dense[len(kept) :][by_group]):
        truth = by_group[nth]
        iou = iou_of_pairs(kept[detection], truth)
        enough = iou >= lowest
        found.append((detection[enough], truth[enough], iou[enough]))
    detection, truth, iou = (np.concatenate(column) for column in zip(*found, strict=True))
    return detection, truth, iou


def _steps(
    detection: Ints, truth: Ints, iou: Floats, rank: Ints
) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Yield batches of pairs: a detection and a true shape that overlaps it.

    The first batch has the pairs of the most confident detection of each image and label, the next
    batch the pairs of the second most confident detection, and so on. Very large batches are split.
    The pairs of one detection are sorted by increasing IoU.
    """
    order = np.lexsort((truth, iou, detection, rank[detection]))
    detection, truth, iou = detection[order], truth[order], iou[order]
    starts = np.flatnonzero(np.diff(detection, prepend=-1))
    ends = np.append(starts, len(detection))
    of_rank = _rank_in_run(rank[detection[starts]])
    firsts = np.flatnonzero(of_rank % _MOST_MATCHED == 0)
    for first, last in zip(firsts, np.append(firsts, len(starts))[1:], strict=True):
        pairs = slice(ends[first], ends[last])
        yield detection[pairs], truth[pairs], iou[pairs]


def box_ious(
    detections: Floats, truths: Floats, crowd: Bools, at_detection: Ints, at_truth: Ints
) -> Floats:
    """Compute the IoU of p pairs of boxes [x, y, width, height] as pycocotools does, [p].

    If the true box is a crowd region, the intersection is divided by the area of the detection.
    """
    d, g = detections[at_detection], truths[at_truth]
    ends = np.minimum(d[:, :2] + d[:, 2:], g[:, :2] + g[:, 2:])
    sides = ends - np.maximum(d[:, :2], g[:, :2])
    overlap = (sides > 0).all(axis=1)
    shared, own = sides[:, 0] * sides[:, 1], d[:, 2] * d[:, 3]
    union: NDArray[np.float64] = np.where(crowd[at_truth], own, own + g[:, 2] * g[:, 3] - shared)
    return np.divide(shared, union, out=np.zeros(len(d)), where=overlap)
