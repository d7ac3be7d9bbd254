"""Metrics for numbers: accuracy, errors, correlations and digit accuracy.

``NUMBERS`` has the rules of each metric. Metrics named ``..._parsed_only`` exclude unparseable
answers, as the published evaluation of the number token loss does. Errors have the unit of the
numbers. Numbers are clipped to +-1e150, to make sums of squares finite, and ratios to +-1e300.

``GSM8K`` scores the final number of a solution: the number after ``####`` or ``answer is``, or the
whole text. Its ``lenient_accuracy`` is ``flexible-extract`` of lm-evaluation-harness.

``COUNTS`` adds the mean relative accuracy of VSI-Bench (arXiv 2412.14171), with <= as in its script
(the paper has <). CountBench, PixMo-Count and TallyQA report ``accuracy``.

``APPROXIMATE_NUMBERS`` adds ``within_tolerance``, and ``within_5_percent`` of ChartQA and PlotQA.
For numbers without ``%``, ``within_5_percent`` equals ``relaxed_correctness`` of pix2struct
(pix2struct/metrics.py, line 81), except for the target 0: there the script compares texts. Note
that it accepts 2008 for the year 2010.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Number
from mm_numeric.evaluation.metrics.base import (
    UNREADABLE,
    Columns,
    Metric,
    RowColumns,
    Scorer,
    Success,
    mean_of,
    median_where,
    part_of,
    percentage,
    unchanged,
)

Array = NDArray[np.float64]
WeightedMetric = Callable[[Columns, Any], Any]
"""Function from columns and weights to a metric, which reduces the last axis (rows). The weight of
a row is 1 if the row is included, else 0."""

_LARGEST = 1e150
_LARGEST_RATIO = 1e300  # a limit for quotients such as squared errors / variance of tiny targets
_NOISE = Fraction(1, 10**9)
_PLACES = ("units", "tens", "hundreds", "thousands")


def score_numbers(predictions: Sequence[Number | None], targets: Sequence[Number]) -> RowColumns:
    """Compare predicted with true numbers; return columns with one value per row.

    If an answer is unparseable, ``answer_value`` is -target, or 1 if the target is 0. Columns named
    ``log_...`` are on the scale sign(x) log10(1 + |x|). ``digits``, ``units``, ``tens``, ... count
    the digits of the target; ``right_...`` counts how many of these the answer has right.
    """
    read = np.array([prediction is not None for prediction in predictions], dtype=np.float64)
    wanted = clipped([target.value for target in targets])
    given = clipped([0.0 if p is None else p.value for p in predictions])
    given = np.where(read > 0, given, np.where(wanted == 0, 1.0, -wanted))
    error = np.abs(given - wanted)
    with np.errstate(over="ignore"):
        relative = np.divide(error, np.abs(wanted), out=np.zeros_like(error), where=wanted != 0)
    pairs = list(zip(predictions, targets, strict=True))
    log_wanted, log_given = signed_log(wanted), signed_log(given)
    columns = {
        "exact": np.array([p is not None and p == t for p, t in pairs], dtype=np.float64),
        "nearly_exact": np.array([_is_nearly_exact(p, t) for p, t in pairs], dtype=np.float64),
        "is_close": _is_close(pairs, given, wanted) * read,
        "unreadable": 1 - read,
        "target_value": wanted,
        "answer_value": given,
        "absolute_error": error,
        "nonzero": (wanted != 0).astype(np.float64),
        "relative_error": relative.clip(max=_LARGEST_RATIO),
        "log_target_value": log_wanted,
        "log_answer_value": log_given,
        "log_error": np.abs(log_given - log_wanted),
    }
    return columns | _digit_columns(pairs)


def _is_nearly_exact(answer: Number | None, target: Number) -> bool:
    """Return True if an answer equals the target, or differs only by a rounding error (1e-9)."""
    if answer is None or answer == target:
        return answer is not None
    if answer.exact.denominator == 1:  # a whole number has no rounding errors
        return False
    return abs(answer.exact - target.exact) <= _NOISE * max(abs(target.exact), Fraction(1))


def digits_by_place(number: Number) -> tuple[int, str]:
    """Return the number of decimals and the digits of a number: ``-3.50`` -> (2, ``"350"``).

    For a fraction or a number with an exponent, return (0, ``""``).
    """
    text = number.text.lower()
    if "/" in text or "e" in text:
        return 0, ""
    decimals = len(text.partition(".")[2])
    digits = str(int(abs(number.exact) * 10**decimals))
    return decimals, digits.zfill(decimals + 1)


def digit_count(number: Number) -> str:
    """Return the number of digits before the decimal point as a text: ``12.5`` -> ``"2"``."""
    return str(len(str(int(abs(number.exact)))))


def _digit_columns(pairs: Sequence[tuple[Number | None, Number]]) -> dict[str, Array]:
    """Count the digits of each target, and how many the answer has right, by digit place."""
    names = [f"{kind}{place}" for place in ("digits", *_PLACES) for kind in ("", "right_")]
    columns = {name: np.zeros(len(pairs)) for name in names}
    for row, (prediction, target) in enumerate(pairs):
        decimals, wanted = digits_by_place(target)
        given = ""
        if prediction is not None:
            given = str(int(abs(prediction.exact) * 10**decimals)).zfill(len(wanted))
        for i, digit in enumerate(reversed(wanted)):
            place = i - decimals
            names = ["digits", *(_PLACES[place : place + 1] if place >= 0 else ())]
            right = bool(given) and given[-1 - i] == digit
            for name in names:
                columns[name][row] += 1
                columns[f"right_{name}"][row] += right
    return columns


def _is_close(
    pairs: Sequence[tuple[Number | None, Number]], given: Array, wanted: Array
) -> NDArray[np.bool_]:
    """Return ``numpy.isclose(given, wanted)``; numbers that were clipped are compared exactly."""
    found = np.isclose(given, wanted)
    for row in np.flatnonzero(np.maximum(np.abs(given), np.abs(wanted)) >= _LARGEST).tolist():
        answer, target = pairs[row]
        if answer is not None:
            error = abs(answer.exact - target.exact)
            found[row] = error <= Fraction(1e-8) + Fraction(1e-5) * abs(target.exact)
    return found


def clipped(values: Sequence[float]) -> Array:
    """Convert numbers, which may be infinite, to an array; clip them to -1e150 to 1e150."""
    return np.clip(np.array(values, dtype=np.float64), -_LARGEST, _LARGEST)


def signed_log(values: Array) -> Array:
    """Return the values on the scale sign(x) log10(1 + |x|)."""
    return np.sign(values) * np.log10(1 + np.abs(values))


def _mean(columns: Columns, counts: Any, *, column: str) -> Any:
    return _ratio((columns[column] * counts).sum(axis=-1), counts.sum(axis=-1))


def _root_mean_square(columns: Columns, counts: Any) -> Any:
    return np.sqrt(_ratio((columns["absolute_error"] ** 2 * counts).sum(-1), counts.sum(-1)))


def _median(columns: Columns, counts: Any) -> Any:
    return median_where(columns["absolute_error"], counts > 0)


def _r2(columns: Columns, counts: Any, *, prefix: str = "") -> Any:
    """Return R²: 1 - (sum of squared errors) / (sum of squared deviations from the mean target)."""
    target, answer = columns[f"{prefix}target_value"], columns[f"{prefix}answer_value"]
    error = ((answer - target) ** 2 * counts).sum(axis=-1)
    drawn = _drawn(counts, target)
    if drawn is None:
        return 1 - _ratio(error, (_centred(target, counts) ** 2).sum(axis=-1))
    return 1 - _ratio(error, _products(drawn.weights, *drawn.values, *drawn.values)[0])


def _pearson(columns: Columns, counts: Any) -> Any:
    found = _correlation(columns["answer_value"], columns["target_value"], counts)
    return _nan_if_unparseable(columns, found)


def _spearman(columns: Columns, counts: Any) -> Any:
    drawn = _drawn(counts, columns["answer_value"], columns["target_value"])
    if drawn is not None:
        return _nan_if_unparseable(columns, _drawn_spearman(drawn.weights, *drawn.values))
    given, wanted = (
        _ranks(np.where(counts > 0, columns[name], np.inf))
        for name in ("answer_value", "target_value")
    )
    return _nan_if_unparseable(columns, _correlation(given, wanted, counts))


def _nan_if_unparseable(columns: Columns, values: Any) -> Any:
    return np.where((columns["unreadable"] == 0).sum(axis=-1) > 0, values, np.nan)


def _correlation(x: Any, y: Any, counts: Any) -> Any:
    drawn = _drawn(counts, x, y)
    if drawn is not None:
        xy, xx, yy = _products(drawn.weights, *drawn.values)
        return _ratio(xy, np.sqrt(xx) * np.sqrt(yy))
    x, y = (_centred(values / max(np.abs(values).max(), 1.0), counts) for values in (x, y))
    return _ratio((x * y).sum(-1), np.sqrt((x * x).sum(-1) * (y * y).sum(-1)))


class _Drawn(NamedTuple):
    """Columns before resampling, and how often each resample draws each row."""

    values: Sequence[Array]
    """The values of each column, [n]."""

    weights: Array
    """How often each row is in each resample, [resamples, n]."""


def _drawn(counts: Any, *columns: Any) -> _Drawn | None:
    """Return the columns before resampling, and how often each resample draws each row.

    Return None if the columns are not resampled. Rows whose ``counts`` is 0 are left out. With this
    result, the correlations of 2,000 resamples need one matrix product and no copies of resamples.
    """
    if not all(hasattr(column, "weighted") for column in (counts, *columns)):
        return None
    is_counted, weights = counts.weighted
    values = [column.weighted[0] for column in columns]
    kept = np.flatnonzero(is_counted > 0)
    if len(kept) < len(is_counted):
        values, weights = [own[kept] for own in values], weights[:, kept]
    return _Drawn(values, weights)


_CANCELLED = 1e-6
"""A variance below this share of the mean square has rounding errors, because digits cancel."""


def _products(weights: Array, x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return sums over rows of products of deviations from the mean: xy, xx and yy, [resamples]."""
    if not x.size:
        return (np.zeros(len(weights)),) * 3
    (x, x_scale), (y, y_scale) = map(_scaled, (x, y))
    sums = weights @ np.stack([x, y, x * y, x * x, y * y], axis=-1)
    mean_x, mean_y = (sums[:, :2] / weights.sum(axis=-1, keepdims=True).clip(min=1)).T
    of_means = [mean_x * sums[:, 1], mean_x * sums[:, 0], mean_y * sums[:, 1]]
    found = sums[:, 2:] - np.stack(of_means, axis=-1)
    # Recompute with centred values: equal values then have a variance of exactly 0.
    is_cancelled = (sums[:, 3:] > 0) & (found[:, 1:] <= _CANCELLED * sums[:, 3:])
    for i in np.flatnonzero(is_cancelled.any(axis=-1)):
        drawn = weights[i].astype(np.int64)
        a, b = (_centred(np.repeat(own, drawn), np.ones(drawn.sum())) for own in (x, y))
        found[i] = (a * b).sum(), (a * a).sum(), (b * b).sum()
    found *= np.array([x_scale * y_scale, x_scale**2, y_scale**2])
    return found[:, 0], found[:, 1], found[:, 2]


