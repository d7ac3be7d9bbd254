"""COCO average precision (AP), with or without confidence scores.

pycocotools computes AP: box IoU from 0.50 to 0.95 in steps of 0.05, 101 recall thresholds, at most
100 detections per image and label, and ignored regions as crowds. AP ranks detections by their
score. A language model does not predict scores; the mean probability of a box's tokens can be used.
If all scores are equal, AP depends on the order of the images (AP50 was .474 to .499 for the same
boxes with other image ids). The argument ``ties`` selects how equal scores are treated:

official   raise an error if all scores are equal; other ties are ordered as in pycocotools
averaged   average over all orders of detections with equal scores: if 2 of 5 such detections are
           correct, each counts as 0.4 correct. AP is computed from the resulting mean curve, and
           equals that of pycocotools if no scores are equal. Without scores, all detections are
           treated as equal. Within an image, they are matched in the order in which
           the model wrote them.
"""

import contextlib
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mm_numeric.answers import Instance, Instances
from mm_numeric.evaluation.metrics.polygon_iou import collect_shapes

METRIC_NAMES = (
    "ap", "ap_50", "ap_75", "ap_small", "ap_medium", "ap_large",
    "ar_1", "ar_10", "ar_100", "ar_small", "ar_medium", "ar_large",
)  # fmt: skip
"""Names of COCO's twelve metrics, in the order of ``COCOeval.summarize``."""

TIES = ("official", "averaged")


def protocol(ties: str, source: str) -> dict[str, Any]:
    """Describe how AP is computed, for results.json. ``source`` describes the confidence scores."""
    order = {
        "official": "pycocotools: by image id, then as listed; the same score for all is an error",
        "averaged": "each counts as the mean of its tie; without scores all are one tie",
    }
    return {
        "variant": "COCO AP of boxes (pycocotools)",
        "thresholds": [round(0.5 + 0.05 * step, 2) for step in range(10)],
        "comparison": "IoU >= t",
        "matching": "by score, each matches the best unmatched truth of its label",
        "scores": source,
        "ties": order[ties],
        "shapes": "upright boxes around them",
        "ignored regions": "crowds: a detection inside one is neither correct nor wrong",
        "unreadable answer": "no detections; its truths count",
    }


def average_precision(
    predictions: Sequence[Instances | None],
    targets: Sequence[Instances],
    scores: Sequence[Sequence[float | None] | None] | None = None,
    *,
    ties: str = "official",
) -> dict[str, float]:
    """Compute COCO's twelve AP and AR metrics, 0 to 1.

    A metric is nan if no true shape counts for it: ``ap_small`` if no true shape is small.

    Args:
        predictions: For each image, its labelled detections; None for an unparseable answer.
        targets: For each image, its true shapes. Their labels are the categories.
        scores: For each image, the confidence of each detection; None without scores.
        ties: Treatment of equal scores, ``official`` or ``averaged``; see the top of this module.
    """
    detections = [() if prediction is None else prediction.items for prediction in predictions]
    truths = [target.items for target in targets]
    labels = sorted({item.label for items in (*detections, *truths) for item in items})
    numbers = {label: number for number, label in enumerate(labels, start=1)}
    annotations, results = (
        [
            {"image_id": i, "category_id": numbers[item.label], **box, "iscrowd": int(item.ignore)}
            for (i, item), box in zip(_with_image_id(side), _boxes(side), strict=True)
        ]
        for side in (truths, detections)
    )
    if scores is not None:
        for row, score in zip(results, _flat_scores(scores, detections), strict=True):
            row["score"] = score
    images = [{"id": image} for image in range(1, len(targets) + 1)]
    categories = [{"id": number, "name": label} for label, number in numbers.items()]
    dataset = {"images": images, "annotations": annotations, "categories": categories}
    return coco_average_precision(dataset, results, ties=ties)


