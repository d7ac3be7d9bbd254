"""Bootstrap intervals: over rows for one run, over seeds and rows for several runs.

The method is the percentile bootstrap at 95 %. The same seed gives the same interval.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.evaluation.metrics.base import Columns

RESAMPLES = 2000
_PERCENTILES = (2.5, 97.5)
_MAX_ELEMENTS = 4_000_000


def interval(
    columns: Columns, value: Callable[[Columns], Any], *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % interval of a metric over the rows of one run."""
    rows = len(next(iter(columns.values())))
    drawn = [value(_ResampledColumns(columns, at)) for at in _row_draws(rows, resamples, seed)]
    return _percentiles(np.concatenate(drawn))


def run_draws(
    runs: Mapping[str, Sequence[Columns]],
    value: Callable[[Columns], Any],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, NDArray[np.float64]]:
    """Resample a metric for several objectives that were run with the same seeds and rows.

    Each resample draws seeds and rows with replacement, the same ones for every objective, so that
    the difference of two objectives within a resample is paired.

    Args:
        runs: Per objective, the columns of each seed, with the seeds in the same order.
        value: Metric function.
        resamples: Number of resamples.
        seed: Seed of the random generator.

    Returns:
        Per objective, the mean of the metric over the drawn seeds, [resamples].
    """
    first = next(iter(runs.values()))
    rows = len(next(iter(first[0].values())))
    seeds = np.random.default_rng(seed + 1).integers(len(first), size=(resamples, len(first)))
    draws = {}
    for name, columns_by_seed in runs.items():
        by_seed = []
        for columns in columns_by_seed:
            drawn = [
                value(_ResampledColumns(columns, at)) for at in _row_draws(rows, resamples, seed)
            ]
            by_seed.append(np.concatenate(drawn))
        draws[name] = np.take_along_axis(np.stack(by_seed, axis=1), seeds, axis=1).mean(axis=1)
    return draws


def draws_interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of resampled values, or of differences between two sets of them."""
    return _percentiles(draws)


def _row_draws(rows: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield row indices drawn with replacement, [some resamples, rows] at a time."""
    rng = np.random.default_rng(seed)
    step = max(1, _MAX_ELEMENTS // rows)
    for start in range(0, resamples, step):
        yield rng.integers(rows, size=(min(step, resamples - start), rows))


class _ResampledColumns(dict[str, Any]):
    """Columns at drawn rows; a column is indexed only when a metric reads it."""

    def __init__(self, columns: Columns, rows: NDArray[np.int64]) -> None:
        super().__init__()
        self._columns, self._rows = columns, rows

    def __missing__(self, name: str) -> NDArray[np.float64]:
        return self._columns[name][self._rows]


def _percentiles(draws: NDArray[np.float64]) -> tuple[float, float]:
    if np.isnan(draws).all():
        return float("nan"), float("nan")
    low, high = np.nanpercentile(draws, _PERCENTILES)
    return float(low), float(high)
