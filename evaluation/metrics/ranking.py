"""Average precision (AP) of objects that are ranked by confidence, also on resampled images.

Whether an object is correct depends on its image alone. So each image is matched once, and a
resample only changes the weights of images: how often each image is drawn. If no two objects have
the same confidence, AP of a resample equals AP of a data set with copies of the drawn images.

Shapes    [r] resamples, [i] images, [c] curves, [k] labels
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.evaluation.metrics.base import Columns, Metric, percentage
from mm_numeric.evaluation.metrics.bootstrap import RESAMPLES, count_draws
from mm_numeric.evaluation.metrics.polygon_iou import Bools, Floats, Ints

RANKING = "ranking"
"""Name of the column from which AP is computed."""

_MAX_ELEMENTS = 1_000_000  # maximum number of elements per array
_FEW = 100_000  # with more array elements per resample, fewer resamples are computed


@dataclass(frozen=True, eq=False)
class Curves:
    """Precision-recall curves of ranked objects: one for each label, IoU threshold and area range.

    The curves of one label and area range form a group. Most objects count, as correct or wrong, on
    all curves of a group; these are stored once (``seen_image``). All other changes of a curve are
    events: a correct object, or an object that counts on this curve but is not in ``seen_image``,
    or the reverse (``extra``). Events are sorted by curve, then by decreasing confidence.
    """

    truth_image: Ints
    """Image of each true shape, [g]. A shape is repeated for each group of curves that has it."""

    truth_group: Ints
    """Index of the group of curves of each true shape, [g], sorted."""

    group_count: int
    curves_per_group: int

    seen_image: Ints
    """Image of each object that counts on all curves of a group, [s]."""

    image: Ints
    """Index of the image of each event, [e]."""

    curve: Ints
    """Index of the curve of each event, [e]."""

    correct: Bools
    """True for an event that is a correct object, [e]."""

    extra: NDArray[np.int8]
    """[e] 1 for an object that counts but is not in ``seen_image``; -1 for the reverse; else 0."""

    seen_from: Ints
    """Index in ``seen_image`` of the first object of the event's curve, [e]."""

    seen_to: Ints
    """Index in ``seen_image`` after the last object at least as confident as the event, [e]."""

    tie: Ints | None = None
    """Number of the tie (equal confidences) of each event, [e], sorted. If 2 of 5 events of a tie
    are correct, each event counts as 0.4 correct. None: ties are ranked in the given order."""

    @property
    def size(self) -> int:
        """Return the number of elements of the largest array."""
        return max(len(self.image), len(self.seen_image), len(self.truth_image))

    def truths(self, weights: Floats) -> Floats:
        """Return the number of true shapes of each curve, [r, c], for image weights, [r, i]."""
        found = _sums(weights.take(self.truth_image, axis=1), self.truth_group, self.group_count)
        return np.repeat(found, self.curves_per_group, axis=1)

    def recall(self, weights: Floats, which: Bools) -> Floats:
        """Return the recall of each curve from the correct events ``which``, [r, c]."""
        truths, found = self.truths(weights), self.correct & which
        hits = _sums(weights.take(self.image[found], axis=1), self.curve[found], truths.shape[1])
        return np.divide(hits, truths, out=np.full_like(hits, np.nan), where=truths > 0)

    def average_precision(self, weights: Floats, recalls: Floats) -> Floats:
        """Return the AP of each curve, [r, c], for image weights, [r, i]; nan without true shapes.

        AP is a mean over the thresholds ``recalls``: for each threshold, it takes the highest
        precision at this recall or a higher one.
        """
        truths, drawn = self.truths(weights), weights.take(self.image, axis=1)
        all_seen = _running(weights.take(self.seen_image, axis=1))
        seen = all_seen.take(self.seen_to, axis=1) - all_seen.take(self.seen_from, axis=1)
        seen += self._running(drawn * self.extra)
        hits = self._running(drawn * self.correct)
        if self.tie is not None and len(self.tie):
            hits = self._tied(self.tie, hits, seen, drawn)
        # Each curve is shifted above all later curves, so that one pass finds all maxima.
        lift = 2.0 * (self.curve[-1:] - self.curve)
        precision = hits / (seen + np.spacing(1)) + lift  # as in pycocotools
        highest = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1] - lift
        reached = hits / np.maximum(truths, 1).take(self.curve, axis=1)
        reached = _thresholds_reached(reached, recalls) / len(recalls)
        gained = np.diff(reached, axis=1, prepend=0.0)
        starts = np.unique(self._first)
        gained[:, starts] = reached[:, starts]
        found = _sums(highest * gained, self.curve, truths.shape[1])
        return np.where(truths > 0, found, np.nan)

    @cached_property
    def _first(self) -> Ints:
        """Index of the first event of the curve of each event, [e]."""
        starts = np.flatnonzero(np.diff(self.curve, prepend=-1))
        return np.repeat(starts, np.diff(starts, append=len(self.curve)))

    def _running(self, values: Floats) -> Floats:
        """Return cumulative sums within each curve, [r, e]."""
        found = _running(values)
        return found[:, 1:] - found.take(self._first, axis=1)

    def _tied(self, tie: Ints, hits: Floats, seen: Floats, drawn: Floats) -> Floats:
        """Distribute the correct events of each tie evenly over its events, [r, e]."""
        right, starts = drawn * self.correct, np.flatnonzero(np.diff(tie, prepend=-1))
        lengths = np.diff(starts, append=len(self.image))
        first = np.repeat(starts, lengths)
        of_tie, size = (
            np.repeat(np.add.reduceat(own, starts, axis=1), lengths, axis=1)
            for own in (right, drawn)
        )
        within = seen - (seen - drawn)[:, first]
        return (hits - right)[:, first] + of_tie * within / np.maximum(size, 1)