def _scaled(values: Array) -> tuple[Array, float]:
    """Return (values - median) / scale, and the scale: the largest |value - median|."""
    shifted = values - np.partition(values, len(values) // 2)[len(values) // 2]
    scale = float(np.abs(shifted).max()) or 1.0
    return shifted / scale, scale


def _drawn_spearman(weights: Array, x: Array, y: Array) -> Array:
    """Return Spearman's correlation of each resample; equal values share their mean rank."""
    rows = weights.sum(axis=-1, keepdims=True)
    ranks, squares = [], []
    for values in (x, y):
        _, group, equal = np.unique(values, return_inverse=True, return_counts=True)
        ordered, firsts = weights[:, np.argsort(group)], np.cumsum(equal) - equal
        sizes = np.add.reduceat(ordered, firsts, axis=-1) if len(firsts) else weights
        # Ranks are whole or half numbers, so that all sums are exact.
        centred = np.cumsum(sizes, axis=-1) - sizes + (sizes - rows) / 2
        ranks.append(centred[:, group])
        squares.append((sizes * centred**2).sum(axis=-1))
    products = np.einsum("ij,ij,ij->i", weights, *ranks)
    return _ratio(products, np.sqrt(squares[0]) * np.sqrt(squares[1]))


def _centred(values: Any, counts: Any) -> Any:
    """Subtract the mean over the rows where ``counts`` is 1; set the other rows to 0.

    If all values are equal, the result is exactly 0, without rounding errors.
    """
    lowest = np.where(counts > 0, values, np.inf).min(axis=-1, keepdims=True)
    above = np.where(counts > 0, values - lowest, 0.0)
    mean = _ratio(above.sum(axis=-1), counts.sum(axis=-1))
    return (above - mean[..., None]) * counts


def _ranks(values: Any) -> Any:
    """Return the rank of each value along the last axis, from 0. Equal values get the mean rank."""
    order = np.argsort(values, axis=-1)
    ordered = np.take_along_axis(values, order, axis=-1)
    at = np.broadcast_to(np.arange(values.shape[-1]), values.shape)
    new = np.ones(values.shape, dtype=np.bool_)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    first = np.maximum.accumulate(np.where(new, at, 0), axis=-1)
    ends = np.where(np.roll(new, -1, axis=-1), at, values.shape[-1])
    last = np.minimum.accumulate(ends[..., ::-1], axis=-1)[..., ::-1]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, (first + last) / 2, axis=-1)
    return ranks


