"""95 % confidence intervals of one run, several training seeds or a difference; and p-values.

For one run, the interval has the percentiles of the metric on resampled test rows (``bootstrap``).

With several seeds, both the seeds and the test rows are samples. In simulated comparisons whose
seeds differ by 3 points, on 500 rows, the interval of a bootstrap over seeds and rows contains the
true difference in 87 % of the cases with two seeds and in 94 to 96 % with five. The interval of
Student's t over seeds, which ignores that all seeds share a sample of rows, contains it in 92 to
95 %. This module adds the covariance caused by the shared rows to the variance between seeds. Its
interval contains the true difference in 96 to 98 % of the cases with two seeds, and in 94 to 96 %
with five or more. ``tests/helpers/interval_coverage.py`` prints these shares. It also prints how
often a family of hypotheses without any effect has a clear difference: in 1 to 3 % of the cases if
seeds do not differ, otherwise in 4 to 6 %.

The p-values of a comparison are corrected for multiple testing by the method of Holm (1979). Only
differences of the first metric have corrected p-values (``p_holm``), and only with enough seeds.
Each table of summary.json is a family of hypotheses. The control and warm starts are in no family,
because they are not candidates for the best objective. The families of ``compare.hypotheses`` are
separate, and may be about any metric.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mm_numeric.evaluation.metrics.bootstrap import MetricSample, Name

ENOUGH_SEEDS = 5
"""A comparison needs at least this number of seeds to call an objective better than another."""

_PERCENTILES = (2.5, 97.5)
_LARGEST_SQUARED = 1e100  # larger values are scaled before they are squared
_MOST_FREEDOM = 1000.0  # from here on, Student's t equals the normal distribution to three digits


class Interval(NamedTuple):
    """A 95 % confidence interval, and the two-sided p-value of the hypothesis that the mean is 0.

    All three values are nan if a seed has no value. ``p`` is nan for a single seed.
    """

    low: float
    high: float
    p: float


def wilson_interval(share: float, count: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval (1927) of a share of ``count`` independent trials."""
    z2 = 1.959964**2 / count
    half = (z2 * (share * (1 - share) + z2 / 4)) ** 0.5
    return (share + z2 / 2 - half) / (1 + z2), (share + z2 / 2 + half) / (1 + z2)


def metric_interval(sample: MetricSample) -> Interval:
    """Compute the confidence interval of the mean of a metric over its runs, within its bounds.

    If all rows are right, or all are wrong, each resample has the same value. The interval of a
    share is then the exact interval of Clopper and Pearson, whose width is 1 - 0.025^(1/n) for n
    groups of rows. If two models are right on the same rows, the interval of the difference of
    their shares extends by this width to both sides of 0. If all rows change from wrong to right,
    p is the p-value of the sign test. Any other metric has no interval (both ends are nan) if all
    rows are equal or in a single group, because such rows do not show the variance.
    """
    low, high, p = seed_interval(sample.values, sample.draws)
    first, nan = float(sample.values[0]), math.nan
    is_constant = (sample.values == first).all() and not any(map(_varies, sample.draws))
    if is_constant:
        of_rows = sample.of_rows()
        known = np.isfinite(of_rows).all(axis=0)  # the share does not depend on rows with nan
        count = len(np.unique(sample.groups[known]))
        if sample.is_share and count and first in (-1, 0, 1):
            width = 1 - 0.025 ** (1 / count)
            low, high = first - width, first + width
            p = p if math.isnan(p) or not first else 2.0 ** (1 - count)
        elif count < 2 or not any(map(_varies, of_rows[:, known])):  # a median may be constant
            low, high, p = nan, nan, nan if first else p
    elif (sample.groups == sample.groups[0]).all():
        low, high, p = nan, nan, nan
    low, high = np.clip([low, high], *sample.bounds).tolist()
    return Interval(low, high, p)


def _varies(values: NDArray[np.float64]) -> bool:
    known = values[~np.isnan(values)]
    return len(known) > 0 and bool(known.min() < known.max())


def seed_interval(values: ArrayLike, draws: NDArray[np.float64]) -> Interval:
    """Compute the confidence interval of the mean of a metric over training seeds.

    The interval is Student's t with the standard error and degrees of freedom of
    ``standard_error``. For one seed, its ends are percentiles of the metric on resampled rows.

    Args:
        values: The metric of each seed, [seeds], or its difference between two runs of each seed.
        draws: The same values on each bootstrap resample of test rows, [seeds, resamples].
    """
    of_seeds = np.asarray(values, dtype=np.float64)
    if len(of_seeds) == 1 and not np.isnan(of_seeds).any():
        return Interval(*_percentiles(draws[0]), math.nan)
    error, freedom = standard_error(of_seeds, draws)
    if math.isnan(error):
        return Interval(math.nan, math.nan, math.nan)
    largest = float(np.abs(of_seeds).max())
    scale = largest if largest > _LARGEST_SQUARED else 1.0
    mean, width = scale * (of_seeds / scale).mean(), error * student_quantile(freedom)
    ratio = abs(mean) / error if error else math.inf if mean else 0.0
    return Interval(float(mean - width), float(mean + width), _p_value(ratio, freedom))


