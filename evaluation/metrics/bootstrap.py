"""Bootstrap of metrics over test rows, and the 95 % percentile interval of one run.

Rows of one group, such as the phrases of one image, are right or wrong together. So groups are
drawn with all of their rows: drawing rows one by one gives intervals that are too narrow (Cameron
and Miller 2015, "A Practitioner's Guide to Cluster-Robust Inference"). Without ``groups``, each row
is one of its own.

``seed_intervals`` computes the interval of several training seeds. A fixed random seed makes the
intervals reproducible.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mm_numeric.evaluation.metrics.base import Columns, Groups, MetricOnRows, select_rows

RESAMPLES = 2000
_RESAMPLES_FOR_VARIANCE = 500  # which needs fewer than a percentile
_PERCENTILES = (2.5, 97.5)
_MAX_ELEMENTS = 4_000_000

Name = TypeVar("Name", bound=Hashable)


def interval(
    columns: Columns,
    value: Callable[[Columns], Any],
    *,
    groups: Groups | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Compute the 95 % confidence interval of a metric of one run, by resampling groups of rows.

    ``value`` is a function from columns (arrays with one value per row) to the metric.
    """
    return draws_interval(_row_draws([columns], value, groups, resamples, seed)[0])


def metric_interval(
    figure: MetricOnRows, columns: Columns, groups: Groups | None = None
) -> tuple[float, float, float]:
    """Compute a metric of one run, and the two ends of its 95 % confidence interval.

    If all rows are right, or all are wrong, each resample has the same value. The interval of a
    share is then the exact one of Clopper and Pearson, whose width is 1 - 0.025^(1/n) for n groups.
    Another metric then has no interval (both ends are nan): equal rows, or a single group, do not
    show how much groups vary.
    """
    groups = _each_row(columns) if groups is None else groups
    groups = groups if figure.rows is None else groups[figure.rows]
    columns = select_rows(columns, figure.rows)
    value = float(figure.metric.value(columns))
    ends = interval(columns, figure.metric.value, groups=groups)
    if ends[0] != ends[1]:
        return value, *ends
    of_rows = figure.metric.value({name: own[:, None] for name, own in columns.items()})
    is_known = np.isfinite(of_rows)  # a row without the share has nan
    count = len(np.unique(groups[is_known]))
    if figure.metric.is_share and value in (0, 1):
        width = float(1 - 0.025 ** (1 / count))
        ends = (0.0, width) if value == 0 else (1 - width, 1.0)
    elif count < 2 or len(np.unique(of_rows[is_known])) < 2:  # a median may not vary
        ends = (math.nan, math.nan)
    return value, *ends


def run_draws(
    runs: Mapping[Name, Sequence[Columns]],
    value: Callable[[Columns], Any],
    *,
    groups: Groups | None = None,
    resamples: int | None = None,
    seed: int = 0,
) -> dict[Name, NDArray[np.float64]]:
    """Compute a metric on bootstrap resamples of the test rows, which all runs share.

    Args:
        runs: Maps the name of an objective, or (name, decoding rule), to its runs, one for each
            training seed, in the same order of seeds. A run is a set of columns (arrays with one
            value per test row).
        value: Function from columns to the metric.
        groups: The group of each test row.
        resamples: Number of resamples; None: 2,000 for the percentiles of a single training seed,
            and 500 for the variances of several.
        seed: Seed of the bootstrap's random generator.

    Returns:
        Maps each key of ``runs`` to the metric of each run in each resample, [seeds, resamples].
        It is nan if all rows are of one group, which does not show how much groups vary.
    """
    count = len(next(iter(runs.values())))
    if resamples is None:
        resamples = RESAMPLES if count == 1 else _RESAMPLES_FOR_VARIANCE
    every = [columns for by_seed in runs.values() for columns in by_seed]
    draws = _row_draws(every, value, groups, resamples, seed)
    if groups is not None and len(np.unique(groups)) < 2:
        draws = np.full_like(draws, np.nan)
    return dict(zip(runs, draws.reshape(len(runs), count, resamples), strict=True))


def draws_interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 2.5th and the 97.5th percentile of a metric's resampled values, ignoring nan."""
    if np.isnan(draws).all():
        return float("nan"), float("nan")
    low, high = np.nanpercentile(draws, _PERCENTILES)
    return float(low), float(high)


def _row_draws(
    runs: Sequence[Columns],
    value: Callable[[Columns], Any],
    groups: Groups | None,
    resamples: int,
    seed: int,
) -> NDArray[np.float64]:
    """Draw groups of rows with replacement many times, and compute a metric: [runs, resamples].

    Each resample has the same rows for all runs.
    """
    groups = _each_row(runs[0]) if groups is None else groups
    drawn = [
        np.stack([value(_ResampledColumns(columns, at)) for columns in runs])
        for at in _resampled_rows(groups, resamples, np.random.default_rng(seed))
    ]
    return np.concatenate(drawn, axis=1)


def _resampled_rows(
    groups: Groups, resamples: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield the row indices of some resamples at a time, [resamples, rows]."""
    # Not in the order of their names, such as paths of images, which differ between machines.
    _, firsts, names = np.unique(groups, return_index=True, return_inverse=True)
    in_order = firsts[names]  # the index of the first row of each row's group
    _, sizes = np.unique(in_order, return_counts=True)
    if len(sizes) == len(groups):  # as many rows in each resample: many at a time
        step = max(1, _MAX_ELEMENTS // len(groups))
        for start in range(0, resamples, step):
            yield rng.integers(len(groups), size=(min(step, resamples - start), len(groups)))
        return
    rows, ends = np.argsort(in_order, kind="stable"), np.cumsum(sizes)
    for _ in range(resamples):
        drawn = rng.integers(len(sizes), size=len(sizes))
        lengths = sizes[drawn]
        # A group begins at ends - sizes in `rows`, at cumsum(lengths) - lengths in the resample.
        shifts = ends[drawn] - np.cumsum(lengths)
        yield rows[np.repeat(shifts, lengths) + np.arange(lengths.sum())][None]


def _each_row(columns: Columns) -> Groups:
    """Return groups of one row each."""
    return np.arange(len(next(iter(columns.values()))), dtype=np.uint64)


class _ResampledColumns(dict[str, Any]):
    """Columns (arrays with one value per row), each resampled only when it is read."""

    def __init__(self, columns: Columns, rows: NDArray[np.int64]) -> None:
        super().__init__()
        self._columns, self._rows = columns, rows

    def __missing__(self, name: str) -> NDArray[np.float64]:
        return np.take(self._columns[name], self._rows)
