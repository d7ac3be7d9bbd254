"""DetEval: metrics for text detection with partial credit for split and merged words.

A detection is a predicted shape, a truth is a ground-truth shape. Matches are found in three steps:
one-to-one, one-to-many (a truth split into several detections) and many-to-one (a detection that
merges several truths). Each match adds credit to the recall and to the precision of its image:

recall = sum of credit / number of truths, area recall = intersection / area of the truth
precision = sum of credit / number of detections, area precision = intersection / area of detection

``deteval_total_text`` follows ``Deteval.py`` of the repository cs-chan/Total-Text-Dataset as it is
since April 2019 (commits 87f80b2 and fb0f371), with polygon areas as in ``polygon_fast.py``
(``polygon_wrapper.py`` counts pixels). The threshold of area recall, ``tr``, is 0.7, and that of
area precision, ``tp``, is 0.6. Both ratios are rounded to two decimals. They must be greater than
the threshold in a one-to-one match; in other matches, equality is enough. Split and merged words
get a credit of 0.8 (``fsc_k``) and need 2 or more overlaps (``k``). In a merge, the area recall of
each truth must be at least 0.6: here the script compares a recall with ``tp``.

A truth matches one-to-one under four conditions: (1) exactly one detection has an area recall above
``tr`` with this truth; (2) that detection has an area recall above ``tr`` with no other truth; (3)
exactly one detection has an area precision above ``tp`` with this truth; (4) that detection has an
area precision above ``tp`` with no other truth. As in the script, the detections of (1) and (3) may
be different. The script before April 2019 did not check (2) and (4). On the published detections of
Poly-FRCNN-3, the script gives P 0.784679, R 0.682204, F 0.729862; without (2) and (4) the scores
are P 0.785093, R 0.681120, F 0.729420. Scores equal those of the script if coordinates are
integers, which the script requires. A polygon of area 0 stops the script; here it matches nothing.

``deteval_icdar2013`` follows the DetEval script of the Robust Reading Competition (ICDAR 2013,
focused text). Thresholds: area recall 0.8, area precision 0.4. Credit: 1 for one-to-one
(``MTYPE_OO_O``), 0.8 for one-to-many (``MTYPE_OM_O``), 1 for many-to-one (``MTYPE_OM_M``). This is
the version in which both shapes of a one-to-one match have no other overlap, and sums are rounded
to four decimals; older versions give other scores. The script also limits the distance between the
centres. This test is omitted, because overlapping boxes always pass it. Shapes are replaced by
their upright bounding boxes, which include the last pixel. This was tested once against a copy of
the script, and not against the competition's server.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from mm_numeric.answers import Box, Instance, Instances
from mm_numeric.evaluation.metrics.base import (
    UNREADABLE,
    RowColumns,
    Scorer,
    hmean_of,
    percentage,
    share_of,
    unparseable,
)
from mm_numeric.evaluation.metrics.detection import SHARED_RULES, TEXT_DETECTION, pair_detections
from mm_numeric.evaluation.metrics.polygon_iou import FARTHEST_PX

Table = NDArray[np.float64]
"""One value per truth and detection of an image, [truths, detections]."""

TOTAL_TEXT = {"tr": 0.7, "tp": 0.6, "fsc_k": 0.8, "k": 2}
ICDAR2013 = {
    "area_recall": 0.8,
    "area_precision": 0.4,
    "one_to_one": 1.0,
    "one_to_many": 0.8,
    "many_to_one": 1.0,
}


def score_total_text(
    predictions: Sequence[Instances | None], targets: Sequence[Instances]
) -> RowColumns:
    """Score the predicted shapes of each image by Total-Text's DetEval.

    Returns arrays with one value per image, such as the credit for recall and the number of true
    shapes. Each matched shape adds a credit of 0.8 or 1. A prediction is None if the answer is
    missing or unparseable.
    """
    # Of a polygon that crosses itself, only the loops that run in one direction are kept.
    found = pair_detections(
        predictions, targets, repair=lambda polygons: shapely.buffer(polygons, 0)
    )
    detections, truths, pairs = found.detections, found.truths, found.pairs
    outside = found.outside_ignored(detections.ring_areas, added_px=1.0)
    # The script repairs polygons before it intersects them, but not before it computes areas.
    truth_areas = truths.ring_areas[pairs.truth]
    detection_areas = detections.ring_areas[pairs.detection]
    scored = outside[pairs.detection] & (truth_areas > 0) & (detection_areas > 0)
    pairs = pairs.select(scored)
    # Area recall (sigma) and area precision (tau).
    sigma = np.round(pairs.intersection / truth_areas[scored], 2)
    tau = np.round(pairs.intersection / detection_areas[scored], 2)

    sums = np.zeros((len(targets), 2))
    image = truths.image[pairs.truth]
    starts = np.flatnonzero(np.diff(image, prepend=-1))
    for start, end in zip(starts, np.append(starts, len(image))[1:], strict=True):
        rows, row = np.unique(pairs.truth[start:end], return_inverse=True)
        columns, column = np.unique(pairs.detection[start:end], return_inverse=True)
        tables = np.zeros((2, len(rows), len(columns)))
        tables[0, row, column], tables[1, row, column] = sigma[start:end], tau[start:end]
        sums[image[start]] = _total_text_credits(*tables)
    detected = np.bincount(detections.image[outside], minlength=len(targets))
    wanted = np.bincount(truths.image[found.care], minlength=len(targets))
    return _columns(sums, detected, wanted, predictions)


def _total_text_credits(sigma: Table, tau: Table) -> tuple[float, float]:
    """Match the shapes of one image; return the sums of scores for recall and for precision.

    ``sigma[truth, detection]`` is the intersection divided by the area of the truth, and
    ``tau[truth, detection]`` is the intersection divided by the area of the detection.
    """
    tr, tp, fsc_k, k = (TOTAL_TEXT[name] for name in ("tr", "tp", "fsc_k", "k"))
    recall = precision = 0.0
    truth_free, free = np.ones(sigma.shape[0], np.bool_), np.ones(sigma.shape[1], np.bool_)
    for g in np.flatnonzero(_is_single(sigma > tr) & _is_single(tau > tp)):
        recall, precision = recall + 1, precision + 1
        truth_free[g] = free[sigma[g] > tr] = False
    for g in np.flatnonzero(truth_free & ((sigma > 0).sum(axis=1) >= k)):
        parts = np.flatnonzero((tau[g] >= tp) & free)
        credit = 1 if len(parts) == 1 else fsc_k
        if sigma[g, parts].sum() >= tr:
            recall, precision = recall + credit, precision + len(parts) * credit
            truth_free[g] = free[parts] = False
    for d in np.flatnonzero(free & ((tau > 0).sum(axis=0) >= k)):
        held = np.flatnonzero((sigma[:, d] >= tp) & truth_free)
        credit = 1 if len(held) == 1 else fsc_k
        enough = tau[held, d].sum() >= tp
        if enough and (len(held) != 1 or sigma[held[0], d] >= tr):
            recall, precision = recall + len(held) * credit, precision + credit
            truth_free[held] = free[d] = False
    return recall, precision


def _is_single(passes: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return True for each truth with a single overlapping detection that overlaps no other truth.

    ``passes[truth, detection]`` is True if both overlap by more than a threshold.
    """
    alone = passes & (passes.sum(axis=0) == 1)
    return (passes.sum(axis=1) == 1) & alone.any(axis=1)


