"""COCO average precision (AP) of boxes or masks, with or without confidence scores.

The metrics equal those of pycocotools: IoU from 0.50 to 0.95 in steps of 0.05, 101 recall
thresholds, at most 100 detections per image and label, and ignored regions as crowds. AP ranks
detections by their score. A language model does not predict scores; the mean probability of a box's
tokens can be used. If all scores are equal, AP depends on the order of the images (AP50 was .474 to
.499 for the same boxes with other image ids). The setting ``ties`` selects how equal scores are
treated:

official   raise an error if all scores are equal; other ties are ordered as in pycocotools
averaged   average over all orders of detections with equal scores: if 2 of 5 such detections are
           correct, each counts as 0.4 correct. AP is computed from the resulting mean curve, and
           equals that of pycocotools if no scores are equal. Without scores, all detections are
           treated as equal. Within an image, they are matched in the order in which
           the model wrote them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Instance, Instances
from mm_numeric.evaluation.metrics.coco_masks import mask_ious
from mm_numeric.evaluation.metrics.coco_matching import IouOfPairs, Matches, Side, box_ious, match
from mm_numeric.evaluation.metrics.coco_rows import (
    check_images,
    checked_scores,
    flat_scores,
    side_of_answers,
    side_of_rows,
    sorted_ids,
)
from mm_numeric.evaluation.metrics.polygon_iou import Bools, Floats, Ints

METRIC_NAMES = (
    "ap", "ap_50", "ap_75", "ap_small", "ap_medium", "ap_large",
    "ar_1", "ar_10", "ar_100", "ar_small", "ar_medium", "ar_large",
)  # fmt: skip
"""Names of COCO's twelve metrics, in the order of ``COCOeval.summarize``."""

TIES = ("official", "averaged")
IOU_KINDS = ("bbox", "segm")
THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
_LARGEST_AREA = 1e10

AREAS: Mapping[str, tuple[float, float]] = {
    "small": (0, 32**2),
    "medium": (32**2, 96**2),
    "large": (96**2, _LARGEST_AREA),
}
"""COCO's sizes: smallest and largest area in square pixels."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Settings of COCO's AP, such as boxes or masks, and the treatment of equal scores."""

    ties: str = "official"
    """Treatment of equal scores, ``official`` or ``averaged``; see the top of this module."""

    iou: str = "bbox"
    """Shapes that are compared: ``bbox`` (boxes) or ``segm`` (masks)."""

    max_detections: tuple[int, ...] = (1, 10, 100)
    """AR is computed for each of these numbers of detections per image and label. AP and the
    metrics by area use the largest one."""

    areas: Mapping[str, tuple[float, float]] = field(default_factory=lambda: AREAS)
    """Name of each area range, and its smallest and largest area in square pixels."""

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
            "thresholds": [round(float(threshold), 2) for threshold in THRESHOLDS],
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


@dataclass(frozen=True)
class Ranking:
    """Average precision (AP), and COCO's recall (AR), of a data set, overall and for each label."""

    metrics: dict[str, float]
    """The metrics, 0 to 1, such as ``ap_50``; nan without true shapes, such as ``ap_small`` if no
    true shape is small."""

    labels: list[dict[str, Any]]
    """For each label: its ``name``, the number of ``truths`` without crowds, and its ``ap``,
    ``ap_50``, ``ap_75`` and AR."""

    name: str = "coco_ap"
    """Name in results.json."""

    title: str = "COCO"
    """Name of the rules in a terminal."""

    def results(self) -> dict[str, float | None]:
        """Return the metrics for results.json, with None in place of nan."""
        return {k: None if math.isnan(v) else v for k, v in self.metrics.items()}


def average_precision(
    predictions: Sequence[Instances | None],
    targets: Sequence[Instances],
    scores: Sequence[Sequence[float | None] | None] | None = None,
    *,
    ties: str = "official",
) -> dict[str, float]:
    """Compute COCO's twelve AP and AR metrics of parsed answers, compared as upright boxes."""
    return rank_answers(predictions, targets, scores, Rules(ties=ties)).metrics


