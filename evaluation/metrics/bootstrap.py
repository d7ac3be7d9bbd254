"""Bootstrap of metrics over test rows; ``intervals`` computes confidence intervals from it.

Answers to rows of one group, such as phrases about one image, tend to be right or wrong together.
So groups are drawn with all of their rows: drawing rows one by one gives intervals that are too
narrow (Cameron and Miller 2015, "A Practitioner's Guide to Cluster-Robust Inference"). Without
groups, each row is a group. A fixed random seed makes the intervals reproducible.
"""

from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from mm_numeric.evaluation.metrics.base import Columns, Groups, Metric, MetricOnRows, select_rows

RESAMPLES = 2000
FEWEST_RESAMPLES = 500
"""Resamples for a variance, which needs fewer of them than a percentile."""
_MAX_ELEMENTS = 250_000  # per array, so that the columns of a block fit into the processor's cache

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, eq=False)
class MetricSample:
    """A metric of one or several runs on the same test rows; runs differ in their training seed.

    For two samples, ``a - b`` is the sample of the differences between runs with the same seed.
    """

    values: NDArray[np.float64]
    """The metric of each run, [seeds]."""

    draws: NDArray[np.float64]
    """The metric of each run on resampled test rows, [seeds, resamples]."""

    of_rows: Callable[[], NDArray[np.float64]]
    """Function that returns the metric of each run on each row alone, [seeds, rows]. It returns nan
    for a row that the metric does not depend on. For a metric that has no value on a single row,
    such as AP, it returns 0 for all other rows."""

    groups: Groups
    """The group of each row, [rows]."""

    bounds: tuple[float, float]
    """Smallest and largest possible value."""

    is_share: bool
    """True if the metric is a share of 0 to 1, or a difference of shares."""

    def first_run(self) -> "MetricSample":
        """Return a sample with only the first run."""
        return replace(
            self, values=self.values[:1], draws=self.draws[:1], of_rows=lambda: self.of_rows()[:1]
        )

    def __sub__(self, other: "MetricSample") -> "MetricSample":
        return MetricSample(
            values=self.values - other.values,
            draws=self.draws - other.draws,
            of_rows=lambda: self.of_rows() - other.of_rows(),
            groups=self.groups,
            bounds=(self.bounds[0] - other.bounds[1], self.bounds[1] - other.bounds[0]),
            is_share=self.is_share and other.is_share,
        )


def sample_metrics(
    reported: Sequence[MetricOnRows],
    runs: Mapping[Name, Sequence[Columns]],
    groups: Groups | None = None,
    *,
    resamples: int | None = None,
    seed: int = 0,
) -> list[dict[Name, MetricSample]]:
    """Compute metrics of runs on bootstrap resamples of the test rows, which all runs share.

    Each resample has the same rows for all runs, and for all metrics that are computed on the same
    rows. Returns, for each metric, a sample for each key of ``runs``.

    Args:
        reported: The metrics, and the test rows on which they are computed.
        runs: Maps the name of an objective, or (name, decoding rule), to the columns of its runs.
            There is one run for each training seed; the order of seeds is the same for all names.
        groups: The group of each test row; None if each row is a group.
        resamples: Number of resamples; None: 2,000 with a single training seed (percentiles), and
            500 with several seeds (variances).
        seed: Seed of the bootstrap's random generator.
    """
    every = [columns for by_seed in runs.values() for columns in by_seed]
    count = len(every) // len(runs)
    if groups is None:
        groups = np.arange(len(next(iter(every[0].values()))), dtype=np.uint64)
    if resamples is None:
        resamples = RESAMPLES if count == 1 else FEWEST_RESAMPLES
    found: list[dict[Name, MetricSample]] = [{} for _ in reported]
    same_rows: dict[int, list[int]] = {}
    for i, on_rows in enumerate(reported):
        same_rows.setdefault(id(on_rows.rows), []).append(i)
    for indices in same_rows.values():
        rows = reported[indices[0]].rows
        metrics = [reported[i].metric for i in indices]
        chosen = [select_rows(columns, rows) for columns in every]
        own_groups = groups if rows is None else groups[rows]
        draws = _draws(metrics, chosen, own_groups, resamples, seed)
        for i, metric, of_runs in zip(indices, metrics, draws, strict=True):
            for k, name in enumerate(runs):
                own = slice(k * count, (k + 1) * count)
                found[i][name] = _sample(metric, chosen[own], of_runs[own], own_groups)
    return found


