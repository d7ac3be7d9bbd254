"""Intervals by resampling: rows for one run; seeds and rows together for several runs.

The percentile bootstrap, 95 %. The same seed gives the same interval.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.evaluation.metrics.base import Columns

RESAMPLES = 2000
_PERCENTILES = (2.5, 97.5)
_ELEMENTS_AT_ONCE = 4_000_000


def interval(
    columns: Columns, value: Callable[[Columns], Any], *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Return the interval of a metric over the rows of one run."""
    rows = len(next(iter(columns.values())))
    drawn = [value(_take(columns, at)) for at in _row_draws(rows, resamples, seed)]
    return _percentiles(np.concatenate(drawn))


def run_draws(
    runs: Mapping[str, Sequence[Columns]],
    value: Callable[[Columns], Any],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, NDArray[np.float64]]:
    """Draw a metric for several objectives, each run under the same seeds on the same rows.

    Every draw takes seeds with replacement and rows with replacement, the same for all objectives,
    so that differences between two objectives within a draw are paired.

    Args:
        runs: For each objective, the columns of each seed, in the same order.
        value: The metric.
        resamples: How many draws.
        seed: Of the draws.

    Returns:
        For each objective, the metric of each draw: the mean over the drawn seeds.
    """
    first = next(iter(runs.values()))
    rows = len(next(iter(first[0].values())))
    seeds = np.random.default_rng(seed + 1).integers(len(first), size=(resamples, len(first)))
    draws = {}
    for name, columns_by_seed in runs.items():
        by_seed = []
        for columns in columns_by_seed:
            drawn = [value(_take(columns, at)) for at in _row_draws(rows, resamples, seed)]
            by_seed.append(np.concatenate(drawn))
        draws[name] = np.take_along_axis(np.stack(by_seed, axis=1), seeds, axis=1).mean(axis=1)
    return draws


def draws_interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return the interval of draws, or of the differences between two sets of them."""
    return _percentiles(draws)


def _row_draws(rows: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield row numbers drawn with replacement, a few resamples at a time."""
    rng = np.random.default_rng(seed)
    step = max(1, _ELEMENTS_AT_ONCE // rows)
    for start in range(0, resamples, step):
        yield rng.integers(rows, size=(min(step, resamples - start), rows))


def _take(columns: Columns, at: NDArray[np.int64]) -> Columns:
    return _Lazy(columns, at)


class _Lazy(dict[str, Any]):
    """Columns at drawn rows, taken when a metric asks for them."""

    def __init__(self, columns: Columns, at: NDArray[np.int64]) -> None:
        super().__init__()
        self._columns, self._at = columns, at

    def __missing__(self, name: str) -> NDArray[np.float64]:
        return self._columns[name][self._at]


def _percentiles(draws: NDArray[np.float64]) -> tuple[float, float]:
    if np.isnan(draws).all():
        return float("nan"), float("nan")
    low, high = np.nanpercentile(draws, _PERCENTILES)
    return float(low), float(high)
