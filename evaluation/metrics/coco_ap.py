"""COCO average precision (AP) of boxes or masks, with or without confidence scores.

The metrics equal those of pycocotools: IoU from 0.50 to 0.95 in steps of 0.05, 101 recall
thresholds, at most 100 detections per image and label, and ignored regions as crowds. AP ranks
detections by their score. A language model does not predict scores; the mean probability of a box's
tokens can be used. If all scores are equal, AP depends on the order of the images: AP50 was between
.474 and .499 when only the image ids were changed. The setting ``ties`` selects how equal scores
are treated:

official   raise an error if all scores are equal; other ties are ordered as in pycocotools
averaged   average over all orders of detections with equal scores: if 2 of 5 such detections are
           correct, each counts as 0.4 correct. AP is computed from the resulting mean curve, and
           equals AP of pycocotools if no scores are equal. Without scores, all detections have the
           same rank; within an image, they are matched in the order of the answer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from mm_numeric.answers import Instance, Instances
from mm_numeric.evaluation.metrics.base import RankRules, Scorer
from mm_numeric.evaluation.metrics.coco_matching import IouOfPairs, Matches, Side, box_ious, match
from mm_numeric.evaluation.metrics.coco_rows import (
    checked_scores,
    flat_scores,
    mask_ious,
    mask_sizes,
    side_of_answers,
    side_of_rows,
    sorted_ids,
)
from mm_numeric.evaluation.metrics.polygon_iou import Floats, Ints
from mm_numeric.evaluation.metrics.ranking import Curves, Ranking, ranking_metrics

TIES = ("official", "averaged")
IOU_KINDS = ("bbox", "segm")
THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())
RECALLS = np.linspace(0.0, 1.0, 101)
_LARGEST_AREA = 1e10

AREAS: Mapping[str, tuple[float, float]] = {
    "small": (0, 32**2),
    "medium": (32**2, 96**2),
    "large": (96**2, _LARGEST_AREA),
}
"""COCO's size classes: smallest and largest area in square pixels."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Settings of COCO's AP, such as the type of shape and the treatment of equal scores."""

    ties: str = "official"
    """Treatment of equal scores, ``official`` or ``averaged``; see the top of this module."""

    iou: str = "bbox"
    """Shapes that are compared: ``bbox`` (boxes) or ``segm`` (masks)."""

    max_detections: tuple[int, ...] = (1, 10, 100)
    """AR (average recall) is computed for each of these numbers of detections per image and label.
    AP and the metrics by area use the largest number."""

    areas: Mapping[str, tuple[float, float]] = field(default_factory=lambda: AREAS)
    """Name of each area range, and its smallest and largest area in square pixels."""

    rank_by: str = "scores"
    """Field of the rows with the confidence of each object: ``scores``, or ``token_scores``, the
    mean probability of the object's tokens in greedy answers decoded along with other rules."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Return the names of all metrics, in the order of ``COCOeval.summarize``."""
        kinds = {"ap": (50, 75, *self.areas), "ar": (*self.max_detections, *self.areas)}
        return ("ap", *(f"{kind}_{name}" for kind, names in kinds.items() for name in names))

    def __post_init__(self) -> None:
        if self.ties not in TIES:
            raise ValueError(f"ties is one of {', '.join(TIES)}, not {self.ties!r}.")
        if self.iou not in IOU_KINDS:
            raise ValueError(f"iou is one of {', '.join(IOU_KINDS)}, not {self.iou!r}.")
        if not self.max_detections or min(self.max_detections) < 1:
            raise ValueError(f"max_detections are at least 1, not {self.max_detections}.")
        object.__setattr__(self, "max_detections", tuple(sorted(set(self.max_detections))))
        for name, (low, high) in self.areas.items():
            if not (name.isidentifier() and 0 <= low < high <= _LARGEST_AREA):
                raise ValueError(
                    f"the area range {name!r:.40} is {low:g} to {high:g}; give it a name that "
                    f"begins with a letter, and two areas within 0 to {_LARGEST_AREA:g}, the "
                    "smaller one first."
                )

    def protocol(self, source: str) -> dict[str, Any]:
        """Describe how AP is computed; ``source`` states where the confidence scores come from."""
        order = {
            "official": "pycocotools: by image id, then as listed; the same score for all is an "
            "error",
            "averaged": "each counts as the mean of its tie; without scores all are one tie",
        }
        boxes = self.iou == "bbox"
        return {
            "variant": f"COCO AP of {'boxes' if boxes else 'masks'} (rules of pycocotools)",
            "thresholds": [round(threshold, 2) for threshold in THRESHOLDS],
            "comparison": "IoU >= t",
            "matching": "by score, each matches the best unmatched truth of its label",
            "scores": source,
            "ties": order[self.ties],
            "shapes": "upright boxes around them" if boxes else "masks; areas are those of masks",
            "max_detections": list(self.max_detections),
            "areas": {name: list(limits) for name, limits in self.areas.items()},
            "ignored regions": "crowds: a detection inside one is neither correct nor wrong",
            "unreadable answer": "no detections; its truths count",
        }