def coco_average_precision(
    dataset: Mapping[str, Any], results: Sequence[Mapping[str, Any]], *, ties: str = "official"
) -> dict[str, float]:
    """Compute COCO's twelve AP and AR metrics of boxes that are given as COCO JSON data."""
    return rank_rows(dataset, results, Rules(ties=ties)).metrics


def rank_answers(
    predictions: Sequence[Instances | None],
    targets: Sequence[Instances],
    scores: Sequence[Sequence[float | None] | None] | None = None,
    rules: Rules | None = None,
) -> Ranking:
    """Compute COCO's AP and AR of parsed answers, compared as upright boxes.

    Args:
        predictions: For each image, its labelled detections; None for an unparseable answer.
        targets: For each image, its true shapes. Their labels are the categories. As in
            ``metrics.detection``, an ignored region without a label applies to all of them.
        scores: For each image, the confidence of each detection; None without scores.
        rules: Settings; those of COCO when None.
    """
    rules = rules or Rules()
    if rules.iou != "bbox":
        raise ValueError("answers have no masks; compare their boxes (--iou bbox).")
    found = [() if prediction is None else prediction.items for prediction in predictions]
    true = [target.items for target in targets]
    labelled = (i for items in (*found, *true) for i in items if i.label or not i.ignore)
    labels = sorted({item.label for item in labelled})
    wanted = [[own for item in items for own in _of_labels(item, labels)] for items in true]
    flat = list(flat_scores(scores, found))
    ranks = checked_scores(flat, rules.ties, sum(map(len, true)))
    detections, boxes = side_of_answers(found, labels, ranks)
    truths, true_boxes = side_of_answers(wanted, labels)
    iou = partial(box_ious, boxes, true_boxes, truths.crowd)
    return _rank(detections, truths, iou, labels, rules)


def _of_labels(item: Instance, labels: Sequence[str]) -> Iterator[Instance]:
    """Yield a true shape; an ignored region without a label once for each label."""
    if item.label or not item.ignore:
        yield item
    else:
        yield from (replace(item, label=label) for label in labels)


def rank_rows(
    dataset: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    rules: Rules | None = None,
) -> Ranking:
    """Compute AP and AR of data in COCO's JSON format.

    Args:
        dataset: ``images``, ``annotations`` and ``categories``, as in an instances file.
        results: Detections with ``image_id``, ``category_id``, ``score`` and ``bbox`` (for masks,
            ``segmentation``). As in pycocotools, detections of other categories do not count.
        rules: Settings; those of COCO when None.
    """
    rules = rules or Rules()
    annotations = dataset["annotations"]
    images = {image["id"]: image for image in dataset["images"]}
    names = {row["id"]: str(row.get("name", row["id"])) for row in dataset["categories"]}
    for what, rows in (("detection", results), ("annotation", annotations)):
        check_images(rows, what, images)
    ranks = checked_scores([row.get("score") for row in results], rules.ties, len(annotations))
    masks = rules.iou == "segm"
    detections, shapes = side_of_rows(results, "detection", images, names, ranks, masks=masks)
    truths, true_shapes = side_of_rows(annotations, "annotation", images, names, masks=masks)
    iou_of_pairs: Callable[..., Floats] = mask_ious if masks else box_ious
    iou = partial(iou_of_pairs, shapes, true_shapes, truths.crowd)
    return _rank(detections, truths, iou, [names[key] for key in sorted_ids(names)], rules)


