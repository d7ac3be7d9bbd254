"""A probability distribution over numbers, and the answer that minimises each kind of error.

A model assigns a probability to every number that it could write. The best single answer depends on
the error measure (minimum Bayes risk; RAIL, arXiv 2403.04182, uses it with language models):

    squared error            ``mean()``
    absolute error           ``median()``
    right or wrong           ``mode()``
    right if at most t off   the y with the largest ``within(t, y)``

On a circle, such as the 720 minutes of a 12-hour dial, all distances are circular: with
``circle=720``, the distance of 719 and 1 is 2. An interval may pass 0: its low end is then larger
than its high end.

Shapes    n values; arrays are float64
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROUNDING = 1e-9  # allowed rounding error of probabilities, and of distances relative to the values


def distance(a: Any, b: Any, circle: float | None = None) -> Floats:
    """Return |a - b|; with ``circle``, the shortest distance along a circle of this length."""
    apart: Floats = np.abs(np.subtract(a, b, dtype=np.float64))
    return apart if circle is None else np.minimum(apart, circle - apart)


@dataclass(frozen=True, eq=False)
class NumberDistribution:
    """Numbers and their probabilities. Use ``NumberDistribution.of`` to make it from weights."""

    values: Floats
    """The numbers, each once, in ascending order, [n]."""

    probabilities: Floats
    """Probability of each number, [n]; the sum is 1, whatever ``covered`` is."""

    covered: float = 1.0
    """Sum of the probabilities before normalisation, 0 to 1. It is below 1 if the model could also
    give answers that were not explored, or that are not numbers."""

    def __post_init__(self) -> None:
        values, probs = self.values, self.probabilities
        valid = values.ndim == 1 and len(values) > 0 and values.shape == probs.shape
        if not (valid and (np.diff(values) > 0).all() and abs(probs.sum() - 1) <= _ROUNDING):
            raise ValueError(
                "NumberDistribution: values are not ascending, or probabilities do not sum to 1; "
                "make it with NumberDistribution.of(values, weights)."
            )
        if not 0 <= self.covered <= 1:
            raise ValueError(f"NumberDistribution: covered is 0 to 1, not {self.covered}.")

    @classmethod
    def of(
        cls, values: Sequence[float] | Floats, weights: Any, covered: float | None = None
    ) -> "NumberDistribution":
        """Make a distribution from numbers and weights, which are normalised to sum to 1.

        The weights of equal numbers are added. Numbers with a weight of 0 are dropped.

        Args:
            values: Numbers in any order, [m].
            weights: Probability or count of each number, [m]; at least 0, not all 0.
            covered: Value of the field ``covered``; if it is None, the sum of the weights.
        """
        numbers = np.asarray(values, dtype=np.float64)
        weighted = np.asarray(weights, dtype=np.float64)
        if numbers.ndim != 1 or numbers.shape != weighted.shape:
            raise ValueError(
                f"NumberDistribution: values {list(numbers.shape)} and weights "
                f"{list(weighted.shape)} must be lists of the same length."
            )
        if not np.isfinite(numbers).all():
            raise ValueError("NumberDistribution: a value is infinite or nan; leave it out.")
        total = float(weighted.sum())
        if not (math.isfinite(total) and total > 0 and (weighted >= 0).all()):
            raise ValueError(
                "NumberDistribution: weights must be finite, at least 0 and not all 0; found "
                f"{weighted.tolist()!s:.60}."
            )
        if covered is None:
            if total > 1 + 1e-6:
                raise ValueError(
                    f"NumberDistribution: the weights sum to {total:g} and are no probabilities; "
                    "give covered (1 if they are counts of all answers)."
                )
            covered = min(total, 1.0)
        kept = weighted > 0
        unique, at = np.unique(numbers[kept], return_inverse=True)
        sums = np.bincount(at, weighted[kept] / total)
        return cls(unique, sums / sums.sum(), covered)

    def mean(self, circle: float | None = None) -> float:
        """Return the mean, the answer with the least expected squared error.

        With ``circle``, return the circular mean, which minimises the expected squared chord (the
        straight-line distance of two points on the circle). If all points are equally good, return
        the mode: for example, if 3:00 and 9:00 have the same probability.
        """
        if circle is None:
            return float(self.probabilities @ self.values)
        self._check_on(circle)
        resultant = complex(self.probabilities @ np.exp(2j * math.pi * self.values / circle))
        if abs(resultant) <= _ROUNDING:
            return self.mode()
        angle = math.atan2(resultant.imag, resultant.real) % (2 * math.pi)
        return angle / (2 * math.pi) * circle % circle

    def median(self, circle: float | None = None) -> float:
        """Return the lower weighted median, a value with the least expected absolute error.

        It is the smallest value y for which P(Y <= y) is at least 0.5. With ``circle``, return the
        value with the least expected circular distance; no point between two values is better. Of
        equally good values, the most probable one is returned, and then the smallest.
        """
        if circle is None:
            reached = np.cumsum(self.probabilities) >= 0.5 - _ROUNDING
            return float(self.values[np.argmax(reached)])
        costs = self._expected_circular_distances(circle)
        best = np.flatnonzero(costs <= costs.min() + _ROUNDING * circle)
        return float(self.values[best[np.argmax(self.probabilities[best])]])

    def mode(self) -> float:
        """Return the most probable value; if several are equally probable, the smallest of them."""
        return float(self.values[np.argmax(self.probabilities)])

    def within(self, t: float, of: float, circle: float | None = None) -> float:
        """Return P(|Y - of| <= t), the probability of a number at most ``t`` away from ``of``."""
        if not t >= 0:
            raise ValueError(f"NumberDistribution.within: t is at least 0, not {t}.")
        if circle is not None:
            self._check_on(circle)
            of %= circle
        limit = t + _ROUNDING * max(1.0, abs(of))  # 1.1 - 1.0 exceeds 0.1 in floating point
        return float(self.probabilities[distance(self.values, of, circle) <= limit].sum())

    def interval(self, mass: float = 0.9, circle: float | None = None) -> tuple[float, float]:
        """Return the shortest interval [low, high] that contains at least the probability ``mass``.

        Both ends are values of the distribution, and belong to the interval. Of equally short
        intervals, the most probable one is returned. With ``circle``, low may be above high.
        """
        if not 0 < mass <= 1:
            raise ValueError(
                f"NumberDistribution.interval: mass is above 0 and at most 1, not {mass}."
            )
        n, values, probs = len(self.values), self.values, self.probabilities
        if circle is not None:
            values, probs = self._twice_around(circle)
        sums = np.concatenate([[0.0], np.cumsum(probs)])
        first = np.arange(n)
        after_last = np.searchsorted(sums, sums[:n] + mass - _ROUNDING)
        after_last = np.maximum(after_last, first + 1)
        first = first[after_last <= len(values)]  # later starts have too little probability left
        last = after_last[first] - 1
        best = np.lexsort((sums[first] - sums[last + 1], values[last] - values[first]))[0]
        low, high = float(values[first[best]]), float(values[last[best]])
        return low, high if circle is None else high % circle

    def _check_on(self, circle: float) -> None:
        if not (circle > 0 and self.values[0] >= 0 and self.values[-1] < circle):
            raise ValueError(
                f"NumberDistribution: on a circle of {circle:g}, values are at least 0 and below "
                f"{circle:g}; found {self.values[0]:g} to {self.values[-1]:g}."
            )

    def _twice_around(self, circle: float) -> tuple[Floats, Floats]:
        """Return the values and probabilities of two rounds of the circle, [2 n] each."""
        self._check_on(circle)
        return np.concatenate([self.values, self.values + circle]), np.tile(self.probabilities, 2)

    def _expected_circular_distances(self, circle: float) -> Floats:
        """Return the expected circular distance from each value, [n], in O(n log n) time."""
        values, probs = self._twice_around(circle)
        mass = np.concatenate([[0.0], np.cumsum(probs)])
        moment = np.concatenate([[0.0], np.cumsum(probs * values)])
        first = np.arange(len(self.values))
        last = first + len(first)
        # Distances go forwards to values up to half a circle ahead, and backwards to the others.
        half = np.searchsorted(values, self.values + circle / 2, side="right")
        ahead = moment[half] - moment[first] - self.values * (mass[half] - mass[first])
        left = (self.values + circle) * (mass[last] - mass[half]) - (moment[last] - moment[half])
        return ahead + left
