"""Metrics of clock times on a 12-hour dial, in minutes; ``TIMES`` has the rules of each metric.

``linear_deviation_minutes`` may be the metric that the NTIL paper calls "time deviation". The
script of "It's About Time" calls ``it_is_about_time`` "top-1", ``it_is_about_time_minute`` "top-1
minute" and ``hour_accuracy`` "top-1 hour". An answer must have the format ``H:MM`` of the prompt.
Metrics named ``lenient_...`` also accept other formats (see ``mm_numeric.tasks.clock_text``).

Source of "It's About Time": https://github.com/charigyang/itsabouttime, src/eval.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import HALF_DAY_MINUTES, ClockTime
from mm_numeric.evaluation.metrics.base import (
    UNREADABLE,
    Columns,
    Metric,
    RowColumns,
    Scorer,
    Success,
    error_metric,
    mean_of,
    median_of,
    percentage,
    unchanged,
)

WORST_DEVIATION = HALF_DAY_MINUTES // 2
_WORST_LINEAR = HALF_DAY_MINUTES - 1


def dial_deviation_minutes(prediction: ClockTime | None, target: ClockTime) -> int:
    """Return the shortest circular distance between two times, 0 to 360 minutes.

    If ``prediction`` is None (unparseable), return 360, the worst value: a model gains nothing by
    writing text that is not a time.
    """
    if prediction is None:
        return WORST_DEVIATION
    difference = abs(prediction.minutes - target.minutes)
    return min(difference, HALF_DAY_MINUTES - difference)


def with_hands_swapped(time: ClockTime) -> ClockTime:
    """Return the time that is read if the hour hand and the minute hand are confused."""
    short_hand_minute = round(time.minutes / 12) % 60
    return ClockTime(time.minute // 5 or 12, short_hand_minute)


def score_times(
    predictions: Sequence[ClockTime | None], targets: Sequence[ClockTime]
) -> RowColumns:
    """Compare predicted with true times; return columns with one value per row."""
    pairs = list(zip(predictions, targets, strict=True))
    deviations = [dial_deviation_minutes(p, t) for p, t in pairs]
    linear = [_WORST_LINEAR if p is None else abs(p.minutes - t.minutes) for p, t in pairs]
    swapped = [dial_deviation_minutes(p, with_hands_swapped(t)) for p, t in pairs]
    minutes_apart = [60 if p is None else abs(p.minute - t.minute) for p, t in pairs]
    columns = {
        "deviation_minutes": deviations,
        "linear_deviation_minutes": linear,
        "exact": [minutes == 0 for minutes in deviations],
        "within_1_minute": [minutes <= 1 for minutes in deviations],
        "within_5_minutes": [minutes <= 5 for minutes in deviations],
        "hour_accuracy": [p is not None and p.hour == t.hour for p, t in pairs],
        "minute_accuracy": [p is not None and p.minute == t.minute for p, t in pairs],
        "it_is_about_time_minute": [apart in (0, 1, 59) for apart in minutes_apart],
        "hand_swaps": [d > 5 and s <= 5 for d, s in zip(deviations, swapped, strict=True)],
        "unreadable": [p is None for p in predictions],
    }
    return {name: np.array(values, dtype=np.float64) for name, values in columns.items()}


def _mean_of_parsed(columns: Columns) -> NDArray[np.float64]:
    read = 1 - columns["unreadable"]
    count = read.sum(axis=-1)
    total = (columns["deviation_minutes"] * read).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _minutes(name: str, label: str, value: Callable[[Columns], Any]) -> Metric:
    return error_metric(name, label, "min", value, WORST_DEVIATION)


TIMES = Scorer(
    columns=score_times,
    metrics=(
        percentage("within_5_minutes", "within 5 min"),
        percentage("within_1_minute", "within 1 min"),
        percentage("exact", "exact"),
        _minutes("mean_deviation_minutes", "mean deviation", mean_of("deviation_minutes")),
        _minutes("median_deviation_minutes", "median deviation", median_of("deviation_minutes")),
        _minutes(
            "mean_deviation_minutes_parsed_only", "mean deviation, parsed only", _mean_of_parsed
        ),
        percentage("hour_accuracy", "hour right"),
        percentage("minute_accuracy", "minute right"),
        percentage("hand_swaps", "hands swapped", good=False),
        UNREADABLE,
        percentage("it_is_about_time", '"It\'s About Time" rule', mean_of("within_1_minute")),
        percentage("it_is_about_time_minute", '"It\'s About Time" rule, minute'),
        error_metric(
            "linear_deviation_minutes",
            "mean linear deviation",
            "min",
            mean_of("linear_deviation_minutes"),
            _WORST_LINEAR,
        ),
        percentage("lenient_within_5_minutes", "lenient within 5 min"),
        percentage("lenient_within_1_minute", "lenient within 1 min"),
        percentage("lenient_exact", "lenient exact"),
        _minutes(
            "lenient_mean_deviation_minutes",
            "lenient mean deviation",
            mean_of("lenient_deviation_minutes"),
        ),
        percentage("lenient_unreadable", "lenient unreadable", good=False),
    ),
    buckets={"hour": lambda target: str(target.hour)},
    protocols={
        "deviation": {
            "variant": "circular, on a 12-hour dial",
            "unreadable answer": "360 minutes, and wrong in every other respect",
            "parsed only": "mean over the parseable answers",
        },
        "it_is_about_time": {
            "variant": "It's About Time: right within one minute, 719 of 720 included",
            "denominator": "all rows",
        },
        "it_is_about_time_minute": {
            "variant": "It's About Time, top-1 minute: right within one minute, whatever the hour",
            "denominator": "all rows",
        },
        "linear_deviation_minutes": {
            "variant": "minutes after twelve, not circular",
            "unreadable answer": "719 minutes",
        },
        "lenient_*": {
            "variant": "the same, for a lenient reading of the answer",
            "accepted": "7:05:15, 19:05, 0:25, 7:5, 7h05, 7 o'clock, 7 pm, JSON objects",
            "hours": "of 24 hours are converted to the dial",
            "seconds": "ignored",
        },
    },
    success=Success(label="within 5 minutes", column="within_5_minutes"),
    lenient=unchanged,
)
"""Scorer for ``ClockTime`` answers."""