def _rank(
    detections: Side, truths: Side, iou: IouOfPairs, labels: Sequence[str], rules: Rules
) -> Ranking:
    """Match detections to true shapes, and compute COCO's AP and AR, overall and per label."""
    limits = {"all": (0.0, _LARGEST_AREA), **rules.areas}
    matches = match(
        detections,
        truths,
        iou,
        thresholds=THRESHOLDS.tolist(),
        areas=list(limits.values()),
        max_detections=rules.max_detections[-1],
    )
    counts = np.array(
        [np.bincount(truths.label[~out], minlength=len(labels)) for out in matches.truth_ignored.T]
    )  # [areas, labels]
    precision = _precisions(matches, detections, counts, rules.ties)
    label = detections.label[matches.kept]
    correct = matches.matched & ~matches.ignored

    def recall(area: int, most: int) -> Floats:
        """Return the recall of each label, averaged over the IoU thresholds, [labels]."""
        hits = correct[:, area].mean(axis=1) * (matches.rank < most)
        return _divided(np.bincount(label, hits, minlength=len(labels)), counts[area])

    ap = {
        "ap": precision[0].mean(axis=1),
        "ap_50": precision[0][:, 0],
        "ap_75": precision[0][:, 5],
    }
    most = rules.max_detections[-1]
    ar = {f"ar_{number}": recall(0, number) for number in rules.max_detections}
    by_area = list(enumerate(rules.areas, start=1))
    of_labels = {
        **ap,
        **{f"ap_{name}": precision[area].mean(axis=1) for area, name in by_area},
        **ar,
        **{f"ar_{name}": recall(area, most) for area, name in by_area},
    }
    rows = [
        {
            "name": name,
            "truths": int(counts[0, k]),
            **{m: float(v[k]) for m, v in {**ap, **ar}.items()},
        }
        for k, name in enumerate(labels)
    ]
    return Ranking({name: _mean(values) for name, values in of_labels.items()}, rows)


def _divided(part: NDArray[Any], whole: Ints) -> Floats:
    """Divide; nan where ``whole`` is 0."""
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)


def _mean(values: Floats) -> float:
    """Average a metric over labels. Labels without true shapes are nan, and are left out."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _precisions(matches: Matches, detections: Side, counts: Ints, ties: str) -> Floats:
    """Compute AP for each area range, label and IoU threshold, averaged over 101 recalls.

    ``counts[area, label]`` is the number of true shapes. If it is 0, AP is nan.
    """
    scores, label = detections.scores[matches.kept], detections.label[matches.kept]
    precision = np.full((*counts.shape, len(THRESHOLDS)), np.nan)
    ends = np.searchsorted(label, np.arange(counts.shape[1] + 1))
    for k in np.flatnonzero(counts.any(axis=0)):
        own = slice(ends[k], ends[k + 1])
        order = np.argsort(-scores[own], kind="stable")
        tie = np.arange(len(order))
        if ties == "averaged":
            tie = np.unique(-scores[own][order], return_inverse=True)[1]
        for a in np.flatnonzero(counts[:, k]):
            counted = ~matches.ignored[own][order, a]
            correct = counted & matches.matched[own][order, a]
            for t in range(len(THRESHOLDS)):
                values = _precision_at_recalls(counted[:, t], correct[:, t], tie, counts[a, k])
                precision[a, k, t] = values.mean()
    return precision


def _precision_at_recalls(counted: Bools, correct: Bools, tie: Ints, truths: int) -> Floats:
    """Compute the precision at each recall threshold, [101], as ``COCOeval.accumulate`` does.

    Args:
        counted: True for a detection that is not ignored, [d], best score first.
        correct: True for a detection that is matched to a true shape, [d].
        tie: Rank of each detection's score, [d]. Detections with the same rank count equally: if 2
            of 5 are correct, each one counts as 0.4 correct.
        truths: Number of true shapes.
    """
    sizes, right = np.bincount(tie, counted), np.bincount(tie, correct)
    nth = np.cumsum(counted)
    within = nth - (np.cumsum(sizes) - sizes)[tie]
    before = (np.cumsum(right) - right)[tie]
    hits = before + right[tie] * within / np.maximum(sizes[tie], 1)
    precision = hits / (nth + np.spacing(1))
    highest = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(hits / truths, RECALLS, side="left")
    reached = at < len(highest)
    found = np.zeros(len(RECALLS))
    found[reached] = highest[at[reached]]
    return found