def score_icdar2013(
    predictions: Sequence[Instances | None], targets: Sequence[Instances]
) -> RowColumns:
    """Score the predicted shapes of each image by ICDAR 2013's DetEval.

    Returns arrays with one value per image, such as the credit for recall and the number of true
    shapes. Each matched shape adds a credit of 0.8 or 1. A prediction is None if the answer is
    missing or unparseable.
    """
    sums = np.zeros((len(targets), 2))
    detected, wanted = np.zeros(len(targets)), np.zeros(len(targets))
    for i, (prediction, target) in enumerate(zip(predictions, targets, strict=True)):
        detections = _Rectangles(() if prediction is None else prediction.items)
        truths = _Rectangles(target.items)
        care = np.array([not item.ignore for item in target.items], dtype=np.bool_)
        shared = truths.intersections(detections)
        recalls = np.divide(shared, truths.areas[:, None], where=shared > 0, out=0 * shared)
        precisions = np.divide(shared, detections.areas, where=shared > 0, out=0 * shared)
        counts = ~(precisions[~care] > ICDAR2013["area_precision"]).any(axis=0)
        detected[i], wanted[i] = counts.sum(), care.sum()
        sums[i] = _icdar2013_credits(recalls, precisions, care, counts)
    return _columns(sums, detected, wanted, predictions)


