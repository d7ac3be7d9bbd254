"""DetEval: metrics for text detection with partial credit for split and merged words.

A detection is a predicted shape, a truth is a ground-truth shape. Matches are found in three steps:
one-to-one, one-to-many (a truth split into several detections) and many-to-one (a detection that
merges several truths). Each match adds credit to the recall and to the precision of its image:

recall = sum of credit / number of truths, area recall = intersection / area of the truth
precision = sum of credit / number of detections, area precision = intersection / area of detection

``deteval_total_text`` follows ``Deteval.py`` of the repository cs-chan/Total-Text-Dataset, in the
version since April 2019 (commits 87f80b2 and fb0f371), with polygon areas as in ``polygon_fast.py``
(``polygon_wrapper.py`` counts pixels). The threshold of area recall, ``tr``, is 0.7; the threshold
of area precision, ``tp``, is 0.6. Both ratios are rounded to two decimals. They must be greater
than the threshold in a one-to-one match; in other matches, equality is enough. Split and merged
words get a credit of 0.8 (``fsc_k``) and need 2 or more overlaps (``k``). In a merge, the area
recall of each truth must be at least 0.6: here the script compares a recall with ``tp``.

A truth matches one-to-one under four conditions: (1) exactly one detection has an area recall above
``tr`` with this truth; (2) that detection has an area recall above ``tr`` with no other truth; (3)
exactly one detection has an area precision above ``tp`` with this truth; (4) that detection has an
area precision above ``tp`` with no other truth. As in the script, the detections of (1) and (3) may
be different. The script before April 2019 did not check (2) and (4). On the published detections of
Poly-FRCNN-3, the script gives P 0.784679, R 0.682204, F 0.729862; without (2) and (4) the scores
are P 0.785093, R 0.681120, F 0.729420. Scores equal those of the script if coordinates are
integers, which the script requires. A polygon of area 0 stops the script; here it matches nothing.
"""

from collections.abc import Sequence

import numpy as np
import shapely
from numpy.typing import NDArray

from mm_numeric.answers import Instances
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

Table = NDArray[np.float64]
"""One value per truth and detection of an image, [truths, detections]."""

TOTAL_TEXT = {"tr": 0.7, "tp": 0.6, "fsc_k": 0.8, "k": 2}


def score_total_text(
    predictions: Sequence[Instances | None], targets: Sequence[Instances]
) -> RowColumns:
    """Score the predicted shapes of each image by Total-Text's DetEval.

    Returns arrays with one value per image, such as the credit for recall and the number of true
    shapes. Each matched shape adds a credit of 0.8 or 1. A missing or unparseable answer is None.
    """
    # buffer(0) keeps only the loops in one direction of a polygon that crosses itself.
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
    # sigma is the area recall, tau the area precision.
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
    return {
        "recall_credit": sums[:, 0],
        "precision_credit": sums[:, 1],
        "detected": detected.astype(np.float64),
        "truths": wanted.astype(np.float64),
        "unreadable": unparseable(predictions),
    }


def _total_text_credits(sigma: Table, tau: Table) -> tuple[float, float]:
    """Match the shapes of one image; return the sums of credits for recall and for precision.

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
    """Return True for each truth that overlaps one detection only, which overlaps no other truth.

    ``passes[truth, detection]`` is True if truth and detection overlap by more than a threshold.
    """
    alone = passes & (passes.sum(axis=0) == 1)
    return (passes.sum(axis=1) == 1) & alone.any(axis=1)


_PRECISION, _RECALL = ("precision_credit", "detected"), ("recall_credit", "truths")
DETEVAL_TOTAL_TEXT = Scorer(
    columns=score_total_text,
    metrics=(
        percentage("deteval_hmean", "DetEval Hmean", hmean_of(_PRECISION, _RECALL)),
        percentage("deteval_precision", "DetEval precision", share_of(*_PRECISION)),
        percentage("deteval_recall", "DetEval recall", share_of(*_RECALL)),
        UNREADABLE,
    ),
    buckets=TEXT_DETECTION.buckets,
    counts={"truths": "truths", "detections": "detected"},
    protocols={
        "deteval_*": {
            "variant": "Deteval.py of cs-chan/Total-Text-Dataset since April 2019 (commits "
            "87f80b2, fb0f371), areas as in its polygon_fast.py",
            **TOTAL_TEXT,
            "one-to-one": "the truth and the detection pass each threshold with no other shape",
            "ignored regions": "a detection is excluded if intersection / (its area + 1) exceeds "
            "0.5",
            "invalid polygons": "area by the shoelace formula, intersection after buffer(0); area "
            "0 matches nothing",
            **{name: SHARED_RULES[name] for name in ("unreadable answer", "sums")},
        }
    },
)
"""Scorer for text detection with Total-Text's DetEval, for polygons."""
