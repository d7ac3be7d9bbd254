"""Metrics of instrument readings: approximate numbers with a unit and the range of the instrument.

``MEASUREMENTS`` has the rules of each metric. The full-scale error, error / range, defines the
accuracy classes of instruments (EN 837-1). Units are never converted: 97.9 °F is wrong for 36.6 °C,
and an answer in another unit counts as unparseable in all metrics but ``another_unit``. If a row
has intervals of correct values, errors are differences to the middle of the nearest interval in the
unit of the answer.

Units must be equal: ``cm`` is not accepted for ``m``. They are compared after NFKC, so that ``µ``
is ``μ`` and ``m²`` is ``m2``. Case does not matter (``mL`` is ``ml``, ``PSI`` is ``psi``) unless it
distinguishes two SI symbols: ``mW`` and ``MW``, ``ms`` and ``mS``, ``nm`` and ``Nm`` are different
units. A time such as 10:09:30 needs no unit.

The script of MeasureBench (arXiv 2510.26865) has its own parser. A time is the first ``H:MM`` or
``H:MM:SS`` in the text. If there are several intervals, an answer in any interval is right, ends
included. If there is no interval, it is computed from the tolerance of the row.

Source: https://github.com/flageval-baai/MeasureBench, evaluation/measure_bench_evaluator.py.
"""

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mm_numeric.answers import Interval, Measurement
from mm_numeric.evaluation.metrics.base import RowColumns, mean_of, part_of, percentage
from mm_numeric.evaluation.metrics.number_errors import APPROXIMATE_NUMBERS, score_approximate

_MARKERS = ("Answer:", "Answer", "答案：", "答案:", "答案")
_BOXED = re.compile(r"\\boxed\{([^}]+)\}")
_DASHES = str.maketrans({"′": "'", "‐": "-", "−": "-", "–": "-", "⋅": "·"})
# The script's pattern reads a backslash or a u before a number as its sign, and then drops it.
_NUMBER = re.compile(r"([-+]?\d+\s*/\s*[-+]?\d+)|[-+\\u]?(?:\d*\.\d+|\d+\.\d*|\d+)")
_TIME = re.compile(r"\b(\d{1,2}):(\d{2})(?::(\d{2}))?\b")
_NEARLY_ZERO = 1e-6


class _Judged(NamedTuple):
    number: bool
    unit: bool | None
    """Whether the text contains the unit; None if the question asks for no unit."""

    error: float
    """Relative distance of the number to the interval; infinite if the text has no number."""

    @property
    def points(self) -> int:
        return self.number + (self.unit is not False)


def score_texts(texts: Sequence[str], targets: Sequence[Measurement]) -> RowColumns:
    """Judge generated texts by MeasureBench's rules; return columns of 0 or 1."""
    judged = [_best(answer_part(text), t) for text, t in zip(texts, targets, strict=True)]
    columns = {
        "measurebench": [j.points == 2 for j in judged],
        "measurebench_number": [j.number for j in judged],
        "measurebench_unit": [j.unit is True for j in judged],
        "measurebench_asks_unit": [j.unit is not None for j in judged],
    }
    return {name: np.array(own, dtype=np.float64) for name, own in columns.items()}


def answer_part(text: str) -> str:
    """Return the part of a text that has the answer, with plain minus signs."""
    marker = next((marker for marker in _MARKERS if marker in text), None)
    # Search up to the last brace: many unclosed boxed{ would take quadratic time.
    boxed = _BOXED.search(text, 0, text.rfind("}") + 1)
    if marker:
        text = text.rpartition(marker)[2].strip()
    elif boxed:
        text = boxed[1].strip()
    return text.translate(_DASHES)


def _best(text: str, target: Measurement) -> _Judged:
    best: _Judged | None = None
    for interval in target.intervals or (_from_tolerance(target),):
        found = _judge(text, interval, is_time=target.is_time)
        if best is None or found.points > best.points or found.error < best.error:
            best = found
        if found.points == 2:
            break
    assert best is not None
    return best