def coco_average_precision(
    dataset: Mapping[str, Any], results: Sequence[Mapping[str, Any]], *, ties: str = "official"
) -> dict[str, float]:
    """Compute COCO's twelve AP and AR metrics for data in COCO's JSON format.

    Args:
        dataset: ``images``, ``annotations`` and ``categories``, as in an instances file. Annotation
            ids are renumbered from 1, because pycocotools treats a match with id 0 as unmatched.
        results: Detections with ``image_id``, ``category_id``, ``bbox`` and ``score``.
        ties: Treatment of equal scores, ``official`` or ``averaged``; see the top of this module.
    """
    if ties not in TIES:
        raise ValueError(f"ties is one of {', '.join(TIES)}, not {ties!r}.")
    if not dataset["annotations"]:
        raise ValueError("the ground truth has no annotations, so AP is undefined.")
    if not results:
        raise ValueError(
            "there are no detections to rank, so AP is undefined; use precision, recall and F1."
        )
    _check_images(dataset, results)
    results = _scored(results, ties)
    truths = [
        {"iscrowd": 0, **row, "id": number}
        for number, row in enumerate(dataset["annotations"], start=1)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {**dataset, "annotations": truths}
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes([dict(row) for row in results]), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        if ties == "averaged":
            evaluation.eval["precision"] = _averaged_precision(evaluation)
        evaluation.summarize()
    return {
        name: float(value) if value > -1 else float("nan")
        for name, value in zip(METRIC_NAMES, evaluation.stats, strict=True)
    }


def _with_image_id(images: Sequence[Sequence[Instance]]) -> Iterator[tuple[int, Instance]]:
    return ((image, item) for image, items in enumerate(images, start=1) for item in items)


def _boxes(images: Sequence[Sequence[Instance]]) -> Iterator[dict[str, Any]]:
    """Yield each shape in COCO's format: ``bbox`` ([x, y, width, height]) and ``area``."""
    shapes = collect_shapes([[item.shape for item in items] for items in images])
    for (x1, y1, x2, y2), area in zip(shapes.bounds.tolist(), shapes.areas.tolist(), strict=True):
        yield {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": area}


def _flat_scores(
    scores: Sequence[Sequence[float | None] | None], images: Sequence[Sequence[Instance]]
) -> Iterator[float | None]:
    """Yield the score of each detection, image by image, or None if its image has no scores."""
    for image, (given, items) in enumerate(zip(scores, images, strict=True), start=1):
        if given is not None and len(given) != len(items):
            raise ValueError(
                f"image {image}: {len(given)} scores for {len(items)} detections; give one per "
                "detection."
            )
        yield from [None] * len(items) if given is None else given


def _check_images(dataset: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> None:
    known = {image["id"] for image in dataset["images"]}
    for number, row in enumerate(results, start=1):
        if row["image_id"] not in known:
            raise ValueError(
                f"detection {number}: the image {row['image_id']!r} is not among the "
                f"{len(known)} of the ground truth; remove it, or add the image there."
            )


def _scored(results: Sequence[Mapping[str, Any]], ties: str) -> Sequence[Mapping[str, Any]]:
    """Check that all detections have scores; ``ties="averaged"`` sets all to 1 if none has one."""
    without = [number for number, row in enumerate(results, start=1) if row.get("score") is None]
    if ties == "averaged" and len(without) == len(results):
        return [{**row, "score": 1.0} for row in results]
    if without:
        averaged = ", or average ties (ties='averaged', --ties averaged)"
        advice = averaged if len(without) == len(results) else ""
        raise ValueError(
            f"detection {without[0]}: no score, but AP ranks detections by score; give each one, "
            f"such as the probability of its tokens{advice}."
        )
    for number, row in enumerate(results, start=1):
        if not math.isfinite(row["score"]):
            raise ValueError(
                f"detection {number}: the score is {row['score']}; give a finite number."
            )
    common, count = Counter(row["score"] for row in results).most_common(1)[0]
    if ties == "official" and count == len(results) > 1:
        raise ValueError(
            f"all {count} scores are {common}: AP would depend on the order of the images (AP50 "
            "from .474 to .499 for the same boxes); give different scores, or average ties "
            "(ties='averaged', --ties averaged)."
        )
    return results


def _averaged_precision(evaluation: Any) -> NDArray[np.float64]:
    """Compute precision like ``COCOeval.accumulate``, averaged over the orders of tied detections.

    Shape: [IoU thresholds, recall thresholds, labels, area ranges, detection limits].
    """
    params = evaluation.params
    precision: NDArray[np.float64] = np.full_like(evaluation.eval["precision"], -1)
    images, areas = len(params.imgIds), len(params.areaRng)
    for k in range(len(params.catIds)):
        for a in range(areas):
            start = (k * areas + a) * images
            rows = [e for e in evaluation.evalImgs[start : start + images] if e is not None]
            truths = sum(int((row["gtIgnore"] == 0).sum()) for row in rows)
            if truths:
                for m, most in enumerate(params.maxDets):
                    precision[:, :, k, a, m] = _precision_of(rows, most, truths, params.recThrs)
    return precision


def _precision_of(
    rows: Sequence[Mapping[str, Any]], most: int, truths: int, recalls: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute precision for one label and area range, shape [IoU thresholds, recall thresholds]."""
    scores = np.concatenate([row["dtScores"][:most] for row in rows])
    matched = np.concatenate([row["dtMatches"][:, :most] for row in rows], axis=1) > 0
    counts = np.concatenate([row["dtIgnore"][:, :most] for row in rows], axis=1) == 0
    order = np.argsort(-scores, kind="stable")
    _, tie = np.unique(-scores[order], return_inverse=True)
    precisions = np.zeros((len(matched), len(recalls)))
    for t in range(len(matched)):
        counted = counts[t, order]
        sizes = np.bincount(tie, counted)
        right = np.bincount(tie, counted & matched[t, order])
        nth = np.cumsum(counted)
        within = nth - (np.cumsum(sizes) - sizes)[tie]
        before = (np.cumsum(right) - right)[tie]
        hits = before + right[tie] * within / np.maximum(sizes[tie], 1)
        precision = hits / (nth + np.spacing(1))
        highest = np.maximum.accumulate(precision[::-1])[::-1]
        at = np.searchsorted(hits / truths, recalls, side="left")
        reached = at < len(highest)
        precisions[t, reached] = highest[at[reached]]
    return precisions