def standard_error(
    of_seeds: NDArray[np.float64], draws: NDArray[np.float64]
) -> tuple[float, float]:
    """Compute the standard error of a mean over two seeds or more, and its degrees of freedom.

    The variance of the mean of ``n`` seeds is ``s^2 / n + c``. ``s^2`` is the variance of the
    metric between seeds. ``c`` is the mean covariance of two seeds over resampled test rows; more
    seeds do not reduce it. The degrees of freedom are Satterthwaite's (1946). If the variance is
    smaller than the variance caused by resampled rows alone, it is replaced by the latter. With
    ``ENOUGH_SEEDS`` or more, the degrees of freedom are then computed from the replacement, because
    the smaller variance would result in too few degrees of freedom.

    ``seed_interval`` describes the arguments. Both results are nan if a seed has no value, or if
    there is only one seed.
    """
    count, nan = len(of_seeds), math.nan
    if count == 1 or np.isnan(of_seeds).any():
        return nan, nan
    known = draws[:, ~np.isnan(draws).any(axis=0)]
    if known.shape[1] < 2:
        return nan, nan
    # A single answer of 150 digits makes R² about -1e296. The square of this is infinite.
    largest = float(max(np.abs(of_seeds).max(), np.abs(known).max()))
    scale = largest if largest > _LARGEST_SQUARED else 1.0
    of_seeds, known = of_seeds / scale, known / scale
    covariance = np.cov(known)
    common = (covariance.sum() - covariance.trace()) / (count * (count - 1))
    between = of_seeds.var(ddof=1) / count
    both = between + max(common, 0.0)
    variance, freedom = max(both, covariance.mean()), _MOST_FREEDOM
    if between > 0:
        used = variance if count >= ENOUGH_SEEDS else both
        freedom = min(freedom, (count - 1) * (used / between) ** 2)
    return scale * math.sqrt(variance), freedom


def smallest_effect(error: float, freedom: float, hypotheses: int = 1) -> float:
    """Return the smallest true difference that an experiment finds in 80 % of its repetitions.

    A difference is found if its p-value is at most .05 after correction for the number of
    ``hypotheses``. ``error`` and ``freedom`` are results of ``standard_error``.
    """
    return error * (student_quantile(freedom, 0.05 / hypotheses) + student_quantile(freedom, 0.4))


def _percentiles(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return the ends of one run's interval, ignoring resamples on which the metric is nan."""
    if np.isnan(draws).all():
        return math.nan, math.nan
    low, high = np.nanpercentile(draws, _PERCENTILES)
    return float(low), float(high)


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Correct the p-values of several hypotheses by the step-down method of Holm (1979)."""
    corrected, largest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda own: p_values[own])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        corrected[name] = largest
    return corrected


def student_quantile(freedom: float, p: float = 0.05) -> float:
    """Return the value whose two-sided p-value under Student's t is ``p``."""
    angles, area = _angles(freedom)
    return math.tan(np.interp(1 - p, area, angles)) * math.sqrt(freedom)


def _p_value(ratio: float, freedom: float) -> float:
    """Return the probability that an absolute value from Student's t exceeds ``ratio``."""
    angles, area = _angles(freedom)
    return float(1 - np.interp(math.atan(ratio / math.sqrt(freedom)), angles, area))


@functools.lru_cache(maxsize=64)
def _angles(freedom: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return angles from 0 to 90 degrees, and for each angle the share of Student's t below it.

    ``t = sqrt(freedom) tan(angle)`` has a density proportional to ``cos(angle)^(freedom - 1)``.
    """
    angles = np.linspace(0, math.pi / 2, 4_001)
    density = np.cos(angles).clip(min=0) ** (freedom - 1)
    area = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return angles, area / area[-1]


FAMILIES = {
    "table": "between objectives and their reference",
    "decoding": "between decoding rules and greedy decoding of the same objective",
    "from_reference": "between decoding rules and greedy decoding of the reference",
    "ensembles": "between ensembles and their single runs",
}
"""Name of each family of hypotheses, and a description of its differences."""


def correct_p_values(summary: Mapping[str, Any]) -> None:
    """Add ``p_holm`` to the differences of each family in the content of summary.json.

    ``findable`` is replaced by the smallest difference that would be found after the correction.
    """
    if len(summary["seeds"]) < ENOUGH_SEEDS:
        return
    planned: dict[str, list[dict[str, Any]]] = {}
    for own in summary["hypotheses"]:
        planned.setdefault(own["family"], []).append(own["difference"])
    for members in (*(_members(summary, family) for family in FAMILIES), *planned.values()):
        known = {i: own for i, own in enumerate(members) if own["p"] is not None}
        for i, p in holm({i: own["p"] for i, own in known.items()}).items():
            known[i]["p_holm"] = p
            if known[i].get("error") is not None:
                own = known[i]
                own["findable"] = smallest_effect(own["error"], own["freedom"], len(known))


def family_text(summary: Mapping[str, Any], family: str) -> str:
    """Describe a family of corrected p-values: ``4 differences between ...``; "" without any."""
    count = sum(own.get("p_holm") is not None for own in _members(summary, family))
    return f"{count:,} difference{'s' * (count > 1)} {FAMILIES[family]}" if count else ""


def families_text(summary: Mapping[str, Any]) -> str:
    """Describe all families that have p-values; "" if there are none."""
    found = list(filter(None, (family_text(summary, family) for family in FAMILIES)))
    return "; and over ".join(found)


def _members(summary: Mapping[str, Any], family: str) -> Iterator[dict[str, Any]]:
    metric = summary["metrics"][0]["name"]
    for name in summary["objectives"]:
        if name == summary["control"]:
            continue
        cells = [summary["table"][name]]
        if family != "table":
            source = "ensembles" if family == "ensembles" else "decoding"
            cells = list(summary.get(source, {}).get(name, {}).values())
        key = "from_reference" if family == "from_reference" else "difference"
        found = ((own.get(metric) or {}).get(key) for own in cells)
        yield from filter(None, found)
