"""95 % confidence intervals of metrics over training seeds, for one run or a paired difference.

Both the training seeds and the test rows are samples. In simulated comparisons whose seeds differ
by 3 points, on 500 rows, a bootstrap over seeds and rows contains the true difference in 87 % of
the cases with two seeds and in 94 to 96 % with five. Student's t over seeds takes the rows, which
all seeds share, for given: 92 to 95 %. The interval here adds to the variance between seeds what
rows change in all of them: 96 to 98 % with two seeds, 94 to 96 % from five on.
``tests/helpers/interval_coverage.py`` prints these shares.
"""

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mm_numeric.evaluation.metrics.bootstrap import Name, draws_interval

ENOUGH_SEEDS = 5
"""Number of seeds from which a comparison states whether an objective is better than another."""

_LARGEST_SQUARED = 1e100  # larger values are scaled before they are squared
_MOST_FREEDOM = 1000.0  # from here on, Student's t is a normal distribution to three digits


class SeedInterval(NamedTuple):
    """A 95 % confidence interval, and the two-sided p-value of the hypothesis that the mean is 0.

    All are nan if a seed has no value. ``p`` is nan for a single seed.
    """

    low: float
    high: float
    p: float


def seed_interval(values: ArrayLike, draws: NDArray[np.float64]) -> SeedInterval:
    """Compute the confidence interval of the mean of a metric over training seeds.

    Between the seeds, the metric has the variance ``s^2``. What resampled test rows change in all
    seeds alike, the mean covariance ``c`` of two seeds, does not shrink with their number ``n``. So
    the variance of the mean is ``s^2 / n + c``, and at least that of resampled rows alone. Its
    degrees of freedom are those of Satterthwaite (1946). For one seed, the interval is that of the
    resampled rows.

    Args:
        values: The metric of each seed, [seeds]; differences of a pair of runs for a comparison.
        draws: The same for each bootstrap resample of test rows, [seeds, resamples].
    """
    of_seeds = np.asarray(values, dtype=np.float64)
    count, nan = len(of_seeds), float("nan")
    if np.isnan(of_seeds).any():
        return SeedInterval(nan, nan, nan)
    if count == 1:
        return SeedInterval(*draws_interval(draws[0]), nan)
    known = draws[:, ~np.isnan(draws).any(axis=0)]
    if known.shape[1] < 2:
        return SeedInterval(nan, nan, nan)
    # A single answer of 150 digits makes R² about -1e296, whose square is infinite.
    largest = float(max(np.abs(of_seeds).max(), np.abs(known).max()))
    scale = largest if largest > _LARGEST_SQUARED else 1.0
    of_seeds, known = of_seeds / scale, known / scale
    covariance = np.cov(known)
    common = (covariance.sum() - covariance.trace()) / (count * (count - 1))
    between = of_seeds.var(ddof=1) / count
    both = between + max(common, 0.0)
    deviation = math.sqrt(max(both, covariance.mean()))
    freedom = _MOST_FREEDOM
    if between > 0:
        freedom = min(freedom, (count - 1) * (both / between) ** 2)
    mean, width = of_seeds.mean(), deviation * student_quantile(freedom)
    ratio = abs(mean) / deviation if deviation else math.inf if mean else 0.0
    low, high = scale * (mean - width), scale * (mean + width)
    return SeedInterval(float(low), float(high), _p_value(ratio, freedom))


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Correct the p-values of several hypotheses by the step-down method of Holm (1979)."""
    corrected, largest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda own: p_values[own])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        corrected[name] = largest
    return corrected


def student_quantile(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t."""
    angles, area = _angles(freedom)
    return math.tan(np.interp(0.95, area, angles)) * math.sqrt(freedom)


def _p_value(ratio: float, freedom: float) -> float:
    """Return the probability of a larger absolute value than ``ratio`` under Student's t."""
    angles, area = _angles(freedom)
    return float(1 - np.interp(math.atan(ratio / math.sqrt(freedom)), angles, area))


@functools.lru_cache(maxsize=64)
def _angles(freedom: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return angles from 0 to 90 degrees and the share of Student's t below each.

    ``t = sqrt(freedom) tan(angle)`` has a density proportional to ``cos(angle)^(freedom - 1)``.
    """
    angles = np.linspace(0, math.pi / 2, 4_001)
    density = np.cos(angles).clip(min=0) ** (freedom - 1)
    area = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return angles, area / area[-1]
