"""Made-up COCO data, and the figures of pycocotools for it."""

import contextlib
import io
import math

import numpy as np
from pycocotools import mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


def evaluated(dataset, results, iou="bbox", max_detections=(1, 10, 100), areas=None):
    """Run pycocotools on data in COCO's format; return its ``COCOeval`` after ``accumulate``."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = dataset
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes([dict(row) for row in results]), iou)
        evaluation.params.maxDets = list(max_detections)
        if areas is not None:
            evaluation.params.areaRng = [[0, 1e10], *map(list, areas.values())]
            evaluation.params.areaRngLbl = ["all", *areas]
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation


def summarized(evaluation):
    """Return the metrics of a ``COCOeval``, averaged from its tables as ``summarize`` does."""
    params, tables = evaluation.params, evaluation.eval
    precision, recall = tables["precision"], tables["recall"]

    def mean(values):
        known = values[values > -1]
        return float(known.mean()) if known.size else math.nan

    found = {
        "ap": mean(precision[:, :, :, 0, -1]),
        "ap_50": mean(precision[0, :, :, 0, -1]),
        "ap_75": mean(precision[5, :, :, 0, -1]),
    }
    for a, name in enumerate(params.areaRngLbl[1:], start=1):
        found[f"ap_{name}"] = mean(precision[:, :, :, a, -1])
        found[f"ar_{name}"] = mean(recall[:, :, a, -1])
    for m, most in enumerate(params.maxDets):
        found[f"ar_{most}"] = mean(recall[:, :, 0, m])
    return found


def crowded(seed, images=12, labels=3, *, whole=False):
    """Return a data set and results with many shapes per image, crowds and equal scores.

    With ``whole``, coordinates are whole numbers from a small grid, so that many IoUs are equal.
    """
    draw = np.random.default_rng(seed)
    annotations, results = [], []
    for image in range(1, images + 1):
        for _ in range(draw.integers(0, 15)):
            box = np.concatenate([draw.uniform(0, 90, 2), draw.uniform(4, 150, 2)])
            box = np.round(box / 10) * 10 + [0, 0, 10, 10] if whole else box
            row = {"image_id": image, "category_id": int(draw.integers(1, labels + 1))}
            annotations.append({
                **row, "id": len(annotations) + 1, "bbox": box.tolist(),
                "area": float(box[2] * box[3]), "iscrowd": int(draw.random() < 0.15),
            })  # fmt: skip
            for _ in range(draw.integers(0, 4)):
                moved = (
                    box + draw.integers(-1, 2, 4) * 10
                    if whole
                    else box * draw.uniform(0.85, 1.15, 4)
                )
                results.append(
                    {**row, "bbox": np.abs(moved).tolist(), "score": float(draw.integers(9) / 9)}
                )
    return {
        "images": [{"id": i, "width": 260, "height": 250} for i in range(1, images + 1)],
        "annotations": annotations,
        "categories": [{"id": k, "name": f"label {k}"} for k in range(1, labels + 1)],
    }, results  # fmt: skip


def as_masks(dataset, results):
    """Return the same data with masks: truths as polygons or RLE, results as compressed RLE."""
    height, width = 250, 260

    def octagon(box):
        x, y, w, h = box
        corners = [(0.3, 0), (0.7, 0), (1, 0.3), (1, 0.7), (0.7, 1), (0.3, 1), (0, 0.7), (0, 0.3)]
        return [float(at) for dx, dy in corners for at in (x + dx * w, y + dy * h)]

    annotations = []
    for row in dataset["annotations"]:
        drawn = octagon(row["bbox"])
        shape = [drawn[:8] + drawn[14:], drawn[8:]]
        encoded = mask.merge(mask.frPyObjects(shape, height, width))
        if row["iscrowd"]:  # as in COCO's files: counts as a list
            pixels = mask.decode(encoded).flatten(order="F")
            edges = np.flatnonzero(np.diff(pixels, prepend=0)).tolist()
            runs = np.diff([0, *edges, height * width]).tolist()
            shape = {"size": [height, width], "counts": runs}
        annotations.append({**row, "segmentation": shape, "area": float(mask.area(encoded))})
    found = []
    for row in results:
        encoded = mask.frPyObjects([octagon(row["bbox"])], height, width)[0]
        encoded["counts"] = encoded["counts"].decode()
        kept = {name: row[name] for name in ("image_id", "category_id", "score")}
        found.append({**kept, "segmentation": encoded})
    return {**dataset, "annotations": annotations}, found
