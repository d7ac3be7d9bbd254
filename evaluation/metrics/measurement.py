"""Metrics of instrument readings: those of approximate numbers, with the unit and the range.

within_tolerance   share of readings within the tolerance of their row and in one of its units, as
                   ``all_correct`` of MeasureBench (arXiv 2510.26865). The unit has to be equal:
                   ``cm`` is not accepted because it contains ``m``.
error_of_range     |answer - target| divided by the range of the instrument, at most 1: the error as
                   a fraction of full scale, by which instruments are classed (EN 837-1)
another_unit       share of answers in a unit that the row does not accept. Nothing is converted:
                   97.9 °F is no reading of 36.6 °C, and counts as unparseable in all metrics.
outside_range      share of answers beyond the lowest or highest value of the instrument

The metrics named ``lenient_...`` ignore the unit, as ``number_acc`` of MeasureBench.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mm_numeric.answers import Measurement
from mm_numeric.evaluation.metrics.base import RowColumns, mean_of, percentage, share_of
from mm_numeric.evaluation.metrics.tolerance import APPROXIMATE_NUMBERS, score_approximate


def has_another_unit(answer: Measurement | None, target: Measurement) -> bool:
    """Return True if an answer has a unit that the target does not accept."""
    return answer is not None and bool(answer.units) and answer.units[0] not in target.units


def score_measurements(
    predictions: Sequence[Measurement | None], targets: Sequence[Measurement]
) -> RowColumns:
    """Compare readings with the true ones; return columns with one value per row.

    Columns: those of ``score_approximate``, with answers in another unit as unparseable, and
        another_unit: 0 or 1.
        ranged: 1 if the target has the range of its instrument.
        error_of_range: |answer - target| / range, at most 1, and 1 if unparseable; 0 if not ranged.
        outside_range: 1 if the answer is beyond the range.
    """
    other = [has_another_unit(p, t) for p, t in zip(predictions, targets, strict=True)]
    read = [None if is_other else p for p, is_other in zip(predictions, other, strict=True)]
    spans = [t.range for t in targets]
    columns = {
        "another_unit": other,
        "ranged": [span is not None for span in spans],
        "error_of_range": [_error_of_range(*pair) for pair in zip(read, targets, strict=True)],
        "outside_range": [
            p is not None and span is not None and not span[0] <= p.value <= span[1]
            for p, span in zip(read, spans, strict=True)
        ],
    }
    numbers = score_approximate(read, targets)
    return numbers | {name: np.array(own, dtype=np.float64) for name, own in columns.items()}


def _error_of_range(answer: Measurement | None, target: Measurement) -> float:
    if target.range is None:
        return 0.0
    span = target.range[1] - target.range[0]
    return 1.0 if answer is None else min(abs(answer.value - target.value) / span, 1.0)


def _reason(answer: Any, target: Measurement) -> str | None:
    read = answer if isinstance(answer, Measurement) else None
    return "another unit" if has_another_unit(read, target) else None


def _number_alone(answer: Measurement | None, size_px: tuple[int, int] | None) -> Any:
    return answer and replace(answer, units=())


MEASUREMENTS = replace(
    APPROXIMATE_NUMBERS,
    columns=score_measurements,
    metrics=(
        APPROXIMATE_NUMBERS.metrics[0],
        percentage(
            "error_of_range",
            "error of full scale",
            share_of("error_of_range", "ranged", nothing=np.nan),
            good=False,
        ),
        *APPROXIMATE_NUMBERS.metrics[1:],
        percentage("another_unit", "another unit", good=False),
        percentage(
            "outside_range",
            "outside the range",
            share_of("outside_range", "ranged", nothing=np.nan),
            good=False,
        ),
        percentage("lenient_within_tolerance", "within tolerance, any unit"),
        percentage("lenient_accuracy", "accuracy, any unit", mean_of("lenient_exact")),
    ),
    buckets={"unit": lambda target: target.units[0], **APPROXIMATE_NUMBERS.buckets},
    by_category=("within_tolerance", "mae", "error_of_range"),
    reason=_reason,
    lenient=_number_alone,
    protocols={
        **APPROXIMATE_NUMBERS.protocols,
        "within_tolerance": {
            **APPROXIMATE_NUMBERS.protocols["within_tolerance"],
            "unit": "one of the spellings of the row, by case; nothing is converted",
        },
        "error_of_range": {
            "denominator": "the range of the instrument, in the rows that have one",
            "unreadable answer": "1, the largest value",
        },
        "lenient_*": {"variant": "the number alone: the unit may be missing or another one"},
    },
)
"""Scorer for ``Measurement`` answers."""