METRIC_NAMES = Rules().metric_names
"""Names of COCO's twelve metrics."""


def coco_scorer(rules: Rules, source: str, rank: Callable[..., Ranking] | None = None) -> Scorer:
    """Return the scorer of COCO's AP and AR.

    ``source`` states where the confidence scores come from. ``rank`` is the function that ranks the
    objects, by default ``rank_answers``.
    """
    return Scorer(
        columns=lambda predictions, targets: {},
        metrics=(),
        ranked=RankRules(
            rank=rank or partial(rank_answers, rules=rules),
            metrics=ranking_metrics(rules.metric_names),
            protocol={"all": rules.protocol(source)},
            field=rules.rank_by,
            is_required=True,
        ),
    )


def rank_answers(
    predictions: Sequence[Instances | None],
    targets: Sequence[Instances],
    scores: Sequence[Sequence[float | None] | None] | None = None,
    rules: Rules | None = None,
    *,
    may_be_empty: bool = False,
) -> Ranking:
    """Compute COCO's AP and AR of parsed answers, compared as upright boxes or as masks.

    Args:
        predictions: The labelled detections of each image; None for an unparseable answer.
        targets: The true shapes of each image; their labels are the categories. An ignored region
            without a label applies to all categories.
        scores: The confidences of the detections of each image; None if there are no confidences.
        rules: Settings; COCO's own when None.
        may_be_empty: If there is no detection at all, return an AP of 0 instead of an error.
    """
    rules = rules or Rules()
    found = [() if prediction is None else prediction.items for prediction in predictions]
    true = [target.items for target in targets]
    sizes = None if rules.iou == "bbox" else mask_sizes(true)
    if rules.iou == "segm" and sizes is None:
        raise ValueError("the rows have no masks; compare boxes (--iou bbox).")
    labelled = (i for items in (*found, *true) for i in items if i.label or not i.ignore)
    labels = sorted({item.label for item in labelled})
    wanted = [[own for item in items for own in _of_labels(item, labels)] for items in true]
    flat = list(flat_scores(scores, found))
    ranks = np.empty(0)
    if flat or not may_be_empty:
        ranks = checked_scores(flat, rules.ties, sum(map(len, true)))
    detections, shapes = side_of_answers(found, labels, ranks, sizes)
    truths, true_shapes = side_of_answers(wanted, labels, sizes=sizes)
    iou = _ious(shapes, true_shapes, truths, rules)
    return _rank_sides(detections, truths, len(targets), iou, labels, rules)


def _ious(shapes: Any, true_shapes: Any, truths: Side, rules: Rules) -> IouOfPairs:
    iou_of_pairs: Callable[..., Floats] = mask_ious if rules.iou == "segm" else box_ious
    return partial(iou_of_pairs, shapes, true_shapes, truths.crowd)


def _of_labels(item: Instance, labels: Sequence[str]) -> Iterator[Instance]:
    """Yield a true shape; yield an ignored region without a label once for each label."""
    if item.label or not item.ignore:
        yield item
    else:
        yield from (replace(item, label=label) for label in labels)


def rank_rows(
    dataset: Mapping[str, Any], results: Sequence[Mapping[str, Any]], rules: Rules | None = None
) -> Ranking:
    """Compute AP and AR of data in COCO's JSON format.

    Args:
        dataset: ``images``, ``annotations`` and ``categories``, as in an instances file.
        results: Detections with ``image_id``, ``category_id``, ``score`` and ``bbox`` (for masks,
            ``segmentation``). As in pycocotools, detections of other categories do not count.
        rules: Settings; COCO's own when None.
    """
    rules = rules or Rules()
    annotations = dataset["annotations"]
    images = {image["id"]: image for image in dataset["images"]}
    names = {row["id"]: str(row.get("name", row["id"])) for row in dataset["categories"]}
    for number, row in enumerate(results, start=1):
        if row["image_id"] not in images:
            raise ValueError(
                f"detection {number}: the image {row['image_id']!r} is not among the "
                f"{len(images)} of the ground truth; remove it, or add the image there."
            )
    ranks = checked_scores([row.get("score") for row in results], rules.ties, len(annotations))
    masks = rules.iou == "segm"
    detections, shapes = side_of_rows(results, "detection", images, names, ranks, masks=masks)
    truths, true_shapes = side_of_rows(annotations, "annotation", images, names, masks=masks)
    iou = _ious(shapes, true_shapes, truths, rules)
    labels = [names[key] for key in sorted_ids(names)]
    return _rank_sides(detections, truths, len(images), iou, labels, rules)