def joined(parts: Sequence[MetricSample], seeds: Sequence[Sequence[int]]) -> MetricSample:
    """Join samples of one metric on different test rows. ``seeds`` numbers the runs of each."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort([seed for own in seeds for seed in own])
    return replace(
        parts[0],
        values=np.concatenate([own.values for own in parts])[order],
        draws=np.concatenate([own.draws for own in parts])[order],
        of_rows=lambda: np.concatenate([own.of_rows().mean(axis=0) for own in parts])[None],
        groups=np.concatenate([own.groups for own in parts]),
    )


def _sample(
    metric: Metric, runs: Sequence[Columns], draws: NDArray[np.float64], groups: Groups
) -> MetricSample:
    def of_rows() -> NDArray[np.float64]:
        if metric.depends_on is not None:
            return np.stack([np.where(metric.depends_on(own), 0.0, np.nan) for own in runs])
        alone = [{name: own[:, None] for name, own in columns.items()} for columns in runs]
        return np.stack([np.asarray(metric.value(columns), dtype=np.float64) for columns in alone])

    values = np.array([float(metric.value(columns)) for columns in runs])
    if metric.centred:
        known = [own[~np.isnan(own)] for own in draws]
        means = [own.mean() if len(own) else np.nan for own in known]
        draws = draws + (values - means)[:, None]
    return MetricSample(values, draws, of_rows, groups, metric.limits, metric.is_share)


def _draws(
    metrics: Sequence[Metric], runs: Sequence[Columns], groups: Groups, resamples: int, seed: int
) -> NDArray[np.float64]:
    """Compute metrics of runs on resampled rows, [metrics, runs, resamples]."""
    found = np.empty((len(metrics), len(runs), resamples))
    finite = [{name for name, own in columns.items() if _is_finite(own)} for columns in runs]
    end = 0
    for at in _resampled_rows(groups, resamples, np.random.default_rng(seed)):
        start, end = end, end + len(at)
        block = _Block(at, len(groups))
        for k, columns in enumerate(runs):
            resampled = _ResampledColumns(columns, finite[k], block)
            for i, metric in enumerate(metrics):
                found[i, k, start:end] = metric.value(resampled)
    return found


def _is_finite(column: Any) -> bool:
    return isinstance(column, np.ndarray) and bool(np.isfinite(column).all())


def group_numbers(groups: Groups) -> NDArray[np.int64]:
    """Number the groups in the order in which they first occur; return the number of each row, [n].

    The numbers do not depend on the names of groups, such as image paths, which differ by machine.
    """
    _, firsts, names = np.unique(groups, return_index=True, return_inverse=True)
    return firsts.argsort().argsort()[names]


def _resampled_rows(
    groups: Groups, resamples: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield blocks of resamples as row indices, [resamples in the block, rows]."""
    numbers = group_numbers(groups)
    sizes = np.bincount(numbers)
    rows, ends = np.argsort(numbers, kind="stable"), np.cumsum(sizes)
    if (sizes == sizes[0]).all():  # resamples have equal sizes: draw many at once
        members, step = rows.reshape(len(sizes), -1), max(1, _MAX_ELEMENTS // len(groups))
        for start in range(0, resamples, step):
            drawn = rng.integers(len(sizes), size=(min(step, resamples - start), len(sizes)))
            yield drawn if len(sizes) == len(groups) else members[drawn].reshape(len(drawn), -1)
        return
    for _ in range(resamples):
        drawn = rng.integers(len(sizes), size=len(sizes))
        lengths = sizes[drawn]
        # A group begins at ends - sizes in `rows`, at cumsum(lengths) - lengths in the resample.
        shifts = ends[drawn] - np.cumsum(lengths)
        yield rows[np.repeat(shifts, lengths) + np.arange(lengths.sum())][None]


class _ResampledColumns(dict[str, Any]):
    """Columns (arrays with one value per row), each resampled when it is first read.

    ``finite`` has the names of columns without nan and infinite values.
    """

    def __init__(self, columns: Columns, finite: Container[str], block: "_Block") -> None:
        super().__init__()
        self._columns, self._finite, self._block = columns, finite, block

    def __missing__(self, name: str) -> Any:
        values, block = self._columns[name], self._block
        is_array = isinstance(values, np.ndarray)  # False for a ``Ranking``
        self[name] = (
            _ResampledColumn(values, block, is_finite=name in self._finite)
            if is_array
            else values.take(block.rows)
        )
        return self[name]


def count_draws(rows: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Count how often each of ``count`` rows is in each resample, [resamples, count]."""
    cells = rows + count * np.arange(len(rows))[:, None]
    counts = np.bincount(cells.ravel(), minlength=count * len(rows))
    return counts.reshape(-1, count).astype(np.float64)


class _Block:
    """Some resamples: the indices of their rows, and how often each row is drawn."""

    def __init__(self, rows: NDArray[np.int64], count: int) -> None:
        self.rows, self.count = rows, count

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """How often each row is in each resample, [resamples, count]."""
        return count_draws(self.rows, self.count)


class _ResampledColumn(NDArrayOperatorsMixin):
    """A column on resampled rows: an array, [resamples, rows], that is only computed if needed.

    Most metrics consist of sums and means over rows. These are computed from the number of times
    that each row is drawn, which is several times as fast as building the array.
    """

    def __init__(self, values: NDArray[Any], block: _Block, *, is_finite: bool) -> None:
        self._values, self._block, self._is_finite = values, block, is_finite

    def sum(self, axis: int | None = None, **options: Any) -> Any:
        """Return the sum of each resample if ``axis`` is -1; see ``numpy.ndarray.sum``."""
        if axis == -1 and not options and self._is_finite:  # 0 times infinity is nan
            return self._sums
        return self._array.sum(axis=axis, **options)

    @property
    def weighted(self) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """The values before resampling, [n], and how often each row is drawn, [resamples, n]."""
        return self._values, self._block.weights

    def mean(self, axis: int | None = None, **options: Any) -> Any:
        """Return the mean of each resample if ``axis`` is -1; see ``numpy.ndarray.mean``."""
        if axis == -1 and not options:
            return self.sum(axis=-1) / self._block.rows.shape[1]
        return self._array.mean(axis=axis, **options)

    @cached_property
    def _sums(self) -> NDArray[np.float64]:
        return self._block.weights @ self._values

    @cached_property
    def _array(self) -> NDArray[Any]:
        return self._values.take(self._block.rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._array, dtype=dtype, copy=copy or None)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        is_simple = method == "__call__" and ufunc.signature is None and not options
        if is_simple and all(isinstance(x, _ResampledColumn) or np.ndim(x) == 0 for x in inputs):
            # It is faster to apply an elementwise function once, before rows are drawn.
            found = ufunc(*(getattr(own, "_values", own) for own in inputs))
            is_finite = bool(np.isfinite(found).all())
            return _ResampledColumn(found, self._block, is_finite=is_finite)
        return getattr(ufunc, method)(*map(np.asarray, inputs), **options)

    def __len__(self) -> int:
        return len(self._block.rows)

    def __getitem__(self, key: Any) -> Any:
        return self._array[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)
