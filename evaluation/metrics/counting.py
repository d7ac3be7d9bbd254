"""Metrics for counts: exact, within 1, MAE, MRA, and those of ``metrics.numbers``.

``accuracy``   share of exact counts, as reported for CountBench, PixMo-Count and TallyQA
``within_1``   share of counts that are off by at most 1
``mra``        mean relative accuracy of VSI-Bench (arXiv 2412.14171), as in lmms-eval,
               tasks/vsibench/utils.py, ``mean_relative_accuracy``: the share of the ten thresholds
               t = 0.5, 0.55, ... 0.95 with |answer - target| / target <= 1 - t, averaged over the
               rows. The paper writes <, and the script <=. An unparseable answer has 0. The script
               divides by the target; here, a target of 0 has 1 for the answer 0 and 0 for others.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mm_numeric.answers import Number
from mm_numeric.evaluation.metrics.base import RowColumns, percentage
from mm_numeric.evaluation.metrics.numbers import NUMBERS, score_numbers

_LARGEST_ERRORS = 1 - np.linspace(0.5, 0.95, 10)  # of the script, with its rounding
_ALONE = 10  # larger counts share a bucket


def score_counts(predictions: Sequence[Number | None], targets: Sequence[Number]) -> RowColumns:
    """Compare predicted with true counts; return columns with one value per row.

    Columns: those of ``score_numbers``, ``within_1`` (0 or 1) and ``mra`` (0 to 1).
    """
    columns = score_numbers(predictions, targets)
    is_number = 1 - columns["unreadable"]
    relative = np.where(columns["nonzero"] > 0, columns["relative_error"], columns["exact"] == 0)
    return columns | {
        "within_1": (columns["absolute_error"] <= 1) * is_number,
        "mra": (relative[:, None] <= _LARGEST_ERRORS).mean(axis=1) * is_number,
    }


def count_bucket(target: Number) -> str:
    """Return the count as text, with one bucket for all counts above 10."""
    return str(target) if target.value <= _ALONE else f"above {_ALONE}"


COUNTS = replace(
    NUMBERS,
    columns=score_counts,
    metrics=(
        NUMBERS.metrics[0],
        percentage("within_1", "within 1"),
        NUMBERS.metrics[1],
        percentage("mra", "MRA"),
        *NUMBERS.metrics[2:],
    ),
    buckets={"count": count_bucket},
    by_category=("accuracy", "within_1", "mae", "mra"),
    protocols={
        **NUMBERS.protocols,
        "within_1": {"variant": "abs(answer - target) <= 1", "unreadable answer": "wrong"},
        "mra": {
            "variant": "mean relative accuracy of VSI-Bench (lmms-eval, tasks/vsibench/utils.py)",
            "thresholds": "0.5 to 0.95 in steps of 0.05",
            "comparison": "abs(answer - target) / target <= 1 - threshold",
            "target 0": "1 for the answer 0, else 0; the script divides by 0",
            "unreadable answer": "0",
        },
    },
)
"""Scorer for counts."""