def _ratio(part: Any, whole: Any) -> Any:
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    with np.errstate(over="ignore"):
        found = np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)
    return found.clip(-_LARGEST_RATIO, _LARGEST_RATIO)


_ERROR, _R2, _CORRELATION = (0.0, math.inf), (-math.inf, 1.0), (-1.0, 1.0)
_ERROR_METRICS: Sequence[tuple[str, str, str, tuple[float, float], WeightedMetric]] = (
    ("mae", "MAE", "", _ERROR, partial(_mean, column="absolute_error")),
    ("r2", "R²", "", _R2, _r2),
    ("median_absolute_error", "median error", "", _ERROR, _median),
    ("rmse", "RMSE", "", _ERROR, _root_mean_square),
    ("pearson", "Pearson", "", _CORRELATION, _pearson),
    ("spearman", "Spearman", "", _CORRELATION, _spearman),
    ("mape", "MAPE", "%", _ERROR, lambda c, n: _mean(c, n * c["nonzero"], column="relative_error")),
    ("log_mae", "log-MAE", "", _ERROR, partial(_mean, column="log_error")),
    ("log_r2", "log-R²", "", _R2, partial(_r2, prefix="log_")),
)
"""Name, label, unit, smallest and largest value, and function of each metric."""


def _error_metrics(*, parsed_only: bool) -> list[Metric]:
    def weighted(metric: WeightedMetric) -> Callable[[Columns], Any]:
        def value(columns: Columns) -> Any:
            unreadable = columns["unreadable"]
            return metric(columns, 1 - unreadable if parsed_only else 0 * unreadable + 1)

        return value

    end, words = ("_parsed_only", ", parsed only") if parsed_only else ("", "")
    return [
        Metric(
            name=name + end,
            label=label + words,
            unit=unit,
            higher_is_better=bounds != _ERROR,
            value=weighted(f),
            bounds=bounds,
        )
        for name, label, unit, bounds, f in _ERROR_METRICS
    ]


