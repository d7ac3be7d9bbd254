"""Scorers: from answers to one value per row and column, and from columns to metrics.

Keeping one value per row allows scores of shards to be concatenated, gives every metric a bootstrap
interval, and allows paired comparisons of two models.

Shapes    a column is [n], one float64 per row; resamples may precede the last axis, [..., n]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Unreadable

Columns = Mapping[str, NDArray[np.float64]]
"""One value per row, by name. Rows are the last axis; an axis of resamples may precede it."""

RowColumns = dict[str, NDArray[np.float64]]
"""Columns of the scored rows, each [n]."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric of a results table, computed from columns."""

    name: str
    label: str
    """Name in tables and figures."""

    unit: str
    """``%`` for a value between 0 and 1, otherwise the unit's name."""

    higher_is_better: bool
    value: Callable[[Columns], Any]
    """Compute the metric over the last axis of the columns."""


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """How answers of one type are scored."""

    columns: Callable[[Sequence[Any], Sequence[Any]], RowColumns]
    """Compute one value per row from predictions (None if unparseable) and targets."""

    metrics: tuple[Metric, ...]
    """All metrics; the first is the main metric."""

    buckets: Mapping[str, Callable[[Any], str | tuple[str, ...]]]
    """Functions that assign a row to buckets by its target. A row may be in none or in several."""

    by_category: tuple[str, ...] = ()
    """Names of the metrics that are also reported per category of rows (such as interpolation and
    extrapolation), before all others. Empty for the main metric alone."""

    protocols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Protocol of each group of metrics: variant, thresholds, matching, and the score of an
    unparseable answer. It is stored in results.json next to the metrics."""

    reason: Callable[[Any, Any], str | None] | None = None
    """Return why an answer (None if unparseable) counts as unparseable given its target, or None.
    Only needed where that depends on the question."""

    lenient: Callable[[Any, tuple[int, int] | None], Any] | None = None
    """Return a lenient reading of an answer, given the image's width and height in pixels or None.
    Columns of lenient readings are named ``lenient_...``; they do not replace the strict ones."""

    def judge(
        self, answers: Sequence[Any], targets: Sequence[Any], sizes_px: Sequence[Any] | None = None
    ) -> RowColumns:
        """Score answers strictly and, if the scorer has a lenient reading, leniently too.

        Args:
            answers: Answers as a task parsed them; ``Unreadable`` or None for parse failures.
            targets: One target per answer.
            sizes_px: Width and height of each image in pixels, or None.
        """
        read = [None if isinstance(answer, Unreadable) else answer for answer in answers]
        columns = self.columns(read, targets)
        if self.lenient is not None:
            sizes = sizes_px or [None] * len(answers)
            lenient_answers = [
                self.lenient(answer.lenient if isinstance(answer, Unreadable) else answer, size)
                for answer, size in zip(answers, sizes, strict=True)
            ]
            lenient = self.columns(lenient_answers, targets)
            columns |= {f"lenient_{name}": values for name, values in lenient.items()}
        return columns


CATEGORY = "category"
"""The bucket whose metrics are reported among the main metrics."""


class MetricOnRows(NamedTuple):
    """A metric and the rows over which it is computed."""

    metric: Metric
    rows: NDArray[np.int64] | None
    """Row indices; None for all rows."""


def metrics_by_category(scorer: Scorer, buckets: Sequence[Mapping[str, str]]) -> list[MetricOnRows]:
    """Return the metrics of each category (if there are several), then those of all rows."""
    labels = [own.get(CATEGORY, "") for own in buckets]
    # The category that resembles the training rows comes first.
    categories = sorted(set(labels), key=lambda label: (label != "interpolation", label))
    chosen = scorer.by_category or (scorer.metrics[0].name,)
    measured = []
    for category in categories if len(categories) > 1 else ():
        rows = np.array([i for i, label in enumerate(labels) if label == category])
        for metric in scorer.metrics:
            if metric.name in chosen:
                name = f"{metric.name}_{category or 'none'}"
                label = f"{category or 'no category'} {metric.label}"
                measured.append(MetricOnRows(replace(metric, name=name, label=label), rows))
    return measured + [MetricOnRows(metric, None) for metric in scorer.metrics]


def select_rows(columns: Columns, rows: NDArray[np.int64] | None) -> Columns:
    """Return the columns restricted to some rows; None keeps all rows."""
    if rows is None:
        return columns
    return {name: values[rows] for name, values in columns.items()}


def mean_of(column: str) -> Callable[[Columns], Any]:
    """Return a metric function: the mean of a column."""
    return lambda columns: columns[column].mean(axis=-1)


def median_of(column: str) -> Callable[[Columns], Any]:
    """Return a metric function: the median of a column."""
    return lambda columns: np.median(columns[column], axis=-1)


def share_of(part: str, whole: str, *, nothing: float = 0.0) -> Callable[[Columns], Any]:
    """Return a metric function: sum of ``part`` / sum of ``whole``, or ``nothing`` if that is 0."""
    return lambda columns: _share(columns, part, whole, nothing)


def hmean_of(precision: tuple[str, str], recall: tuple[str, str]) -> Callable[[Columns], Any]:
    """Return a metric function: the harmonic mean of precision and recall.

    Args:
        precision: Columns of the correct and of all predicted items; both are summed over rows.
        recall: Columns of the correct and of all true items; both are summed over rows.
    """

    def value(columns: Columns) -> Any:
        p, r = _share(columns, *precision), _share(columns, *recall)
        return np.divide(2 * p * r, p + r, out=np.zeros_like(p), where=p + r > 0)

    return value


def _share(columns: Columns, part: str, whole: str, nothing: float = 0.0) -> NDArray[np.float64]:
    parts, wholes = np.asarray(columns[part].sum(axis=-1)), columns[whole].sum(axis=-1)
    return np.divide(parts, wholes, out=np.full_like(parts, nothing), where=wholes > 0)


def percentage(
    name: str, label: str, value: Callable[[Columns], Any] | None = None, *, good: bool = True
) -> Metric:
    """Return a metric in percent; by default the mean of the column with the metric's name."""
    return Metric(
        name=name, label=label, unit="%", higher_is_better=good, value=value or mean_of(name)
    )


def unparseable(predictions: Sequence[Any]) -> NDArray[np.float64]:
    """Return a column, [n]: 1 for each prediction that is None, otherwise 0."""
    return np.array([prediction is None for prediction in predictions], dtype=np.float64)
