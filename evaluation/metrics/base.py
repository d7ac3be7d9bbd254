"""What a scorer is: answers in, one number a row and metric out; metrics are taken from those.

Keeping the rows means that shards add up, that every metric has an interval, and that two models
can be compared row by row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Unreadable

Columns = Mapping[str, NDArray[np.float64]]
"""One value for each row, by name. The rows are the last axis; resamples may stand before it."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One figure of a table."""

    name: str
    label: str
    """For people, in a table."""

    unit: str
    """``%`` for a share between 0 and 1, else the unit's name."""

    higher_is_better: bool
    value: Callable[[Columns], Any]
    """Take the figure over the last axis of the columns."""


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """How answers of one kind are judged."""

    columns: Callable[[Sequence[Any], Sequence[Any]], dict[str, NDArray[np.float64]]]
    """From predictions (None where unreadable) and targets, one value a row."""

    metrics: tuple[Metric, ...]
    """The first is the headline."""

    buckets: Mapping[str, Callable[[Any], str | tuple[str, ...]]]
    """How rows are sorted by their target, for tables by bucket. A row may be in several, or in
    none."""

    by_category: tuple[str, ...] = ()
    """The metrics that stand once for each category of rows (interpolation, extrapolation) before
    all others, where rows say theirs; the first metric when empty."""

    protocols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What each group of metrics does where tools differ: variant, thresholds, matching, what an
    unreadable answer scores. Written beside the figures."""

    reason: Callable[[Any, Any], str | None] | None = None
    """Why an answer (None where it was unreadable already) counts as unreadable, where that depends
    on what its target says of the question; None where it does not."""

    lenient: Callable[[Any, tuple[int, int] | None], Any] | None = None
    """A kinder reading of an answer, given the width and height of its image where they are
    known. The columns of these readings are ``lenient_...``, beside the strict ones."""

    def judge(
        self, answers: Sequence[Any], targets: Sequence[Any], sizes_px: Sequence[Any] | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """Judge answers as they came, strictly and, where there is such a reading, leniently.

        Args:
            answers: As a task parsed them; ``Unreadable`` or None where it could not.
            targets: As many.
            sizes_px: Width and height of each image, or None.

        Returns:
            One value a row for each column.
        """
        read = [None if isinstance(answer, Unreadable) else answer for answer in answers]
        found = self.columns(read, targets)
        if self.lenient is not None:
            sizes = sizes_px or [None] * len(answers)
            kinder = [
                self.lenient(answer.lenient if isinstance(answer, Unreadable) else answer, size)
                for answer, size in zip(answers, sizes, strict=True)
            ]
            columns = self.columns(kinder, targets)
            found |= {f"lenient_{name}": values for name, values in columns.items()}
        return found


CATEGORY = "category"
"""The bucket whose figures stand among the metrics."""


class Measured(NamedTuple):
    """A metric, and the rows that it is taken over."""

    metric: Metric
    rows: NDArray[np.int64] | None
    """None for all."""


def figures_of(scorer: Scorer, buckets: Sequence[Mapping[str, str]]) -> list[Measured]:
    """Return the metrics of each category of rows, where there are several, and then of all rows.

    Args:
        scorer: Which says what is measured of each category.
        buckets: What each row says of itself.
    """
    labels = [own.get(CATEGORY, "") for own in buckets]
    # What is like the rows that were trained on comes first.
    categories = sorted(set(labels), key=lambda label: (label != "interpolation", label))
    chosen = scorer.by_category or (scorer.metrics[0].name,)
    found = []
    for category in categories if len(categories) > 1 else ():
        rows = np.array([i for i, label in enumerate(labels) if label == category])
        for metric in scorer.metrics:
            if metric.name in chosen:
                name = f"{metric.name}_{category or 'none'}"
                label = f"{category or 'no category'} {metric.label}"
                found.append(Measured(replace(metric, name=name, label=label), rows))
    return found + [Measured(metric, None) for metric in scorer.metrics]


def taken(columns: Columns, rows: NDArray[np.int64] | None) -> Columns:
    """Return the columns of some rows."""
    if rows is None:
        return columns
    return {name: values[rows] for name, values in columns.items()}


def mean_of(column: str) -> Callable[[Columns], Any]:
    """Return a metric's value: the mean of a column."""
    return lambda columns: columns[column].mean(axis=-1)


def median_of(column: str) -> Callable[[Columns], Any]:
    """Return a metric's value: the median of a column."""
    return lambda columns: np.median(columns[column], axis=-1)


def share_of(part: str, whole: str, *, nothing: float = 0.0) -> Callable[[Columns], Any]:
    """Return a metric's value: one sum over another, both over all rows.

    Args:
        part: A column.
        whole: Another.
        nothing: The value where there is nothing to share.
    """
    return lambda columns: _share(columns, part, whole, nothing)


def hmean_of(precision: tuple[str, str], recall: tuple[str, str]) -> Callable[[Columns], Any]:
    """Return a metric's value: the harmonic mean of two shares of sums over all rows.

    Args:
        precision: The columns of what was right and of what was found.
        recall: Those of what was right and of what there is.
    """

    def value(columns: Columns) -> Any:
        p, r = _share(columns, *precision), _share(columns, *recall)
        return np.divide(2 * p * r, p + r, out=np.zeros_like(p), where=p + r > 0)

    return value


def _share(columns: Columns, part: str, whole: str, nothing: float = 0.0) -> NDArray[np.float64]:
    parts, wholes = np.asarray(columns[part].sum(axis=-1)), columns[whole].sum(axis=-1)
    return np.divide(parts, wholes, out=np.full_like(parts, nothing), where=wholes > 0)
