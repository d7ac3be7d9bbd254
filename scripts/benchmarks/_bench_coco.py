"""COCO AP of synthetic boxes: the contenders, and data like that of COCO."""

import contextlib
import importlib
import io
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mm_numeric.evaluation.metrics.coco_ap import METRIC_NAMES, rank_rows

LABELS = 80
PER_IMAGE = 100
TRUTHS = 8
"""Labels, detections per image and true boxes per image."""

OTHERS = {
    "pycocotools": ("pycocotools.coco", "pycocotools.cocoeval", "COCOeval"),
    "faster-coco-eval": ("faster_coco_eval", "faster_coco_eval", "COCOeval_faster"),
}
"""Package -> module of the class COCO, module of the evaluation, and class of the evaluation."""

Rows = list[dict[str, Any]]


def synthetic(boxes: int) -> tuple[dict[str, Any], Rows]:
    """Return a data set and ``boxes`` results, 60 % near a true box, with different scores."""
    draw = np.random.default_rng(0)
    images = max(boxes // PER_IMAGE, 1)
    count = images * TRUTHS
    image = np.repeat(np.arange(1, images + 1), TRUTHS)
    label = draw.integers(1, LABELS + 1, count)
    box = np.hstack([draw.uniform(0, 500, (count, 2)), draw.uniform(8, 200, (count, 2))])
    crowd = draw.random(count) < 0.02
    near = draw.integers(0, count, boxes)
    moved = box[near] * draw.uniform(0.85, 1.15, (boxes, 4))
    far = draw.random(boxes) < 0.4
    moved[far, :2] = draw.uniform(0, 500, (int(far.sum()), 2))
    annotations = [
        {"id": i + 1, "image_id": m, "category_id": k, "bbox": b, "area": b[2] * b[3], "iscrowd": c}
        for i, (m, k, b, c) in enumerate(
            zip(image.tolist(), label.tolist(), box.tolist(), map(int, crowd), strict=True)
        )
    ]
    found = zip(
        image[near].tolist(), label[near].tolist(), moved.tolist(), draw.random(boxes).tolist(),
        strict=True,
    )  # fmt: skip
    results = [{"image_id": m, "category_id": k, "bbox": b, "score": s} for m, k, b, s in found]
    dataset = {
        "info": {},
        "images": [{"id": i} for i in range(1, images + 1)],
        "annotations": annotations,
        "categories": [{"id": k, "name": str(k)} for k in range(1, LABELS + 1)],
    }
    return dataset, results


def contenders() -> dict[str, Callable[[dict[str, Any], Rows], dict[str, float]]]:
    """Return the functions that compute COCO's twelve metrics, by name; ours is the first."""
    found = {"mm-numeric": lambda dataset, results: rank_rows(dataset, results).metrics}
    for name, (api, evaluation, kind) in OTHERS.items():
        try:
            coco = importlib.import_module(api).COCO
            evaluate = getattr(importlib.import_module(evaluation), kind)
        except ImportError:
            print(f"  {name} is not installed and left out: pip install {name}")
            continue
        found[name] = lambda d, r, c=coco, e=evaluate: _official(c, e, d, r)
    return found


def _official(coco: Any, evaluate: Any, dataset: dict[str, Any], results: Rows) -> dict[str, float]:
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco()
        truth.dataset = dataset
        truth.createIndex()
        evaluation = evaluate(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return dict(zip(METRIC_NAMES, map(float, evaluation.stats), strict=False))


def compare_ap(boxes: int) -> None:
    """Time each contender once on the same data, and print times, ratios and differences."""
    print(f"\nCOCO AP of {boxes:,} boxes, {LABELS} labels, {PER_IMAGE} boxes in each image")
    first: tuple[float, dict[str, float]] | None = None
    for name, compute in contenders().items():
        data = synthetic(boxes)  # anew, because pycocotools changes it
        start = time.process_time()
        metrics = compute(*data)
        taken = time.process_time() - start
        first = first or (taken, metrics)
        apart = max(abs(value - first[1][key]) for key, value in metrics.items())
        print(
            f"  {name:<32}{taken:8.2f}   {taken / first[0]:6.2f} x ours, AP {metrics['ap']:.6f}, "
            f"largest difference {apart:.0e}"
        )
