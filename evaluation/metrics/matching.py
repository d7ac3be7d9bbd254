"""Match predicted shapes with true shapes, for the drawings and histograms of a report.

Input     rows of ``scores.jsonl``. ``target`` and ``parsed`` are a shape, a list of shapes, or None
          for an unparseable answer. A shape is {"box": [x1, y1, x2, y2]} or {"polygon": [...]} with
          optional "label", "ignore" and "mask", in pixels of the original image.
Matching  one-to-one, greedy by decreasing IoU. A true shape is found if its IoU is at least 0.5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mm_numeric.answers import Box, Instance, Instances, Polygon, Shape
from mm_numeric.evaluation.metrics.base import THRESHOLDS
from mm_numeric.evaluation.metrics.detection import pair_detections
from mm_numeric.evaluation.metrics.polygon_iou import greedy_one_to_one, ious
from mm_numeric.geometry.masks import read_mask
from mm_numeric.geometry.row_shapes import around, corners

FOUND_IOU = THRESHOLDS[0]
"""A true shape counts as found if its IoU is at least this."""

_FARTHEST_PX = 1e6  # shapes with a corner beyond this are not drawn


@dataclass(frozen=True)
class MatchedShapes:
    """The true and predicted shapes of one row, and which true shape matches which prediction."""

    truths: Sequence[Instance]
    """True shapes that are not ignored regions."""

    ignored: Sequence[Instance]
    """Ignored regions, such as illegible text."""

    answers: Sequence[Instance]
    """All predicted shapes, as parsed."""

    ious: Sequence[float]
    """``ious[i]`` is the IoU of ``truths[i]`` with the answer matched to it; 0 if unmatched."""

    partners: Sequence[int | None]
    """``partners[i]`` is the index of the answer matched to ``truths[i]``; None if unmatched."""

    counts: Sequence[bool]
    """``counts[j]`` is False if ``answers[j]`` lies in an ignored region and is not scored."""

    @property
    def found(self) -> list[bool]:
        """Return, for each true shape, True if it is matched with an IoU of at least 0.5."""
        return [iou >= FOUND_IOU for iou in self.ious]

    @property
    def right(self) -> list[bool]:
        """Return, for each predicted shape, True if it is matched with an IoU of at least 0.5."""
        finds = {p for p, found in zip(self.partners, self.found, strict=True) if found}
        return [index in finds for index in range(len(self.answers))]


def read_shapes(value: Any, where: str) -> list[Instance]:
    """Convert the field ``target`` or ``parsed`` of a row in ``scores.jsonl`` to a list of shapes.

    The field is a shape, a list of shapes or None. Shapes are not corrected: a box may be reversed,
    and a polygon may have only one corner. ``where`` names the row in error messages.
    """
    shapes = []
    for item in [] if value is None else value if isinstance(value, list) else [value]:
        shape: Shape
        if item.get("box"):
            shape = Box(*item["box"])
        else:
            numbers = item["polygon"]
            shape = Polygon(tuple(zip(numbers[::2], numbers[1::2], strict=True)))
        label, ignore = str(item.get("label") or ""), item.get("ignore") is True
        mask = read_mask(item["mask"], where) if item.get("mask") else None
        shapes.append(Instance(shape, label, ignore, mask=mask))
    return shapes


def are_words(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return True for rows of ``text_spotting``, where the label of a shape is a text to read."""
    return any("end_to_end_truths" in row for row in rows)


def is_drawable(shape: Shape) -> bool:
    """Return True if all coordinates of a shape are finite and between -1e6 and 1e6 pixels."""
    return all(abs(at) <= _FARTHEST_PX for point in corners(shape) for at in point)


def match_rows(rows: Sequence[Mapping[str, Any]]) -> list[MatchedShapes]:
    """Match the predicted with the true shapes of each row of ``scores.jsonl``.

    If any true shape has a label, only shapes with the same label match, and a predicted shape in
    an ignored region counts only if it matches a true shape at IoU 0.5 or more. Without labels, a
    predicted shape in an ignored region never counts. Words are treated as shapes without labels.
    """
    targets, predictions = (
        [read_shapes(row[key], key) for row in rows] for key in ("target", "parsed")
    )
    labelled = not are_words(rows) and any(truth.label for items in targets for truth in items)
    found = pair_detections(
        [Instances(tuple(items)) for items in predictions],
        [Instances(tuple(items)) for items in targets],
        labelled=labelled,
    )
    pairs, care = found.pairs, found.care
    # As in the scorers, an object in a crowd can be found, but a word in an illegible area cannot.
    areas = found.detections.areas
    outside = found.best_pairs()[2] if labelled else found.outside_ignored(areas)
    iou = ious(found.detections, found.truths, pairs)
    order = np.argsort(-iou, kind="stable")
    order = order[outside[pairs.detection[order]]]
    matched = order[greedy_one_to_one(pairs.select(order))]
    best, partner = np.zeros(len(care)), np.full(len(care), -1)
    best[pairs.truth[matched]] = iou[matched]
    partner[pairs.truth[matched]] = pairs.detection[matched]
    rows_matched, first_truth, first_answer = [], 0, 0
    for true, predicted in zip(targets, predictions, strict=True):
        own = [first_truth + i for i, item in enumerate(true) if not item.ignore]
        rows_matched.append(
            MatchedShapes(
                truths=[item for item in true if not item.ignore],
                ignored=[item for item in true if item.ignore],
                answers=predicted,
                ious=best[own].tolist(),
                partners=[None if at < 0 else at - first_answer for at in partner[own].tolist()],
                counts=outside[first_answer : first_answer + len(predicted)].tolist(),
            )
        )
        first_truth, first_answer = first_truth + len(true), first_answer + len(predicted)
    return rows_matched


def mean_box(rows: Sequence[MatchedShapes]) -> Box | None:
    """Average the bounding boxes of all true shapes to one box; return None without shapes."""
    boxes = [around(truth.shape) for row in rows for truth in row.truths]
    edges = [(box.x1, box.y1, box.x2, box.y2) for box in boxes]
    return Box(*np.mean(edges, axis=0).tolist()) if edges else None
