"""Scorers, which compare predicted answers with true answers (targets) and compute metrics.

Metrics are computed from columns: arrays with one value per row, such as the IoU. Columns make it
possible to concatenate the scores of several files, to compute a bootstrap interval of every
metric, and to compare two models row by row.

Shapes    a column is float64, [n] for n rows; for a bootstrap interval it is [resamples, n]
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Unreadable

Columns = Mapping[str, NDArray[np.float64]]
"""Column name -> one value per row, [n]; [resamples, n] in a bootstrap."""

Groups = NDArray[np.uint64]
"""The group of each row, [n]. Rows of one group, such as rows about one image, are dependent."""

THRESHOLDS = (0.5, 0.75, 0.9)
"""IoU thresholds at which a box or an object counts as found: the values of t in Acc@t. They are
defined in this module because the modules with metrics of boxes import shapely."""

RowColumns = dict[str, NDArray[np.float64]]
"""Column name -> one value per scored row, [n]."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric, such as mean IoU, that is computed from columns (arrays with one value per row)."""

    name: str
    label: str
    """Name that tables and figures show."""

    unit: str
    """``%`` if a value of 1 is shown as 100 %; otherwise the name of a unit, such as ``min``."""

    higher_is_better: bool
    value: Callable[[Columns], Any]
    """Function from columns to the metric. It reduces the last axis (rows). It must not change the
    columns in place, because all metrics share them."""

    bounds: tuple[float, float] | None = None
    """Smallest and largest possible value, to which intervals are clipped. None: 0 and 1 for the
    unit ``%``, otherwise unbounded."""

    depends_on: Callable[[Columns], NDArray[np.bool_]] | None = None
    """Function from columns to a mask of the rows that the metric depends on, [n], such as images
    with true shapes. None: all rows on which the metric alone has a value."""

    centred: bool = False
    """True to shift the values on resamples so that their mean is the value on all rows. AP needs
    this: a resample has fewer different images, on which AP is higher on average."""

    @property
    def limits(self) -> tuple[float, float]:
        """Return the smallest and the largest possible value."""
        if self.bounds is None:
            return (0.0, 1.0) if self.unit == "%" else (-math.inf, math.inf)
        return self.bounds

    @property
    def is_share(self) -> bool:
        """Return True if values are 0 to 1, as of all percentages except relative errors."""
        return self.unit == "%" and self.limits == (0, 1)


@dataclass(frozen=True, kw_only=True)
class JudgeRules:
    """Settings of a benchmark's evaluation script that lets a judge (an LLM) extract answers."""

    without_judge: Callable[[str, Any], str | None]
    """Function from a response and its target to the answer; None if the script asks the judge."""

    prompt: Callable[[str, str], str]
    """Function from a question and the response to the prompt for the judge."""

    model: str
    """Name of the judge that the script uses."""

    max_tokens: int
    """Maximum number of tokens that the judge may generate for one answer."""

    scorer: "Scorer"
    """Scorer for the extracted answers; its predictions are ``JudgedText``."""


ObjectsRight = Callable[[Sequence[Any], Sequence[Any]], list[NDArray[np.float64]]]
"""Function from predictions (None if unparseable) and targets to one array per prediction, with a
value for each predicted object: 1 correct, 0 wrong, nan not scored."""


@dataclass(frozen=True, kw_only=True)
class Success:
    """The condition for a correct answer, to check if confident answers are correct more often."""

    label: str
    """The condition as shown in tables and figures, such as ``IoU of at least 0.5``."""

    column: str = ""
    """Name of a column; an answer is correct if its value is at least ``least``."""

    least: float = 1.0
    scored: str = ""
    """Name of a column that is 0 for answers without a value in ``column``; "" if all have one."""

    objects: ObjectsRight | None = None
    """Function that judges each object in a list; used instead of ``column``."""