def _from_tolerance(target: Measurement) -> Interval:
    relative, absolute = target.tolerance
    error = max(relative * abs(target.value), absolute)
    return Interval(target.value - error, target.value + error, target.units)


def _judge(text: str, interval: Interval, *, is_time: bool) -> _Judged:
    low, high, units = interval
    folded = _folded(text)
    unit = any(_folded(unit) in folded for unit in units) if units else None
    at = _first_time(text) if is_time else _last_number(text)
    if at is None:
        return _Judged(False, unit, math.inf)
    if low <= at <= high:
        return _Judged(True, unit, 0.0)
    return _Judged(False, unit, min(abs((at - end) / (end + _NEARLY_ZERO)) for end in (low, high)))


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text.lower())


def _first_time(text: str) -> int | None:
    match = _TIME.search(text)
    if match is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds


def _last_number(text: str) -> float | None:
    last = None
    for match in _NUMBER.finditer(text):
        try:
            if match[1]:
                above, below = map(int, match[1].split("/"))
                last = above / below
            else:
                last = float(match[0])
        except (ValueError, ArithmeticError):  # such as \5 or 5/0
            continue
    return last if last is not None and np.isfinite(last) else None


def _symbols() -> dict[str, list[str]]:
    """Map the lower-case form of unit symbols to the symbols: ``mw`` -> ``mW`` and ``MW``."""
    units = "m M g s t A K V W J N F C Ω S L Pa Hz Nm Ah Wh VA bar"
    found: dict[str, list[str]] = {}
    for symbol in (f"{prefix}{unit}" for prefix in ("", *"GMkhdcmμn") for unit in units.split()):
        found.setdefault(symbol.casefold(), []).append(symbol)
    return found


_SYMBOLS = _symbols()


@lru_cache(maxsize=10_000)
def unit_key(unit: str) -> str:
    """Return a normal form of a unit, which is the same for all spellings of the unit."""
    normal = " ".join(unicodedata.normalize("NFKC", unit).replace("^", "").split())
    return re.sub(r"[^\W\d_]+", lambda match: _symbol(match[0]), normal)


def _symbol(word: str) -> str:
    """Return a unit symbol in the case of the SI, and any other word in lower case.

    A word in the wrong case is corrected if only one symbol has these letters (``PA`` is ``Pa``),
    or if only one such symbol has the same first letter (``Mpa`` is ``MPa``, not ``mPa``).
    """
    known = _SYMBOLS.get(word.casefold(), [])
    for meant in ([word] if word in known else []), known, [s for s in known if s[0] == word[0]]:
        if len(meant) == 1:
            return meant[0]
    return word.casefold()


def _is_in_unit(answer: Measurement, units: Sequence[str], *, is_time: bool) -> bool:
    if answer.is_time or is_time:
        return answer.is_time == is_time
    accepted = {unit_key(unit) for unit in units if unit}
    return not (accepted and answer.units) or unit_key(answer.units[0]) in accepted


def _fitting(answer: Measurement, target: Measurement) -> list[Interval]:
    intervals = target.intervals or (Interval(target.value, target.value, target.units),)
    return [i for i in intervals if _is_in_unit(answer, i.units, is_time=target.is_time)]


def unit_error(answer: Measurement | None, target: Measurement) -> str | None:
    """Return why a target does not accept the unit of an answer; None if it accepts the unit."""
    if answer is None or _fitting(answer, target):
        return None
    if target.is_time:
        return "no time"
    return "no unit" if answer.units == ("",) else "another unit"


def _as_number(answer: Measurement | None, target: Measurement) -> Measurement:
    """Replace a target that has intervals by the middle of the interval nearest to the answer."""
    if not target.intervals:
        return target
    intervals = (answer and _fitting(answer, target)) or target.intervals
    at = target.value if answer is None else answer.value
    low, high, _ = min(intervals, key=lambda i: max(i.low - at, at - i.high))
    middle = (Decimal(str(low)) + Decimal(str(high))) / 2
    return Measurement(f"{middle:f}", range=target.range)


