"""Convert parsed answers, or the entries of COCO's JSON files, to arrays for COCO's AP.

pycocotools computes the areas and IoUs of masks, which COCO files store as

polygons    [[x1, y1, x2, y2, x3, y3, ...], ...]: the mask is the union of the polygons
RLE         run-length encoding {"size": [height, width], "counts": ...}: lengths of runs of equal
            pixels, column by column, as a list, or as the text that pycocotools writes

A predicted polygon is converted to a mask with the size of the true masks of its image.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pycocotools import mask

from mm_numeric.answers import Instance
from mm_numeric.evaluation.metrics.coco_matching import Side
from mm_numeric.evaluation.metrics.polygon_iou import (
    Bools,
    Floats,
    Ints,
    Pairs,
    Shapes,
    bounds_intersection_areas,
    collect_shapes,
    pairs_in_groups,
)
from mm_numeric.geometry.masks import polygon_rle, run_lengths
from mm_numeric.geometry.row_shapes import LONGEST_PX, corners, finite_numbers

Rle = dict[str, Any]
"""Run-length encoding as pycocotools reads it; ``counts`` are bytes."""

_FARTHEST_PX = 100_000
_CANVAS = 10_000, 10_000  # height, width of predicted masks if their image has no true mask


def read_mask(value: Any, size: tuple[int, int], where: str) -> Rle:
    """Validate ``segmentation``, polygons or an RLE; ``size`` is (height, width) in pixels."""
    if isinstance(value, list) and value:
        return _from_polygons(value, size, where)
    if not isinstance(value, Mapping) or not {"size", "counts"} <= set(value):
        raise ValueError(
            f'{where}: expected polygons [[x1, y1, ...], ...], or {{"size": [height, width], '
            f'"counts": ...}}, found {value!r:.60}.'
        )
    if value["size"] != list(size):
        raise ValueError(
            f"{where}: its size (height, width) is {value['size']!r:.40}, but that of the image is "
            f"{list(size)}; write masks in the size of their image."
        )
    counts = value["counts"]
    # pycocotools does not check the runs: with wrong runs, it hangs or reads foreign memory.
    run_lengths(counts, size, where)
    if isinstance(counts, list):
        return mask.frPyObjects({"size": list(size), "counts": counts}, *size)
    return {"size": list(size), "counts": counts.encode() if isinstance(counts, str) else counts}


def _from_polygons(value: list[Any], size: tuple[int, int], where: str) -> Rle:
    polygons = []
    for i, raw in enumerate(value):
        numbers = finite_numbers(raw, f"{where}, polygon {i + 1}")
        if len(numbers) < 6 or len(numbers) % 2:
            raise ValueError(
                f"{where}, polygon {i + 1}: at least three points are required, as "
                f"[x1, y1, x2, y2, x3, y3, ...], not {len(numbers)} numbers."
            )
        if max(map(abs, numbers)) > _FARTHEST_PX:  # pycocotools would overflow 32-bit integers
            raise ValueError(
                f"{where}, polygon {i + 1}: a coordinate is beyond {_FARTHEST_PX} pixels."
            )
        polygons.append(numbers)
    return mask.merge(mask.frPyObjects(polygons, *size))


def mask_areas(masks: Sequence[Rle]) -> Floats:
    """Return the number of pixels of each mask."""
    # One by one, because pycocotools 2.0.11 fails on more than 255 masks at once.
    return np.array([mask.area(found) for found in masks], dtype=np.float64)


def mask_ious(
    detections: Sequence[Rle],
    truths: Sequence[Rle],
    crowd: Bools,
    at_detection: Ints,
    at_truth: Ints,
) -> Floats:
    """Compute the IoU of predicted and true masks with pycocotools, [p] for p pairs.

    ``at_detection`` and ``at_truth`` are the indices of the two masks of each pair; ``at_truth``
    must be sorted. If the true mask is a crowd region, the intersection is divided by the area of
    the detection, not by the union.
    """
    found = np.zeros(len(at_truth))
    starts = np.flatnonzero(np.diff(at_truth, prepend=-1))
    for start, end in zip(starts, np.append(starts, len(at_truth))[1:], strict=True):
        truth = at_truth[start]
        some = [detections[i] for i in at_detection[start:end]]
        found[start:end] = mask.iou(some, [truths[truth]], [int(crowd[truth])])[:, 0]
    return found


def mask_sizes(images: Sequence[Sequence[Instance]]) -> list[tuple[int, int]] | None:
    """Return height and width of each image from its true masks; None if no object has a mask."""
    found = [next((i.mask.size for i in items if i.mask is not None), None) for items in images]
    return [size or _CANVAS for size in found] if any(found) else None


def collect_masks(
    images: Sequence[Sequence[Instance]], sizes: Sequence[tuple[int, int]]
) -> tuple[Shapes, list[Rle]]:
    """Return areas and bounds of the masks, and the masks; shapes are converted to masks."""
    masks = [_rle(i, size) for items, size in zip(images, sizes, strict=True) for i in items]
    shapes = collect_shapes([[item.shape for item in items] for items in images])
    areas = mask_areas(masks)
    boxes = np.array([mask.toBbox(own) for own in masks]).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    count = len(masks)
    found = Shapes(
        image=shapes.image,
        bounds=boxes,
        areas=areas,
        ring_areas=areas,
        is_box=np.zeros(count, dtype=np.bool_),
        polygons=shapes.polygons,
        invalid=shapes.invalid | (areas == 0),
    )
    return found, masks


def overlapping_masks(
    detections: Shapes, masks: Sequence[Rle], truths: Shapes, true_masks: Sequence[Rle]
) -> Pairs:
    """Find all pairs of a detection and a truth in the same image whose masks overlap."""
    chunks = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for detection, truth in pairs_in_groups(detections.image, truths.image):
        near = bounds_intersection_areas(detections, detection, truths, truth) > 0
        chunks.append((detection[near], truth[near]))
    detection, truth = (np.concatenate(column) for column in zip(*chunks, strict=True))
    iou = mask_ious(masks, true_masks, np.zeros(len(true_masks), np.bool_), detection, truth)
    both = detections.areas[detection] + truths.areas[truth]
    pixels = np.rint(iou / (1 + iou) * both)
    return Pairs(detection, truth, pixels).select(pixels > 0)


def _rle(item: Instance, size: tuple[int, int]) -> Rle:
    if item.mask is None:
        return polygon_rle(corners(item.shape), size)
    counts = {"size": list(item.mask.size), "counts": list(item.mask.counts)}
    return mask.frPyObjects(counts, *item.mask.size)


def side_of_answers(
    images: Sequence[Sequence[Instance]],
    labels: Sequence[str],
    ranks: Floats | None = None,
    sizes: Sequence[tuple[int, int]] | None = None,
) -> tuple[Side, Any]:
    """Convert true or predicted shapes to arrays: image numbers, labels, areas, boxes or masks.

    ``ranks`` are the confidences of predicted shapes; None for true shapes. As in pycocotools, the
    area of a predicted shape is the area of its bounding box, or of its mask. To compare masks,
    ``sizes`` has height and width of each image.
    """
    if sizes is None:
        shapes = collect_shapes([[item.shape for item in items] for items in images])
    else:
        shapes, masks = collect_masks(images, sizes)
    flat = [item for items in images for item in items]
    number = {label: index for index, label in enumerate(labels)}
    boxes = np.hstack([shapes.bounds[:, :2], shapes.bounds[:, 2:] - shapes.bounds[:, :2]])
    side = Side(
        image=shapes.image.astype(np.int64),
        label=np.array([number[item.label] for item in flat], dtype=np.int64),
        areas=shapes.areas if sizes or ranks is None else boxes[:, 2] * boxes[:, 3],
        scores=np.zeros(len(flat)) if ranks is None else ranks,
        crowd=np.array([item.ignore for item in flat], dtype=np.bool_),
    )
    return side, masks if sizes else boxes


def side_of_rows(
    rows: Sequence[Mapping[str, Any]],
    what: str,
    images: Mapping[Any, Mapping[str, Any]],
    names: Mapping[Any, str],
    ranks: Floats | None = None,
    *,
    masks: bool = False,
) -> tuple[Side, Any]:
    """Convert the detections or annotations of a COCO file to arrays, and read boxes or masks.

    Args:
        rows: Entries of the file. Only annotations have an area, and may be crowd regions.
        what: ``detection`` or ``annotation``, for error messages.
        images: Image id -> entry of the image in the instances file.
        names: Category id -> category name. Rows of other categories are skipped.
        ranks: Confidences of the detections; None for annotations.
        masks: True to return masks, False to return boxes.
    """
    image_index, label_index = (
        {key: index for index, key in enumerate(sorted_ids(keys))} for keys in (images, names)
    )
    known = [i for i, row in enumerate(rows) if row["category_id"] in names]
    shapes: Any
    if masks:
        shapes = [_mask(rows[i], f"{what} {i + 1}", images) for i in known]
        areas = mask_areas(shapes)
    else:
        shapes = np.array([rows[i]["bbox"] for i in known], dtype=np.float64).reshape(-1, 4)
        areas = shapes[:, 2] * shapes[:, 3]
    crowd = np.zeros(len(known), dtype=np.bool_)
    if ranks is None:
        areas = np.array([_area(rows[i], f"{what} {i + 1}") for i in known], dtype=np.float64)
        crowd = np.array([bool(rows[i].get("iscrowd")) for i in known], dtype=np.bool_)
    side = Side(
        image=np.array([image_index[rows[i]["image_id"]] for i in known], dtype=np.int64),
        label=np.array([label_index[rows[i]["category_id"]] for i in known], dtype=np.int64),
        areas=areas,
        scores=np.zeros(len(known)) if ranks is None else ranks[known],
        crowd=crowd,
    )
    return side, shapes


def sorted_ids(keys: Iterable[Any]) -> list[Any]:
    """Sort ids as pycocotools does: numbers by value, texts alphabetically."""
    return sorted(keys, key=lambda key: (isinstance(key, str), key))


def _mask(row: Mapping[str, Any], where: str, images: Mapping[Any, Mapping[str, Any]]) -> Rle:
    image = images[row["image_id"]]
    height, width = image.get("height"), image.get("width")
    edges = range(1, LONGEST_PX + 1)
    if not (type(height) is int and height in edges and type(width) is int and width in edges):
        raise ValueError(
            f"image {row['image_id']!r:.40}: masks need its height and width in pixels, not "
            f"{height!r:.20} and {width!r:.20}."
        )
    if row.get("segmentation") is None:
        raise ValueError(f'{where}: no "segmentation", which --iou segm compares; add the mask.')
    return read_mask(row["segmentation"], (height, width), f"{where}, segmentation")


def _area(row: Mapping[str, Any], where: str) -> float:
    area = row.get("area")
    if isinstance(area, bool) or not isinstance(area, int | float) or not 0 <= area < math.inf:
        found = 'no "area"' if area is None else f"the area {area!r:.40} is not a number from 0"
        raise ValueError(
            f"{where}: {found}, which AP by size needs; give the area of the mask, or width x "
            "height of the box, in square pixels."
        )
    return area


def flat_scores(
    scores: Sequence[Sequence[float | None] | None] | None, images: Sequence[Sequence[Any]]
) -> Iterator[float | None]:
    """Yield the confidence of each detection, or None if an image has no confidences."""
    scores = [None] * len(images) if scores is None else scores
    for image, (given, items) in enumerate(zip(scores, images, strict=True), start=1):
        if given is not None and len(given) != len(items):
            raise ValueError(
                f"image {image}: {len(given)} scores for {len(items)} detections; give one per "
                "detection."
            )
        yield from [None] * len(items) if given is None else given


def checked_scores(scores: Sequence[float | None], ties: str, truths: int) -> Floats:
    """Validate the confidence scores of detections, and return them as an array.

    If no detection has a score and ``ties`` (the treatment of equal scores) is ``averaged``, all
    scores are set to 1. Raise ValueError if only some detections have a score, or if the number of
    true shapes (``truths``) is 0.
    """
    if not truths:
        raise ValueError("the ground truth has no annotations, so AP is undefined.")
    if not scores:
        raise ValueError(
            "there are no detections to rank, so AP is undefined; use precision, recall and F1."
        )
    without = [number for number, score in enumerate(scores, start=1) if score is None]
    if ties == "averaged" and len(without) == len(scores):
        return np.ones(len(scores))
    if without:
        averaged = ", or average ties (ties='averaged', --ties averaged)"
        advice = averaged if len(without) == len(scores) else ""
        raise ValueError(
            f"detection {without[0]}: no score, but AP ranks detections by score; give each one, "
            f"such as the probability of its tokens{advice}."
        )
    for number, score in enumerate(scores, start=1):
        if not abs(score) <= sys.float_info.max:  # type: ignore[arg-type]  # False for nan
            raise ValueError(f"detection {number}: the score is {score:.40}; give a finite number.")
    found = np.array(scores, dtype=np.float64)
    if ties == "official" and len(found) > 1 and (found == found[0]).all():
        raise ValueError(
            f"all {len(found)} scores are {scores[0]}: AP would depend on the order of the images "
            "(AP50 from .474 to .499 for the same boxes); give different scores, or average ties "
            "(ties='averaged', --ties averaged)."
        )
    return found
