"""Metrics of ClockBench: clocks with seconds and date, and clocks that show no valid time.

``CLOCKBENCH`` has the rules of each metric. The share of right hours, or of another field, counts
the clocks that show a valid time and this field; an answer without ``"valid": true`` is wrong. The
target of a field may be a number, a range ``[4, 5]`` or a list of accepted numbers. Case does not
matter in texts. Answers may have numbers as texts; 7.9 counts as 7, as in the script.

Source: https://clockbench.ai, clockbench_grade.py. The script also recognises 24-hour clocks by
their names, and asks four questions in one conversation.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mm_numeric.answers import ClockReading
from mm_numeric.evaluation.metrics.base import (
    UNREADABLE,
    Metric,
    RowColumns,
    Scorer,
    Success,
    error_metric,
    median_where,
    part_of,
    percentage,
)

_INTEGER = re.compile(r"-?[0-9]+")
_TIME = ("hours", "minutes", "seconds")
_FALSE = ("false", "none", "null", "n/a", "")


def is_match(expected: Any, given: Any) -> bool:
    """Return True if the answered value of a field, such as the hours, matches the true one."""
    if isinstance(expected, str):
        return isinstance(given, str) and expected.strip().casefold() == given.strip().casefold()
    if isinstance(expected, bool) or expected is None:
        return bool(expected == given)
    number = _integer(given)
    return number is not None and any(low <= number <= high for low, high in _ranges(expected))


def _integer(value: Any) -> int | None:
    if isinstance(value, str):
        text = value.strip()
        return int(text) if len(text) < 20 and _INTEGER.fullmatch(text) else None
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _ranges(expected: Any) -> list[tuple[int, int]]:
    """Return the numbers that a target accepts, as ranges: 7 -> [(7, 7)], [4, 5] -> [(4, 5)]."""
    if isinstance(expected, Mapping):
        return [each for value in expected.values() for each in _ranges(value)]
    if isinstance(expected, list):
        if len(expected) == 2:
            return [(int(expected[0]), int(expected[1]))]
        return [(int(number), int(number)) for number in expected]
    return [(int(expected), int(expected))]


def is_correct(answer: ClockReading, target: ClockReading) -> bool:
    """Return True if ClockBench's script counts an answer as correct."""
    if answer.fields.get("valid") is not target.fields["valid"]:
        return False
    return not target.fields["valid"] or all(
        is_match(expected, answer.fields.get(name)) for name, expected in target.fields.items()
    )


def delta_seconds(answer: ClockReading, target: ClockReading) -> float | None:
    """Return the circular distance in seconds between a wrong answer and the true time.

    Returns None where ClockBench's script computes no distance: the clock shows no valid time, its
    target has several times, the answer is correct, or the answered time is not in integers.
    """
    wanted, given = ([reading.fields.get(name) for name in _TIME] for reading in (target, answer))
    if not target.fields["valid"] or any(isinstance(value, Mapping) for value in wanted):
        return None
    if all(is_match(one, other) for one, other in zip(wanted, given, strict=True)):
        return None
    period = 24 if (_integer(wanted[0]) or 0) >= 13 else 12
    middles = [
        round((value[0] + value[1]) / 2) if isinstance(value, list) and len(value) == 2 else value
        for value in wanted
    ]
    one, other = _seconds(middles, period), _seconds(given, period)
    if one is None or other is None:
        return None
    return float(min(abs(one - other), 3600 * period - abs(one - other)))


def _seconds(values: Sequence[Any], period: int) -> int | None:
    """Convert [hours, minutes, seconds] to seconds; None if a value is no integer (missing: 0)."""
    numbers = [0 if value is None or value is False else _integer(value) for value in values]
    if None in numbers:
        return None
    hour, minute, second = (number or 0 for number in numbers)
    return (hour % period * 3600 + minute * 60 + second) % (3600 * period)


