"""COCO's average precision, with a score for every detection, or with none.

pycocotools does the arithmetic: IoU of boxes, 0.50 to 0.95 in steps of 0.05, 101 recalls, at most
100 detections an image and label, regions to be ignored as its crowds. What AP needs is a ranking:
a score with each detection, such as the mean probability of its tokens. Boxes of a language model
come without; with one score for all of them AP depends on the order of images (AP50 .474 to .499
of the same boxes, image ids relabelled), so that is refused.

``ties="averaged"`` takes every order of equal scores at once: the n detections of a tie, t of them
right, count as t / n right each, which is the mean over all their orders. AP is that of the mean
curve, and equal to pycocotools' wherever no two scores are equal. Within an image detections of
equal score are matched in the order of the answer. With no scores at all, all are one tie.
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
from mm_numeric.evaluation.metrics.polygon_iou import gather

FIGURES = (
    "ap", "ap_50", "ap_75", "ap_small", "ap_medium", "ap_large",
    "ar_1", "ar_10", "ar_100", "ar_small", "ar_medium", "ar_large",
)  # fmt: skip
"""What pycocotools sums up, in its order."""

TIES = ("official", "averaged")


def protocol(ties: str, source: str) -> dict[str, Any]:
    """Return what is to be written beside the figures.

    Args:
        ties: As in ``average_precision``.
        source: Where the scores are from, such as "mean probability of the tokens".
    """
    order = {
        "official": "pycocotools: by image id, then as listed; one score for all is refused",
        "averaged": "each counts as the mean of its tie; no score at all is one tie",
    }
    return {
        "variant": "COCO AP of boxes (pycocotools)",
        "thresholds": [round(0.5 + 0.05 * step, 2) for step in range(10)],
        "comparison": "IoU >= t",
        "matching": "by score, each takes the best free truth of its label",
        "scores": source,
        "ties": order[ties],
        "shapes": "upright boxes around them",
        "ignored regions": "crowds: a detection that lies in one counts neither way",
        "unreadable answer": "no detections; its truths count",
    }


def average_precision(
    predictions: Sequence[Instances | None],
    targets: Sequence[Instances],
    scores: Sequence[Sequence[float | None] | None] | None = None,
    *,
    ties: str = "official",
) -> dict[str, float]:
    """Return COCO's twelve figures, 0 to 1; nan where there is nothing to find.

    Args:
        predictions: None where the answer could not be read; labels are its categories.
        targets: As many.
        scores: One for each detection of each image, higher is surer.
        ties: ``official`` or ``averaged``, see above.

    Raises:
        ValueError: If there is nothing to rank, or no ranking.
    """
    found = [() if prediction is None else prediction.items for prediction in predictions]
    wanted = [target.items for target in targets]
    labels = sorted({item.label for items in (*found, *wanted) for item in items})
    numbers = {label: number for number, label in enumerate(labels, start=1)}
    annotations, results = (
        [
            {
                "image_id": image,
                "category_id": numbers[item.label],
                **box,
                "iscrowd": int(item.ignore),
            }
            for (image, item), box in zip(_listed(side), _boxes(side), strict=True)
        ]
        for side in (wanted, found)
    )
    if scores is not None:
        for row, score in zip(results, _checked(scores, found), strict=True):
            row["score"] = score
    images = [{"id": image} for image in range(1, len(targets) + 1)]
    categories = [{"id": number, "name": label} for label, number in numbers.items()]
    dataset = {"images": images, "annotations": annotations, "categories": categories}
    return coco_average_precision(dataset, results, ties=ties)


def coco_average_precision(
    dataset: Mapping[str, Any], results: Sequence[Mapping[str, Any]], *, ties: str = "official"
) -> dict[str, float]:
    """Return COCO's twelve figures of data in its own format; see ``average_precision``.

    Args:
        dataset: ``images``, ``annotations`` and ``categories``, as in an instances file. Ids of
            annotations do not matter (pycocotools takes a truth whose id is 0 for unmatched).
        results: ``image_id``, ``category_id``, ``bbox`` and ``score`` each.
        ties: As in ``average_precision``.
    """
    if ties not in TIES:
        raise ValueError(f"ties is one of {', '.join(TIES)}, not {ties!r}.")
    if not dataset["annotations"]:
        raise ValueError("the ground truth has no annotations; there is no AP without.")
    if not results:
        raise ValueError(
            "there are no detections at all, and nothing to rank; precision, recall and F1 say "
            "what that is worth."
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
        for name, value in zip(FIGURES, evaluation.stats, strict=True)
    }


def _listed(images: Sequence[Sequence[Instance]]) -> Iterator[tuple[int, Instance]]:
    """Yield every instance with the number of its image, from 1."""
    for image, items in enumerate(images, start=1):
        for item in items:
            yield image, item


def _boxes(images: Sequence[Sequence[Instance]]) -> Iterator[dict[str, Any]]:
    """Yield the box around each instance, and its area, as COCO has them."""
    shapes = gather([[item.shape for item in items] for items in images])
    for (x1, y1, x2, y2), area in zip(shapes.bounds.tolist(), shapes.areas.tolist(), strict=True):
        yield {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": area}


def _checked(
    scores: Sequence[Sequence[float | None] | None], images: Sequence[Sequence[Instance]]
) -> Iterator[float | None]:
    """Yield the score of each detection, None where its image has none."""
    for image, (given, items) in enumerate(zip(scores, images, strict=True), start=1):
        if given is not None and len(given) != len(items):
            raise ValueError(
                f"image {image}: {len(given)} scores for {len(items)} detections; give one each."
            )
        yield from [None] * len(items) if given is None else given


def _check_images(dataset: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> None:
    known = {image["id"] for image in dataset["images"]}
    for number, row in enumerate(results, start=1):
        if row["image_id"] not in known:
            raise ValueError(
                f"detection {number}: the image {row['image_id']!r} is not among the "
                f"{len(known)} of the ground truth; take it out, or give the truth of it."
            )


def _scored(results: Sequence[Mapping[str, Any]], ties: str) -> Sequence[Mapping[str, Any]]:
    """Return results of which each has a score, or say what is missing."""
    without = [number for number, row in enumerate(results, start=1) if row.get("score") is None]
    if ties == "averaged" and len(without) == len(results):
        return [{**row, "score": 1.0} for row in results]
    if without:
        kinder = (
            ""
            if len(without) < len(results)
            else ", or average ties (ties='averaged', --ties averaged)"
        )
        raise ValueError(
            f"detection {without[0]}: no score, and AP ranks detections by it; give each one, such "
            f"as the probability of its tokens{kinder}."
        )
    for number, row in enumerate(results, start=1):
        if not math.isfinite(row["score"]):
            raise ValueError(f"detection {number}: {row['score']} is no score; give a number.")
    common, count = Counter(row["score"] for row in results).most_common(1)[0]
    if ties == "official" and count == len(results) > 1:
        raise ValueError(
            f"all {count} scores are {common}: AP would depend on the order of the images (AP50 "
            ".474 to .499 were seen of the same boxes); give scores that differ, or average ties "
            "(ties='averaged', --ties averaged)."
        )
    return results


def _averaged_precision(evaluation: Any) -> NDArray[np.float64]:
    """Return ``COCOeval.accumulate``'s precision [t, r, k, a, m], ties averaged."""
    params = evaluation.params
    found: NDArray[np.float64] = np.full_like(evaluation.eval["precision"], -1)
    images, areas = len(params.imgIds), len(params.areaRng)
    for k in range(len(params.catIds)):
        for a in range(areas):
            start = (k * areas + a) * images
            rows = [e for e in evaluation.evalImgs[start : start + images] if e is not None]
            wanted = sum(int((row["gtIgnore"] == 0).sum()) for row in rows)
            if wanted:
                for m, most in enumerate(params.maxDets):
                    found[:, :, k, a, m] = _precision_of(rows, most, wanted, params.recThrs)
    return found


def _precision_of(
    rows: Sequence[Mapping[str, Any]], most: int, wanted: int, recalls: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the precision at each recall, [t, r], for one label, range of areas and limit."""
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
        at = np.searchsorted(hits / wanted, recalls, side="left")
        reached = at < len(highest)
        precisions[t, reached] = highest[at[reached]]
    return precisions