def _icdar2013_credits(
    recalls: Table, precisions: Table, care: NDArray[np.bool_], counts: NDArray[np.bool_]
) -> tuple[float, float]:
    """Match the shapes of one image; return its credit for recall and for precision.

    ``recalls[truth, detection]`` is the intersection divided by the area of the truth, and
    ``precisions`` is the intersection divided by the area of the detection. ``care`` is False for
    an ignored truth, ``counts`` is False for a detection in an ignored truth.
    """
    least_recall, least_precision = ICDAR2013["area_recall"], ICDAR2013["area_precision"]
    fits = (recalls >= least_recall) & (precisions >= least_precision)
    lone = fits & (fits.sum(axis=1, keepdims=True) == 1) & (fits.sum(axis=0) == 1)
    truth_overlaps = ((recalls > 0) & counts).sum(axis=1)
    overlaps = ((recalls > 0) & care[:, None]).sum(axis=0)
    single = (truth_overlaps[:, None] == 1) & (overlaps == 1)
    alone = lone & single & care[:, None] & counts
    recall = precision = ICDAR2013["one_to_one"] * float(alone.sum())
    truth_free, free = care & ~alone.any(axis=1), counts & ~alone.any(axis=0)
    for g in np.flatnonzero(truth_free & (truth_overlaps >= 2)):
        parts = np.flatnonzero(free & (precisions[g] >= least_precision))
        if round(sum(recalls[g, parts].tolist()), 4) >= least_recall:
            credit = ICDAR2013["one_to_one" if len(parts) == 1 else "one_to_many"]
            recall, precision = recall + credit, precision + len(parts) * credit
            truth_free[g] = free[parts] = False
    for d in np.flatnonzero(free & (overlaps >= 2)):
        held = np.flatnonzero(truth_free & (recalls[:, d] >= least_recall))
        if round(sum(precisions[held, d].tolist()), 4) >= least_precision:
            credit = ICDAR2013["one_to_one" if len(held) == 1 else "many_to_one"]
            recall, precision = recall + len(held) * credit, precision + credit
            truth_free[held] = free[d] = False
    return recall, precision


class _Rectangles:
    """Upright boxes whose last pixel is included: a box from 3 to 3 is one pixel wide."""

    def __init__(self, items: Sequence[Instance]) -> None:
        corners = np.array(list(map(_bounding_box, items)), dtype=np.float64).reshape(-1, 2, 2)
        corners = np.nan_to_num(corners.clip(-FARTHEST_PX, FARTHEST_PX))
        self.low, self.high = corners[:, 0], corners[:, 1]
        self.sides = self.high - self.low + 1
        self.areas = self.sides.prod(axis=1)

    def intersections(self, other: "_Rectangles") -> Table:
        """Compute the intersection area of each box with each box of ``other``."""
        ends = np.minimum(self.high[:, None], other.high)
        sides = ends - np.maximum(self.low[:, None], other.low) + 1
        whole = (self.high >= self.low).all(axis=1)[:, None] & (other.high >= other.low).all(axis=1)
        areas: Table = sides.clip(min=0).prod(axis=2)
        return np.where(whole, areas, 0)


def _bounding_box(item: Instance) -> tuple[float, ...]:
    """Return x1, y1, x2, y2: those of a box unchanged, or the bounding box of a polygon."""
    xs, ys = zip(*item.shape.points, strict=True)
    if isinstance(item.shape, Box):
        return xs[0], ys[0], xs[1], ys[1]
    return min(xs), min(ys), max(xs), max(ys)


def _columns(
    sums: Table,
    detected: NDArray[np.generic],
    truths: NDArray[np.generic],
    predictions: Sequence[Instances | None],
) -> RowColumns:
    return {
        "recall_credit": sums[:, 0],
        "precision_credit": sums[:, 1],
        "detected": detected.astype(np.float64),
        "truths": truths.astype(np.float64),
        "unreadable": unparseable(predictions),
    }


def _scorer(columns: Callable[..., RowColumns], name: str, rules: Mapping[str, Any]) -> Scorer:
    precision, recall = ("precision_credit", "detected"), ("recall_credit", "truths")
    return Scorer(
        columns=columns,
        metrics=(
            percentage("deteval_hmean", "DetEval Hmean", hmean_of(precision, recall)),
            percentage("deteval_precision", "DetEval precision", share_of(*precision)),
            percentage("deteval_recall", "DetEval recall", share_of(*recall)),
            UNREADABLE,
        ),
        buckets=TEXT_DETECTION.buckets,
        counts={"truths": "truths", "detections": "detected"},
        protocols={"deteval_*": {"variant": name, **rules}},
    )


_UNREAD = {name: SHARED_RULES[name] for name in ("unreadable answer", "sums")}

DETEVAL_TOTAL_TEXT = _scorer(
    score_total_text,
    "Deteval.py of cs-chan/Total-Text-Dataset since April 2019 (commits 87f80b2, fb0f371), areas "
    "as in its polygon_fast.py",
    {
        **TOTAL_TEXT,
        "one-to-one": "the truth and the detection pass each threshold with no other shape",
        "ignored regions": "a detection is excluded if intersection / (its area + 1) exceeds 0.5",
        "invalid polygons": "area by the shoelace formula, intersection after buffer(0); area 0 "
        "matches nothing",
        **_UNREAD,
    },
)
"""Scorer for text detection with Total-Text's DetEval, for polygons."""

DETEVAL_ICDAR2013 = _scorer(
    score_icdar2013,
    "Robust Reading Competition's DetEval for ICDAR 2013, with the single-overlap check",
    {
        **ICDAR2013,
        "shapes": "their bounding boxes, including the last pixel",
        "ignored regions": "a detection is excluded if more than 0.4 of it lies in one of them",
        **_UNREAD,
    },
)
"""Scorer for text detection with ICDAR 2013's DetEval, for upright boxes."""
