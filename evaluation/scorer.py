"""What a scorer is: answers in, one number a row and metric out; metrics are taken from those.

Keeping the rows means that shards add up, that every metric has an interval, and that two models
can be compared row by row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

    buckets: Mapping[str, Callable[[Any], str]]
    """How rows are sorted by their target, for tables by bucket."""


def mean_of(column: str) -> Callable[[Columns], Any]:
    """Return a metric's value: the mean of a column."""
    return lambda columns: columns[column].mean(axis=-1)


def median_of(column: str) -> Callable[[Columns], Any]:
    """Return a metric's value: the median of a column."""
    return lambda columns: np.median(columns[column], axis=-1)