NUMBERS = Scorer(
    columns=score_numbers,
    metrics=(
        percentage("accuracy", "accuracy", mean_of("exact")),
        percentage("lenient_accuracy", "accuracy, to 1e-9", mean_of("nearly_exact")),
        *_error_metrics(parsed_only=False),
        percentage("is_close", "close"),
        percentage("digit_accuracy", "digits right", part_of("right_digits", "digits")),
        *(percentage(f"{p}_accuracy", f"{p} right", part_of(f"right_{p}", p)) for p in _PLACES),
        UNREADABLE,
        *_error_metrics(parsed_only=True),
    ),
    buckets={"digits": digit_count},
    by_category=("accuracy", "mae", "r2"),
    success=Success(label="equal in value", column="exact"),
    protocols={
        "accuracy": {
            "variant": "the last number of the text equals the target by value",
            "reading": "1,234 and 2/7 are one number, 1e3 is 1000; the published evaluation of the "
            "number token loss reads 234, 7 and 3",
            "unreadable answer": "wrong",
        },
        "lenient_accuracy": {
            "variant": "as accuracy; a number with decimals may differ by 1e-9 of the target, "
            "or by 1e-9: 5.000000000000002 is 5"
        },
        "is_close": {
            "variant": "numpy.isclose, as the published evaluation of the number token loss",
            "relative tolerance": 1e-5,
            "absolute tolerance": 1e-8,
        },
        "mae, median_absolute_error, rmse, r2, pearson, spearman, mape, log_mae, log_r2": {
            "unreadable answer": "the target with the opposite sign; 1 if the target is 0",
            "parsed only": "over the parseable answers; equal to the published evaluation of the "
            "number token loss for answers up to 1e10, where that evaluation clips them",
            "log": "sign(x) log10(1 + abs(x))",
            "mape": "over the rows whose target is not 0",
            "nothing varies": "no value",
            "no parseable answer": "pearson and spearman have no value",
        },
        "digit_accuracy, units_accuracy, ...": {
            "variant": "digits of the target that the answer has at the same place, without sign",
            "denominator": "all digits of the targets; fractions and exponents have none",
            "unreadable answer": "no digit is correct",
        },
    },
)
"""Scorer for ``Number`` answers."""


