"""Bootstrap intervals: over rows for one run, over seeds and rows for several runs.

The method is the percentile bootstrap at 95 %. The same seed gives the same interval.
"""

from collections.abc import Callable, Mapping, Sequence
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
    return draws_interval(_row_draws(columns, value, resamples, seed))


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
    count = len(next(iter(runs.values())))
    seeds = np.random.default_rng(seed + 1).integers(count, size=(resamples, count))
    draws = {}
    for name, columns_by_seed in runs.items():
        by_seed = [_row_draws(columns, value, resamples, seed) for columns in columns_by_seed]
        draws[name] = np.take_along_axis(np.stack(by_seed, axis=1), seeds, axis=1).mean(axis=1)
    return draws


def draws_interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of resampled values, or of differences between two sets of them."""
    if np.isnan(draws).all():
        return float("nan"), float("nan")
    low, high = np.nanpercentile(draws, _PERCENTILES)
    return float(low), float(high)


def _row_draws(
    columns: Columns, value: Callable[[Columns], Any], resamples: int, seed: int
) -> NDArray[np.float64]:
    """Return a metric over rows drawn with replacement, [resamples], in chunks to save memory."""
    rng, rows = np.random.default_rng(seed), len(next(iter(columns.values())))
    step, drawn = max(1, _MAX_ELEMENTS // rows), []
    for start in range(0, resamples, step):
        at = rng.integers(rows, size=(min(step, resamples - start), rows))
        drawn.append(value(_ResampledColumns(columns, at)))
    return np.concatenate(drawn)


class _ResampledColumns(dict[str, Any]):
    """Columns at drawn rows; a column is indexed only when a metric reads it."""

    def __init__(self, columns: Columns, rows: NDArray[np.int64]) -> None:
        super().__init__()
        self._columns, self._rows = columns, rows

    def __missing__(self, name: str) -> NDArray[np.float64]:
        return self._columns[name][self._rows]