@dataclass(frozen=True, kw_only=True)
class RankRules:
    """How objects are ranked by confidence, to compute their average precision (AP)."""

    rank: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]
    """Function from predictions, targets and confidences to a ``Ranking`` (one row per image)."""

    metrics: tuple[Metric, ...]
    """The metrics to report if objects have confidences: those of the scorer, and AP."""

    protocol: Mapping[str, Mapping[str, Any]]
    """Name of the rules -> the rules, for results.json."""

    field: str = "scores"
    """Field of the rows that has the confidence of each object."""

    is_required: bool = False
    """True to raise an error if AP is undefined, False to leave AP out."""


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """Scoring rules for answers of one type, such as clock times.

    A scorer defines columns (arrays with one value per row), the metrics that are computed from
    columns, and buckets: groups of rows, such as small boxes, for which metrics are also reported.
    """

    columns: Callable[[Sequence[Any], Sequence[Any]], RowColumns]
    """Function from predictions (None if unparseable) and targets to columns."""

    metrics: tuple[Metric, ...]
    """All metrics, without AP; the first is the main metric."""

    buckets: Mapping[str, Callable[[Any], str | tuple[str, ...]]] = field(default_factory=dict)
    """Name of a grouping, such as ``size`` -> function from a target to its bucket or buckets, such
    as ``small``. Metrics are also reported per bucket."""

    in_bucket: Callable[[Columns, str, str], Columns] | None = None
    """Function from (columns of the rows in a bucket, name of the grouping, name of the bucket) to
    the columns for the metrics of the bucket. Only needed if rows are compared with other targets
    in a bucket, such as only the true spans of one length."""

    main_category: str | None = None
    """The main metric is computed on the rows of this category; None: on all rows."""

    by_category: tuple[str, ...] = ()
    """Names of the metrics that are also reported per category of rows, such as interpolation and
    extrapolation. If empty, only the main metric is reported per category."""

    protocols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Names of metrics -> the rules of these metrics: variant, thresholds, matching, score of an
    unparseable answer. The rules are stored in results.json next to the metrics."""

    counts: Mapping[str, str] = field(default_factory=dict)
    """Names of counts, such as ``detections`` -> name of the column whose sum is the count. Counts
    are reported next to the metrics that are computed from them."""

    largest: Mapping[str, str] = field(default_factory=dict)
    """Names of further counts -> name of the column whose largest value is the count."""

    reason: Callable[[Any, Any], str | None] | None = None
    """Function from an answer and its target to the reason of a parse failure. It returns None if
    the answer is parseable. Only needed by scorers that extract the answer using the question."""

    extraction: Callable[[Any, Any], str] | None = None
    """Function from an answer and its target to the extracted text that was scored, to store it in
    scores.jsonl. Only needed by scorers that extract the answer from a response."""

    success: Success | None = None
    """The condition for a correct answer; None if confidences are not compared with correctness."""

    labels: Callable[[Sequence[Any], Sequence[Any]], Mapping[str, NDArray[np.int64]]] | None = None
    """Function from predictions and targets to label -> counts of true shapes, detections and
    matched pairs, such as ``detection.count_labels``. Only for objects with labels."""

    ranked: RankRules | None = None
    """How AP is computed; None if objects are not ranked by confidence."""

    group: Callable[[Any], str] | None = None
    """Function from a target to the name of the group of its row, such as its question; an empty
    name means no group. If None, rows of the same image are a group."""

    joins_rows: bool = False
    """True if all rows must be scored together, because the columns of a row depend on other rows,
    such as the rows of the same question."""

    from_text: Callable[[Sequence[str], Sequence[Any]], RowColumns] | None = None
    """Function from generated texts and targets to additional columns, for published scripts that
    parse a text differently from ``Task.read``."""

    judge_rules: JudgeRules | None = None
    """How answers extracted by a judge are scored; None if the benchmark has no judge."""

    lenient: Callable[[Any, tuple[int, int] | None], Any] | None = None
    """Function that corrects an answer, such as a reversed box, given the width and height of the
    image in pixels (None if unknown). Corrected answers are scored in additional columns, named
    ``lenient_...``; all other columns use the answer as it is."""

    def judge(
        self,
        answers: Sequence[Any],
        targets: Sequence[Any],
        sizes_px: Sequence[Any] | None = None,
        texts: Sequence[str] | None = None,
    ) -> RowColumns:
        """Compare answers with their targets; return columns, which have one value per answer.

        ``answers`` are results of ``Task.read``, or None for parse failures. ``sizes_px`` are width
        and height of each image, or None. The columns of ``from_text`` are only computed if
        ``texts``, the generated texts, are given.
        """
        read = [None if isinstance(answer, Unreadable) else answer for answer in answers]
        columns = self.columns(read, targets)
        if self.lenient is not None:
            sizes = sizes_px or [None] * len(answers)
            lenient_answers = [
                self.lenient(answer.lenient if isinstance(answer, Unreadable) else answer, size)
                for answer, size in zip(answers, sizes, strict=True)
            ]
            is_same = all(a is b for a, b in zip(lenient_answers, read, strict=True))
            lenient = columns if is_same else self.columns(lenient_answers, targets)
            columns |= {f"lenient_{name}": values for name, values in lenient.items()}
        if self.from_text is not None and texts is not None:
            columns |= self.from_text(texts, targets)
        return columns


CATEGORY = "category"
"""Name of the grouping whose metrics are reported in the main table."""


class MetricOnRows(NamedTuple):
    """A metric, and the test rows on which it is computed, such as the rows of one category."""

    metric: Metric
    rows: NDArray[np.int64] | None
    """Row indices; None for all rows."""


def metrics_by_category(scorer: Scorer, categories: Sequence[str]) -> list[MetricOnRows]:
    """List the metrics to report: first the main metric, then the metrics per category of rows.

    Comparisons of models are decided by the main metric, which is the first one in all tables. It
    is the first metric of the scorer, over all rows or over the rows of ``scorer.main_category``.
    If all rows have the same category, there are no metrics per category. ``categories`` has the
    category of each row, or ``none`` for a row without a category.
    """
    names = sorted(set(categories), key=lambda name: (name != scorer.main_category, name))
    chosen = scorer.by_category or (scorer.metrics[0].name,)
    measured = []
    for category in names if len(names) > 1 else ():
        rows = np.array([i for i, own in enumerate(categories) if own == category])
        for metric in scorer.metrics:
            if metric.name in chosen:
                label = f"{'no category' if category == 'none' else category} {metric.label}"
                own = replace(metric, name=f"{metric.name}_{category}", label=label)
                measured.append(MetricOnRows(own, rows))
    overall = [MetricOnRows(metric, None) for metric in scorer.metrics]
    if measured and scorer.main_category == names[0] and scorer.metrics[0].name in chosen:
        return measured + overall
    return [*overall[:1], *measured, *overall[1:]]


def select_rows(columns: Columns, rows: NDArray[np.int64] | None) -> Columns:
    """Return the columns restricted to the row indices ``rows``; None keeps all rows."""
    if rows is None:
        return columns
    return {name: values[rows] for name, values in columns.items()}


def mean_of(column: str) -> Callable[[Columns], Any]:
    """Return a function that computes the mean over all rows of the named column."""
    return lambda columns: columns[column].mean(axis=-1)


def median_of(column: str) -> Callable[[Columns], Any]:
    """Return a function that computes the median over all rows of the named column."""
    return lambda columns: np.median(columns[column], axis=-1)


def median_where(values: Any, counted: Any) -> Any:
    """Return the median of the values where ``counted`` is True, over all rows; nan if none is."""
    ordered = np.sort(np.where(counted, values, np.inf), axis=-1)
    number = counted.sum(axis=-1, keepdims=True)
    middle = np.concatenate([(number - 1) // 2, number // 2], axis=-1).clip(min=0)
    found = np.take_along_axis(ordered, middle, axis=-1).mean(axis=-1)
    return np.where(number[..., 0] > 0, found, np.nan)


def share_of(part: str, whole: str, *, nothing: float = 0.0) -> Callable[[Columns], Any]:
    """Return a function: sum of column ``part`` / sum of ``whole``, or ``nothing`` if that is 0."""
    return lambda columns: _share(columns, part, whole, nothing)


def part_of(part: str, whole: str) -> Callable[[Columns], Any]:
    """Return a function like ``share_of``, whose result is nan if the sum of ``whole`` is 0."""
    return share_of(part, whole, nothing=math.nan)


def hmean_of(precision: tuple[str, str], recall: tuple[str, str]) -> Callable[[Columns], Any]:
    """Return a function that computes the harmonic mean of precision and recall over all rows.

    Precision and recall are pairs of column names (part, whole): sum of part / sum of whole.
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
    """Create a metric in percent; ``value`` is by default the mean of the column ``name``."""
    return Metric(
        name=name, label=label, unit="%", higher_is_better=good, value=value or mean_of(name)
    )


def error_metric(
    name: str, label: str, unit: str, value: Callable[[Columns], Any], largest: float = math.inf
) -> Metric:
    """Create a metric from 0 to ``largest``, such as a mean error; lower values are better."""
    return Metric(
        name=name,
        label=label,
        unit=unit,
        higher_is_better=False,
        value=value,
        bounds=(0.0, largest),
    )


UNREADABLE = percentage("unreadable", "unreadable", good=False)
"""The share of unparseable answers."""


def unparseable(predictions: Sequence[Any]) -> NDArray[np.float64]:
    """Return the column ``unreadable``: 1 for each prediction that is None, 0 for all others."""
    return np.array([prediction is None for prediction in predictions], dtype=np.float64)


def unchanged(answer: Any, size_px: tuple[int, int] | None) -> Any:
    """Return an answer unchanged, for tasks whose parser already corrects answers."""
    return answer
