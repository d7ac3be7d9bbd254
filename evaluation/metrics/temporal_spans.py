"""Metrics of temporal spans in seconds: R@1, mean IoU, and QVHighlights' mAP, by length of span.

``SPANS`` has the rules of each metric. For average precision, the answered spans are matched in
order of rank, each with the unmatched true span that has the highest IoU. Precision is interpolated
(Pascal VOC 2011). In a bucket of ``length``, such as short, answers are only compared with true
spans of this length; a row may be in several buckets.

Sources: QVHighlights, https://github.com/jayleicn/moment_detr, standalone_eval/eval.py
(compute_mr_r1, compute_mr_ap, get_data_by_range); Charades-STA and ActivityNet Captions, whose rows
have one true span, use the same R@1: https://github.com/jiyanggao/TALL, ctrl_model.py and main.py
(calculate_IoU, compute_recall).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mm_numeric.answers import TimeSpans
from mm_numeric.evaluation.metrics.base import (
    UNREADABLE,
    Columns,
    RowColumns,
    Scorer,
    Success,
    mean_of,
    part_of,
    percentage,
    unchanged,
    unparseable,
)

Span = tuple[float, float]

THRESHOLDS = (0.3, 0.5, 0.7)
"""IoU thresholds at which the first span is correct."""

AP_THRESHOLDS = tuple(i / 100 for i in range(50, 100, 5))
"""IoU thresholds over which average precision is averaged."""

MOST_SPANS = 10
"""Average precision considers at most this many spans of an answer."""

_COLUMNS = ("iou", "ap", "ap_0.5", "ap_0.75")

LENGTHS = {"short": (0, 10), "middle": (10, 30), "long": (30, np.inf)}
"""Name -> range of lengths of a true span in seconds: above the first, at most the second."""


def temporal_iou(a: Span, b: Span) -> float:
    """Compute the intersection over union of two spans, 0 to 1, as the scripts do for R@1."""
    both = _intersection(a, b)
    return both and both / (max(a[1], b[1]) - min(a[0], b[0]))


def _intersection(a: Span, b: Span) -> float:
    return max(0.0, min(a[1], b[1]) - max(a[0], b[0])) if a[0] < a[1] and b[0] < b[1] else 0.0


def _iou_for_precision(a: Span, b: Span) -> float:
    """Compute the IoU of two spans, with the rounding errors of QVHighlights' script for AP."""
    both = _intersection(a, b)
    return both and both / ((a[1] - a[0]) + (b[1] - b[0]) - both)


def average_precisions(answered: Sequence[Span], truths: Sequence[Span]) -> list[float]:
    """Compute the AP of ranked spans at each of ``AP_THRESHOLDS``, for at least one true span."""
    near = []  # rank, IoUs, truths by decreasing IoU (equal IoUs: the last first, as in the script)
    for rank, span in enumerate(answered, start=1):
        ious = [_iou_for_precision(span, truth) for truth in truths]
        if max(ious) >= AP_THRESHOLDS[0]:
            near.append((rank, ious, sorted(range(len(ious)), key=ious.__getitem__)[::-1]))
    return [_average_precision(near, threshold) / len(truths) for threshold in AP_THRESHOLDS]


def _average_precision(near: Iterable[tuple[int, list[float], list[int]]], least: float) -> float:
    """Return the sum of the interpolated precision at each rank that finds a true span."""
    taken = set[int]()
    precisions = []
    for rank, ious, order in near:
        found = next((i for i in order if ious[i] >= least and i not in taken), None)
        if found is not None:
            taken.add(found)
            precisions.append(len(taken) / rank)
    return sum(max(precisions[i:]) for i in range(len(precisions)))


def score_spans(
    predictions: Sequence[TimeSpans | None], targets: Sequence[TimeSpans]
) -> RowColumns:
    """Compare answered with true spans; return columns with one value per row.

    ``iou`` and ``ap`` are from 0 to 1. For columns such as ``short_iou``, answers are only compared
    with true spans of one length; ``short`` is 1 if the row has a short span.
    """
    rows = [_judged(p, t.spans) for p, t in zip(predictions, targets, strict=True)]
    columns = _as_columns("", rows)
    for length in LENGTHS:
        truths = [_of_length(t, length) for t in targets]
        own = [
            of_all if len(true) == len(t.spans) else _judged(p, true)
            for of_all, p, t, true in zip(rows, predictions, targets, truths, strict=True)
        ]
        columns |= _as_columns(f"{length}_", own)
        columns[length] = np.array([bool(t) for t in truths], dtype=np.float64)
    return {**columns, "unreadable": unparseable(predictions)}