def _rank_sides(
    detections: Side,
    truths: Side,
    images: int,
    iou: IouOfPairs,
    labels: Sequence[str],
    rules: Rules,
) -> Ranking:
    limits = {"all": (0.0, _LARGEST_AREA), **rules.areas}
    most = rules.max_detections[-1]
    matches = match(
        detections,
        truths,
        iou,
        thresholds=THRESHOLDS,
        areas=list(limits.values()),
        max_detections=most,
    )
    curves, rank = _curves(detections, truths, matches, np.array([*limits.values()]), labels, rules)
    areas = list(enumerate(rules.areas, start=1))

    def by_label(weights: Floats) -> dict[str, Floats]:
        shape = len(weights), len(limits), len(labels), len(THRESHOLDS)
        ap = curves.average_precision(weights, RECALLS).reshape(shape)
        found = {number: curves.recall(weights, rank < number) for number in rules.max_detections}
        ar = {number: own.reshape(shape).mean(axis=-1) for number, own in found.items()}
        return {
            "ap": ap[:, 0].mean(axis=-1),
            "ap_50": ap[:, 0, :, 0],
            "ap_75": ap[:, 0, :, 5],
            **{f"ap_{name}": ap[:, area].mean(axis=-1) for area, name in areas},
            **{f"ar_{number}": own[:, 0] for number, own in ar.items()},
            **{f"ar_{name}": ar[most][:, area] for area, name in areas},
        }

    in_area = ~matches.truth_ignored
    images_of_area = [np.bincount(truths.image[own], minlength=images) > 0 for own in in_area.T]
    names = by_label(np.zeros((1, images)))
    of_size = {f"{kind}_{name}": area for area, name in areas for kind in ("ap", "ar")}
    return Ranking(
        title="COCO" if rules.iou == "bbox" else "COCO for masks",
        by_label=by_label,
        size=curves.size,
        names=labels,
        has_truths={name: images_of_area[of_size.get(name, 0)] for name in names},
        truths=np.bincount(truths.label[in_area[:, 0]], minlength=len(labels)).tolist(),
        rows=np.arange(images),
    )


def _curves(
    detections: Side,
    truths: Side,
    matches: Matches,
    limits: Floats,
    labels: Sequence[str],
    rules: Rules,
) -> tuple[Curves, Ints]:
    """Return the precision-recall curves, one for each area range, label and IoU threshold.

    Also return the rank of the detection of each event (defined in ``Curves``), for recall at
    ``max_detections``.
    """
    scores, label = detections.scores[matches.kept], detections.label[matches.kept]
    order = np.lexsort((-scores, label))  # equal scores stay in the order of images and answers
    kept, label, scores = matches.kept[order], label[order], scores[order]
    area_px = detections.areas[kept, None]
    counted = ~matches.ignored[order]
    correct = counted & matches.matched[order]  # [d, a, t]
    seen = (area_px >= limits[:, 0]) & (area_px <= limits[:, 1])  # [d, a]
    seen &= rules.ties == "official"  # to average ties, each detection is an event
    extra = counted.astype(np.int8) - seen[..., None]
    area, threshold, at = np.nonzero((correct | (extra != 0)).transpose(1, 2, 0))
    curve = (area * len(labels) + label[at]) * len(THRESHOLDS) + threshold
    by_curve = np.argsort(curve, kind="stable")
    area, threshold, at, curve = (own[by_curve] for own in (area, threshold, at, curve))
    # Number of seen detections before each detection, in its area range and all previous ranges.
    before = np.concatenate([np.zeros((1, len(limits)), np.int64), np.cumsum(seen, axis=0)])
    before += np.cumsum(before[-1]) - before[-1]
    tie = None
    if rules.ties == "averaged":
        tie = np.cumsum(np.diff(curve, prepend=-1) | (np.diff(scores[at], prepend=np.nan) != 0))
    truth, truth_area = np.nonzero(~matches.truth_ignored)
    truth_group = truth_area * len(labels) + truths.label[truth]
    by_group = np.argsort(truth_group, kind="stable")
    curves = Curves(
        truth_image=truths.image[truth[by_group]],
        truth_group=truth_group[by_group],
        group_count=len(limits) * len(labels),
        curves_per_group=len(THRESHOLDS),
        seen_image=detections.image[kept[np.nonzero(seen.T)[1]]],
        image=detections.image[kept[at]],
        curve=curve,
        correct=correct[at, area, threshold],
        extra=extra[at, area, threshold],
        seen_from=before[np.searchsorted(label, label[at]), area],
        seen_to=before[at + 1, area],
        tie=tie,
    )
    return curves, matches.rank[order][at]


COCO_AP = coco_scorer(Rules(), "of the rows (predict: mean probability of tokens)")
"""Scorer for objects that are ranked by confidence, with COCO's own settings."""