GSM8K = replace(
    NUMBERS,
    metrics=(
        NUMBERS.metrics[0],
        percentage("lenient_accuracy", "accuracy, last number", mean_of("lenient_nearly_exact")),
        *NUMBERS.metrics[2:],
    ),
    protocols={
        **NUMBERS.protocols,
        "accuracy": {
            "variant": "grade-school-math, dataset.py: is_correct, by value (5.0 is 5)",
            "unreadable answer": "wrong",
        },
        "lenient_accuracy": {
            "variant": "the last number of the text, if no final number is marked; to 1e-9"
        },
    },
    lenient=unchanged,
)
"""Scorer for the final numbers of GSM8K solutions."""


_LARGEST_ERRORS = 1 - np.linspace(0.5, 0.95, 10)  # has the same rounding errors as the script
_ALONE = 10  # larger counts share a bucket


def score_counts(predictions: Sequence[Number | None], targets: Sequence[Number]) -> RowColumns:
    """Compare predicted with true counts; return columns with one value per row.

    Adds ``within_1`` (0 or 1) and ``mra`` (0 to 1) to the columns of ``score_numbers``.
    """
    columns = score_numbers(predictions, targets)
    is_number = 1 - columns["unreadable"]
    relative = np.where(columns["nonzero"] > 0, columns["relative_error"], columns["exact"] == 0)
    return columns | {
        "within_1": (columns["absolute_error"] <= 1) * is_number,
        "mra": (relative[:, None] <= _LARGEST_ERRORS).mean(axis=1) * is_number,
    }


def count_bucket(target: Number) -> str:
    """Return the bucket of a row: its true count as text, or ``above 10``."""
    return str(target) if target.value <= _ALONE else f"above {_ALONE}"


COUNTS = replace(
    NUMBERS,
    columns=score_counts,
    metrics=(
        NUMBERS.metrics[0],
        percentage("within_1", "within 1"),
        *NUMBERS.metrics[1:3],
        percentage("mra", "MRA"),
        *NUMBERS.metrics[3:],
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


_RELAXED = 0.05
_ROUNDED = 1 + 1e-9  # because 36.74 - 36.6 is more than 0.14 in floats


def score_approximate(
    predictions: Sequence[Number | None], targets: Sequence[Number]
) -> RowColumns:
    """Compare predicted with true numbers; return columns with one value per row.

    Adds ``within_tolerance`` and ``within_5_percent`` (0 or 1) to the columns of ``score_numbers``.
    """
    columns = score_numbers(predictions, targets)
    relative, absolute = np.array([t.tolerance for t in targets]).reshape(-1, 2).T
    is_number = columns["unreadable"] == 0
    has_relative = is_number & (columns["nonzero"] > 0)

    def within(limit: Any) -> Any:
        return has_relative & (columns["relative_error"] <= limit)

    is_exact = columns["exact"] > 0
    # Errors are rounded floats: with a tolerance of 0, only ``exact`` is used.
    is_within = (relative > 0) & within(relative)
    is_within |= (absolute > 0) & is_number & (columns["absolute_error"] <= absolute * _ROUNDED)
    return columns | {
        "within_tolerance": (is_exact | is_within).astype(np.float64),
        "within_5_percent": (is_exact | within(_RELAXED)).astype(np.float64),
    }


APPROXIMATE_NUMBERS = replace(
    NUMBERS,
    columns=score_approximate,
    metrics=(
        percentage("within_tolerance", "within tolerance"),
        percentage("within_5_percent", "within 5 %"),
        *NUMBERS.metrics,
    ),
    by_category=("within_tolerance", "within_5_percent", "accuracy"),
    success=Success(label="within the tolerance", column="within_tolerance"),
    protocols={
        **NUMBERS.protocols,
        "within_tolerance": {
            "variant": "relative error <= relative tolerance, or absolute error <= absolute "
            "tolerance, of the target",
            "unreadable answer": "wrong",
        },
        "within_5_percent": {
            "variant": "relaxed accuracy of ChartQA and PlotQA (pix2struct/metrics.py), years too",
            "comparison": "abs(answer - target) / abs(target) <= 0.05; the target 0 is exact",
            "percent sign": "ignored, as in the text of the target",
            "unreadable answer": "wrong",
        },
    },
)
"""Scorer for ``Number`` answers whose targets have a tolerance."""