def _judged(answer: TimeSpans | None, truths: Sequence[Span]) -> tuple[float, ...]:
    if answer is None or not truths:
        return (0.0,) * len(_COLUMNS)
    precisions = average_precisions(_ranked(answer), truths)
    return (
        max(temporal_iou(answer.spans[0], truth) for truth in truths),
        sum(precisions) / len(precisions),
        precisions[AP_THRESHOLDS.index(0.5)],
        precisions[AP_THRESHOLDS.index(0.75)],
    )


def _as_columns(prefix: str, rows: Sequence[tuple[float, ...]]) -> RowColumns:
    values = np.array(rows, dtype=np.float64).reshape(-1, len(_COLUMNS)).T
    return {f"{prefix}{name}": own for name, own in zip(_COLUMNS, values, strict=True)}


def _ranked(answer: TimeSpans) -> list[Span]:
    spans = answer.spans[:MOST_SPANS]
    if not answer.scores:
        return list(spans)
    return [spans[i] for i in sorted(range(len(spans)), key=lambda i: -answer.scores[i])]


def _of_length(target: TimeSpans, length: str) -> list[Span]:
    low, high = LENGTHS[length]
    return [(a, b) for a, b in target.spans if low < b - a <= high]


def _lengths(target: TimeSpans) -> tuple[str, ...]:
    return tuple(length for length in LENGTHS if _of_length(target, length))


def _judged_by_length(columns: Columns, name: str, length: str) -> Columns:
    """Replace each column by the column of one length, such as ``iou`` by ``short_iou``."""
    if name != "length":
        return columns
    prefix = f"{length}_"
    own = {name.replace(prefix, ""): found for name, found in columns.items() if prefix in name}
    return {**columns, **own}


def _recall(threshold: float, column: str) -> Callable[[Columns], Any]:
    return lambda columns: (columns[column] >= threshold).mean(axis=-1)


_METRICS: tuple[tuple[str, str, Callable[[str], Callable[[Columns], Any]], str], ...] = (
    *((f"r1_at_{t:g}", f"R@1, IoU {t:g}", partial(_recall, t), "iou") for t in THRESHOLDS),
    ("mean_iou", "mIoU", mean_of, "iou"),
    ("map", "mAP", mean_of, "ap"),
    ("map_at_0.5", "mAP, IoU 0.5", mean_of, "ap_0.5"),
    ("map_at_0.75", "mAP, IoU 0.75", mean_of, "ap_0.75"),
)

SPANS = Scorer(
    columns=score_spans,
    metrics=(
        *(percentage(name, label, value(column)) for name, label, value, column in _METRICS),
        *(
            percentage(f"map_{length}", f"mAP, {length} spans", part_of(f"{length}_ap", length))
            for length in LENGTHS
        ),
        UNREADABLE,
        *(
            percentage(f"lenient_{name}", f"lenient {label}", value(f"lenient_{column}"))
            for name, label, value, column in _METRICS[:5]
        ),
    ),
    buckets={"length": _lengths},
    in_bucket=_judged_by_length,
    success=Success(label="IoU of at least 0.5", column="iou", least=0.5),
    lenient=unchanged,
    protocols={
        "r1_at_t, mean_iou": {
            "variant": "moment_detr, standalone_eval: compute_mr_r1",
            "thresholds": list(THRESHOLDS),
            "comparison": "IoU >= t",
            "answer": "the first span; further spans are ignored",
            "target": "the true span with the highest IoU",
            "unreadable answer": "IoU 0",
        },
        "map, map_at_t": {
            "variant": "moment_detr, standalone_eval: compute_mr_ap",
            "thresholds": list(AP_THRESHOLDS),
            "rank": "the score of a span in JSON; without scores, the order of the text",
            "answer": f"the first {MOST_SPANS} spans",
            "unreadable answer": "0, by our rule: the script ends with an error",
        },
        "map_short, map_middle, map_long, length": {
            "variant": "moment_detr, standalone_eval: get_data_by_range",
            "rows": "with a true span of up to 10 s, up to 30 s, longer; a row may be in several",
            "target": "the true spans of this length",
        },
        "lenient_*": {"variant": "the same, also for a text with two times in other words"},
    },
)
"""Scorer for ``TimeSpans`` answers."""