def score_readings(
    predictions: Sequence[ClockReading | None], targets: Sequence[ClockReading]
) -> RowColumns:
    """Compare readings of clocks with targets; return columns with one value per row.

    ``delta_seconds`` is in seconds; all other columns are 0 or 1. For example, ``has_weekday`` is 1
    if the clock shows a weekday, and ``right_weekday`` is 1 if the answer has it right.
    """
    pairs = [(p or ClockReading({}), t) for p, t in zip(predictions, targets, strict=True)]
    deltas = [
        None if p is None else delta_seconds(p, t)
        for p, t in zip(predictions, targets, strict=True)
    ]
    correct = [is_correct(p, t) for p, t in pairs]
    valid = [t.fields["valid"] for _, t in pairs]
    columns: dict[str, Sequence[Any]] = {
        "accuracy": correct,
        "has_valid": valid,
        "right_valid": [right and is_valid for right, is_valid in zip(correct, valid, strict=True)],
        "has_invalid": [not is_valid for is_valid in valid],
        "right_invalid": [r and not is_valid for r, is_valid in zip(correct, valid, strict=True)],
        "predicted_invalid": [p.fields.get("valid") is False for p, _ in pairs],
        "delta_seconds": [delta or 0.0 for delta in deltas],
        "has_delta_seconds": [delta is not None for delta in deltas],
        "unreadable": [prediction is None for prediction in predictions],
    }
    for name in ClockReading.FIELDS:
        columns[f"has_{name}"] = [_shows(t, name) for _, t in pairs]
        columns[f"right_{name}"] = [
            _shows(t, name)
            and p.fields.get("valid") is True
            and is_match(t.fields[name], p.fields.get(name))
            for p, t in pairs
        ]
    return {name: np.array(values, dtype=np.float64) for name, values in columns.items()}


def _shows(target: ClockReading, name: str) -> bool:
    value = target.fields.get(name)
    return target.fields["valid"] and value is not None and value is not False


def lenient_reading(answer: ClockReading | None, size_px: Any = None) -> ClockReading | None:
    """Return an answer with its format corrected: the text ``true`` becomes the boolean True.

    Missing fields are set to False. A missing ``valid`` is set to True if the hours are an integer.
    """
    if answer is None:
        return None
    fields = {str(name).lower(): _truth(value) for name, value in answer.fields.items()}
    if not isinstance(fields.get("valid"), bool):
        fields["valid"] = _integer(fields.get("hours")) is not None
    return ClockReading({**dict.fromkeys(ClockReading.FIELDS, False), **fields})


def _truth(value: Any) -> Any:
    """Convert null and texts such as ``none`` to False, and ``true`` to True."""
    if value is None or (isinstance(value, str) and value.strip().casefold() in _FALSE):
        return False
    return True if isinstance(value, str) and value.strip().casefold() == "true" else value


def _share(name: str, label: str, prefix: str = "") -> Metric:
    value = part_of(f"{prefix}right_{name}", f"{prefix}has_{name}")
    known = {"valid": "valid_accuracy", "invalid": "invalid_accuracy"}
    return percentage(prefix + known.get(name, name), label, value)


CLOCKBENCH = Scorer(
    columns=score_readings,
    metrics=(
        percentage("accuracy", "correct"),
        _share("valid", "correct, valid clocks"),
        _share("invalid", "correct, no valid time"),
        percentage("predicted_invalid", "called invalid", good=False),
        *(_share(name, f"{name} right") for name in ClockReading.FIELDS),
        error_metric(
            "mean_delta_seconds",
            "mean deviation if wrong",
            "s",
            part_of("delta_seconds", "has_delta_seconds"),
        ),
        error_metric(
            "median_delta_seconds",
            "median deviation if wrong",
            "s",
            lambda c: median_where(c["delta_seconds"], c["has_delta_seconds"] > 0),
        ),
        UNREADABLE,
        percentage("lenient_accuracy", "lenient correct"),
        _share("valid", "lenient correct, valid clocks", "lenient_"),
        _share("invalid", "lenient correct, no valid time", "lenient_"),
        percentage("lenient_unreadable", "lenient unreadable", good=False),
    ),
    buckets={"shows": lambda target: "valid time" if target.fields["valid"] else "no valid time"},
    protocols={
        "accuracy, valid_accuracy, invalid_accuracy, predicted_invalid": {
            "variant": "ClockBench, clockbench_grade.py, each question for itself",
            "fields": "all those of the target; false is matched by false or 0",
            "ranges": "both ends included",
            "unreadable answer": "wrong; the script fails",
        },
        "mean_delta_seconds, median_delta_seconds": {
            "variant": "ClockBench: over valid clocks whose hours, minutes or seconds are wrong",
            "period": "24 hours if the target's hour is 13 or more, else 12",
            "ranges": "their middle",
            "unreadable answer": "not included",
        },
        "lenient_*": {
            "variant": "the same, for a lenient reading of the answer",
            "accepted": "times without JSON; missing fields are false; truth values as texts",
        },
    },
    success=Success(label="correct in every field", column="accuracy"),
    lenient=lenient_reading,
)
"""Scorer for ``ClockReading`` answers."""