def _running(values: Floats) -> Floats:
    """Return the sums of the first 0, 1, ... n values, [r, n + 1]."""
    found = np.zeros((len(values), values.shape[1] + 1))
    np.cumsum(values, axis=1, out=found[:, 1:])
    return found


def _thresholds_reached(recall: Floats, thresholds: Floats) -> Ints:
    """Count the evenly spaced thresholds, from 0 to 1, that are at most the recall, [r, e].

    The result equals ``numpy.searchsorted(thresholds, recall, side="right")``, but is faster.
    """
    near = (recall * (len(thresholds) - 1)).astype(np.int64)  # rounding may be off by one
    ends = np.append(thresholds, np.inf)
    return near + (ends.take(near) <= recall) + (ends.take(near + 1) <= recall)


def _sums(values: Floats, group: Ints, count: int) -> Floats:
    """Add values, [r, n], of the same group; return [r, count]. ``group`` is sorted."""
    found = np.zeros((len(values), count))
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    if len(starts):
        found[:, group[starts]] = np.add.reduceat(values, starts, axis=1)
    return found


@dataclass(frozen=True, eq=False)
class Ranking:
    """A column with one row per image, from which AP of the ranked objects is computed.

    It is indexed by rows like an array, but AP is not a mean of values per row.
    """

    title: str
    """Name of the rules of AP, as shown in a terminal."""

    by_label: Callable[[Floats], Mapping[str, Floats]]
    """Function from the weights of images, [r, i], to each metric of each label, [r, k]: 0 to 1, or
    nan for a label without true shapes."""

    size: int
    """Number of elements for each resample in ``by_label``."""

    names: Sequence[str]
    """Names of the labels, [k]."""

    has_truths: Mapping[str, Bools]
    """Name of a metric -> True for an image with true shapes that count for this metric, [i]."""

    truths: Sequence[int]
    """Number of true shapes of each label, [k]."""

    rows: Ints
    """Indices of images, [..., n]."""

    @property
    def resamples(self) -> int:
        """Return the number of resamples for intervals: a quarter if there are many objects."""
        return RESAMPLES if self.size <= _FEW else RESAMPLES // 4

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> "Ranking":
        return replace(self, rows=self.rows[key])

    def take(self, at: NDArray[np.int64]) -> "Ranking":
        """Return the ranking of the images at the positions ``at``, like ``numpy.ndarray.take``."""
        return replace(self, rows=self.rows.take(at))

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """Mean of each metric over labels with true shapes, [...]; nan without such labels."""
        return {name: _mean_of_known(own)[()] for name, own in self._of_labels.items()}

    @cached_property
    def labels(self) -> list[dict[str, Any]]:
        """For each label its ``name``, the number of its ``truths``, and its metrics."""
        return [
            {
                "name": name,
                "truths": self.truths[k],
                **{metric: float(own[k]) for metric, own in self._of_labels.items()},
            }
            for k, name in enumerate(self.names)
        ]

    @cached_property
    def _of_labels(self) -> dict[str, Floats]:
        """Name of a metric -> its value for each label, [..., k]."""
        rows = self.rows.reshape(-1, self.rows.shape[-1])
        step = max(1, _MAX_ELEMENTS // max(self.size, 1))
        images = len(next(iter(self.has_truths.values())))
        parts = [
            self.by_label(count_draws(rows[start : start + step], images))
            for start in range(0, len(rows), step)
        ]
        shape = (*self.rows.shape[:-1], len(self.names))
        return {
            name: np.concatenate([part[name] for part in parts]).reshape(shape)
            for name in self.has_truths
        }


def no_ranking(metrics: Sequence[Metric], images: int) -> Ranking:
    """Return a column for images whose objects have no confidences: all metrics are nan."""
    names = [metric.name for metric in metrics]
    return Ranking(
        title="",
        by_label=lambda weights: {name: np.zeros((len(weights), 0)) for name in names},
        size=0,
        names=(),
        has_truths={name: np.zeros(images, dtype=np.bool_) for name in names},
        truths=(),
        rows=np.arange(images),
    )


def ranking_metrics(names: Iterable[str]) -> tuple[Metric, ...]:
    """Return metrics of a ranking by their names; the label of ``ap_50`` is ``AP 50``."""
    return tuple(
        replace(
            percentage(name, name[:2].upper() + name[2:].replace("_", " "), partial(_value, name)),
            depends_on=partial(_depends_on, name),
            centred=True,
        )
        for name in names
    )


def _value(name: str, columns: Columns) -> Any:
    ranking: Any = columns[RANKING]
    return ranking.metrics[name]


def _depends_on(name: str, columns: Columns) -> Bools:
    ranking: Any = columns[RANKING]
    return ranking.has_truths[name][ranking.rows]


def _mean_of_known(values: Floats) -> Floats:
    known = ~np.isnan(values)
    count = known.sum(axis=-1)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