def score_measurements(
    predictions: Sequence[Measurement | None], targets: Sequence[Measurement]
) -> RowColumns:
    """Compare predicted with true readings; return columns with one value per row.

    An answer without the right unit counts as unparseable in the columns of ``score_approximate``.
    ``error_of_range`` is |answer - target| / range, at most 1, and 1 if unparseable. It is 0 if the
    target has no range (then ``ranged`` is 0).
    """
    errors = [unit_error(p, t) for p, t in zip(predictions, targets, strict=True)]
    read = [None if error else p for p, error in zip(predictions, errors, strict=True)]
    numbers = [_as_number(p, t) for p, t in zip(read, targets, strict=True)]
    spans = [t.range for t in targets]
    columns = {
        "another_unit": [error == "another unit" for error in errors],
        "ranged": [span is not None for span in spans],
        "error_of_range": [_error_of_range(*pair) for pair in zip(read, numbers, strict=True)],
        "outside_range": [
            p is not None and span is not None and not span[0] <= p.value <= span[1]
            for p, span in zip(read, spans, strict=True)
        ],
    }
    found = score_approximate(read, numbers)
    for i, (p, t) in enumerate(zip(read, targets, strict=True)):
        if p is not None and t.intervals:
            is_inside = any(low <= p.value <= high for low, high, _ in _fitting(p, t))
            found["within_tolerance"][i] = is_inside
    return found | {name: np.array(own, dtype=np.float64) for name, own in columns.items()}


def _error_of_range(answer: Measurement | None, target: Measurement) -> float:
    if target.range is None:
        return 0.0
    span = target.range[1] - target.range[0]
    return 1.0 if answer is None else min(abs(answer.value - target.value) / span, 1.0)


MEASUREMENTS = replace(
    APPROXIMATE_NUMBERS,
    columns=score_measurements,
    from_text=score_texts,
    metrics=(
        APPROXIMATE_NUMBERS.metrics[0],
        percentage("measurebench", "MeasureBench"),
        percentage("measurebench_number", "MeasureBench, number"),
        percentage(
            "measurebench_unit",
            "MeasureBench, unit",
            part_of("measurebench_unit", "measurebench_asks_unit"),
        ),
        percentage(
            "error_of_range", "error of full scale", part_of("error_of_range", "ranged"), good=False
        ),
        *(m for m in APPROXIMATE_NUMBERS.metrics[1:] if m.name != "lenient_accuracy"),
        percentage("another_unit", "another unit", good=False),
        percentage(
            "outside_range", "outside the range", part_of("outside_range", "ranged"), good=False
        ),
        percentage("lenient_within_tolerance", "within tolerance, any unit"),
        percentage("lenient_accuracy", "accuracy, any unit", mean_of("lenient_nearly_exact")),
    ),
    buckets={
        "unit": lambda t: "time" if t.is_time else next(filter(None, t.units), "none"),
        **APPROXIMATE_NUMBERS.buckets,
    },
    by_category=("within_tolerance", "measurebench", "mae", "error_of_range"),
    reason=lambda answer, target: unit_error(
        answer if isinstance(answer, Measurement) else None, target
    ),
    lenient=lambda answer, _: answer and replace(answer, units=()),
    protocols={
        **APPROXIMATE_NUMBERS.protocols,
        "within_tolerance": {
            **APPROXIMATE_NUMBERS.protocols["within_tolerance"],
            "unit": "one of the spellings of the row; case matters where the SI has both: mW, MW",
            "intervals": "low <= number <= high, in a unit of this interval",
        },
        "measurebench, measurebench_number, measurebench_unit": {
            "variant": "MeasureBench, measure_bench_evaluator.py: all_correct, number_correct, "
            "unit_correct",
            "text": "after the last Answer, or in boxed{}; its last number; 1,234 is 234",
            "unit": "contained in the text, in any case; asked for if the row has a list of units",
        },
        "error_of_range": {
            "denominator": "the range of the instrument, in the rows that have one",
            "unreadable answer": "1, the largest value",
        },
        "lenient_*": {
            "variant": "the number alone: the unit may be missing or another one; "
            "lenient_accuracy to 1e-9"
        },
    },
)
"""Scorer for ``Measurement`` answers."""
