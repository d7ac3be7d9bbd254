"""Metrics of temporal spans in seconds: R@1 at IoU 0.3, 0.5 and 0.7, and mean IoU.

r1_at_t      share of rows whose first answered span has an IoU of at least t with a true span
mean_iou     mean of this IoU, "mIoU"

Only the first span of an answer counts: further spans are no second attempts. If a row has several
true spans, that with the highest IoU counts, as in QVHighlights. An unparseable answer and a
reversed span have IoU 0.

Sources: QVHighlights, https://github.com/jayleicn/moment_detr, standalone_eval/eval.py
(compute_mr_r1); Charades-STA and ActivityNet Captions, whose rows have one true span, use the same
rule: https://github.com/jiyanggao/TALL, ctrl_model.py and main.py (calculate_IoU, compute_recall).
QVHighlights' mAP needs confidences for several spans, and is not computed.
"""

from collections.abc import Sequence

import numpy as np

from mm_numeric.answers import TimeSpans
from mm_numeric.evaluation.metrics.base import (
    RowColumns,
    Scorer,
    Success,
    mean_of,
    percentage,
    unchanged,
    unparseable,
)

THRESHOLDS = (0.3, 0.5, 0.7)

LENGTHS_SECONDS = (10, 30)
"""QVHighlights calls spans up to these lengths short and middle, and others long."""


def temporal_iou(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Compute the intersection over union of two spans, 0 to 1."""
    both = min(a[1], b[1]) - max(a[0], b[0])
    if both <= 0 or a[1] <= a[0] or b[1] <= b[0]:
        return 0.0
    return both / (a[1] - a[0] + b[1] - b[0] - both)


def score_spans(
    predictions: Sequence[TimeSpans | None], targets: Sequence[TimeSpans]
) -> RowColumns:
    """Compare the first answered span with the nearest true one; return a value per row.

    The column ``iou`` is from 0 to 1, ``r1_at_t`` and ``unreadable`` are 0 or 1.
    """
    ious = np.array(
        [
            0.0 if p is None else max(temporal_iou(p.spans[0], span) for span in t.spans)
            for p, t in zip(predictions, targets, strict=True)
        ]
    )
    recalls = {f"r1_at_{t:g}": (ious >= t).astype(np.float64) for t in THRESHOLDS}
    return {"iou": ious, **recalls, "unreadable": unparseable(predictions)}


def length_of(target: TimeSpans) -> str:
    """Return the length of the first true span: ``short``, ``middle`` or ``long``."""
    start, end = target.spans[0]
    return ("short", "middle", "long")[int(np.digitize(end - start, LENGTHS_SECONDS, right=True))]


_METRICS = [(f"r1_at_{t:g}", f"R@1, IoU {t:g}") for t in THRESHOLDS]

SPANS = Scorer(
    columns=score_spans,
    metrics=(
        *(percentage(name, label) for name, label in _METRICS),
        percentage("mean_iou", "mIoU", mean_of("iou")),
        percentage("unreadable", "unreadable", good=False),
        *(percentage(f"lenient_{name}", f"lenient {label}") for name, label in _METRICS),
        percentage("lenient_mean_iou", "lenient mIoU", mean_of("lenient_iou")),
    ),
    buckets={"length": length_of},
    success=Success(label="IoU of at least 0.5", column="r1_at_0.5"),
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
        "lenient_*": {"variant": "the same, also for a text with two times in other words"},
    },
)
"""Scorer for ``TimeSpans`` answers."""
