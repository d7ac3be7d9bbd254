"""95 % confidence intervals of metrics by percentile bootstrap.

For one run, test rows are drawn with replacement. For several runs, both training seeds and test
rows are drawn. A fixed random seed makes the intervals reproducible.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mm_numeric.evaluation.metrics.base import Columns

RESAMPLES = 2000
_PERCENTILES = (2.5, 97.5)
_MAX_ELEMENTS = 4_000_000

Name = TypeVar("Name", bound=Hashable)


def interval(
    columns: Columns, value: Callable[[Columns], Any], *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Compute the 95 % confidence interval of a metric of one run, by resampling rows.

    ``value`` is a function from columns (arrays with one value per row) to the metric.
    """
    return draws_interval(_row_draws(columns, value, resamples, seed))


def run_draws(
    runs: Mapping[Name, Sequence[Columns]],
    value: Callable[[Columns], Any],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[Name, NDArray[np.float64]]:
    """Compute a metric on bootstrap resamples, for objectives trained with the same seeds.

    An objective is a training loss, such as cross-entropy plus a numeric loss. Each resample draws
    training seeds and test rows with replacement. All objectives use the same draws, so that their
    results can be compared resample by resample.

    Args:
        runs: Maps the name of an objective, or (name, decoding rule), to its runs, one for each
            training seed, in the same order of seeds. A run is a set of columns (arrays with one
            value per test row).
        value: Function from columns to the metric.
        resamples: Number of resamples.
        seed: Seed of the bootstrap's random generator.

    Returns:
        Maps each key of ``runs`` to the metric in each resample, [resamples].
    """
    count = len(next(iter(runs.values())))
    seeds = np.random.default_rng(seed + 1).integers(count, size=(resamples, count))
    draws = {}
    for name, columns_by_seed in runs.items():
        by_seed = [_row_draws(columns, value, resamples, seed) for columns in columns_by_seed]
        draws[name] = np.take_along_axis(np.stack(by_seed, axis=1), seeds, axis=1).mean(axis=1)
    return draws


def draws_interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 2.5th and the 97.5th percentile of a metric's resampled values, ignoring nan."""
    if np.isnan(draws).all():
        return float("nan"), float("nan")
    low, high = np.nanpercentile(draws, _PERCENTILES)
    return float(low), float(high)


def _row_draws(
    columns: Columns, value: Callable[[Columns], Any], resamples: int, seed: int
) -> NDArray[np.float64]:
    """Draw rows with replacement many times, and compute a metric on each such resample."""
    rng, rows = np.random.default_rng(seed), len(next(iter(columns.values())))
    step, drawn = max(1, _MAX_ELEMENTS // rows), []
    for start in range(0, resamples, step):
        at = rng.integers(rows, size=(min(step, resamples - start), rows))
        drawn.append(value(_ResampledColumns(columns, at)))
    return np.concatenate(drawn)


class _ResampledColumns(dict[str, Any]):
    """Columns (arrays with one value per row), each resampled only when it is read."""

    def __init__(self, columns: Columns, rows: NDArray[np.int64]) -> None:
        super().__init__()
        self._columns, self._rows = columns, rows

    def __missing__(self, name: str) -> NDArray[np.float64]:
        return self._columns[name][self._rows]
