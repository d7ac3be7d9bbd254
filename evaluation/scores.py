"""The scores of a predictions file: columns, metrics with intervals, and results per group."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.evaluation.guesses import GuessedRows, Guesses, guess_metrics
from mm_numeric.evaluation.metrics.base import (
    THRESHOLDS,
    Groups,
    MetricOnRows,
    Scorer,
    metrics_by_category,
    select_rows,
)
from mm_numeric.evaluation.metrics.bootstrap import sample_metrics
from mm_numeric.evaluation.metrics.calibration import Confidences, Coverage
from mm_numeric.evaluation.metrics.intervals import metric_interval
from mm_numeric.evaluation.metrics.ranking import RANKING, Ranking

LabelCounts = Mapping[str, NDArray[np.int64]]
"""Label -> counts, [2 + thresholds]: the number of true shapes, the number of detections and, for
each of ``THRESHOLDS``, the number of matched pairs with at least this IoU."""

NO_LABEL = ("none",)
"""Bucket of a row that no bucket of a grouping contains."""


@dataclass(frozen=True, eq=False)
class Scores:
    """The scored rows of a predictions file, and the metrics computed from them."""

    task: str
    """Name of the task, or of the protocol if there is no task."""

    scorer: Scorer
    kept_rows: list[dict[str, Any]]
    """The rows of scores.jsonl if they are in memory; ``rows`` describes their fields."""

    columns: dict[str, NDArray[np.float64]]
    """Column name, such as ``iou`` -> one value per row, [n]. The column ``ranking``, from which AP
    is computed, is a ``Ranking``."""

    groups: Groups
    """A hash of the group of each row, [n]; rows about the same image are in the same group."""

    bucket_labels: dict[str, list[tuple[str, ...]]]
    """Name of a grouping, such as ``size`` -> for each row, its buckets, such as ``("small",)``."""

    categories: list[str]
    """The category of each row, such as ``interpolation``; ``none`` for a row without one."""

    failures: Mapping[str, int]
    """Reason of a parse failure -> number of answers, the most frequent reason first."""

    text_rules: Mapping[str, int] = field(default_factory=dict)
    """Rule of ``tasks.answer_part``, such as "after the thoughts" -> number of rows that use it."""

    confidences: Confidences | None = None
    """Confidence of each answer, and whether the answer is correct; None without confidences."""

    coverage: Coverage | None = None
    """How much of the model's probability the decoded answers cover; None for greedy answers."""

    labels: LabelCounts | None = None
    """Counts of each label; None if the scorer does not compare labels."""

    source: Mapping[str, Any] = field(default_factory=dict)
    """Metadata for results.json: the task and its version, or the file with the true shapes."""

    rows_due: int | None = None
    """Number of rows of the data set; None if the predictions do not say it."""

    rows_file: Path | None = None
    """The file scores.jsonl with the rows; None if the rows are in memory."""

    guessed: GuessedRows | None = None
    """Rows on which ``guesses`` are scored; None for answers of a judge, and for detections."""

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of scores.jsonl, one dictionary per prediction.

        A row has id, image, target, text, parsed answer, reason of a parse failure, and its value
        in each column. It may also have a prompt, buckets, and, for a list of shapes, ``cut``
        (truncated) and ``malformed`` (number of invalid shapes). For MathVista it has
        ``extraction``, the answer that was extracted from the text and scored. If it was decoded by
        a rule such as the median, it has ``decode`` and ``confidence``.
        """
        if self.rows_file is None:
            return self.kept_rows
        with self.rows_file.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    @property
    def count(self) -> int:
        """Return the number of scored rows."""
        return len(self.groups)

    @cached_property
    def metrics_on_rows(self) -> list[MetricOnRows]:
        """List the metrics to report on all rows or one category, with the main metric first."""
        return metrics_by_category(self.scorer, self.categories)

    @property
    def ranking(self) -> Ranking | None:
        """Return the ranked objects, from which AP is computed; None without confidences."""
        found: Any = self.columns.get(RANKING)
        return found if found is not None and found.names else None

    @property
    def has_labels(self) -> bool:
        """Return True if the scores of each label are reported."""
        return self.labels is not None or self.ranking is not None

    @cached_property
    def _metrics(self) -> dict[str, dict[str, float | None]]:
        metrics = self.metrics_on_rows
        resamples = self.ranking.resamples if self.ranking else None
        samples = sample_metrics(metrics, {"": [self.columns]}, self.groups, resamples=resamples)
        found = {}
        for (metric, _), by_name in zip(metrics, samples, strict=True):
            low, high, _ = metric_interval(by_name[""])
            values = {"value": by_name[""].values[0], "low": low, "high": high}
            found[metric.name] = {name: finite(float(own)) for name, own in values.items()}
        return found

    def metrics(self) -> dict[str, dict[str, float | None]]:
        """Compute each metric (``value``) and its 95 % bootstrap interval (``low``, ``high``)."""
        return self._metrics

    @cached_property
    def guesses(self) -> Guesses:
        """Metrics of guesses; {} if no guesses are scored."""
        return guess_metrics(self.guessed) if self.guessed and self.count > 1 else {}

    @cached_property
    def group_count(self) -> int:
        """Number of groups of rows, such as images; at most the number of rows."""
        return len(np.unique(self.groups))

    def counts(self) -> dict[str, int]:
        """Return the counts that the scorer reports, such as ``{"detections": 520}``."""
        sums = {name: self.columns[column].sum() for name, column in self.scorer.counts.items()}
        largest = {name: self.columns[own].max() for name, own in self.scorer.largest.items()}
        return {name: int(count) for name, count in (sums | largest).items()}

    def label_rows(self) -> list[dict[str, Any]]:
        """Return the scores of each label (F1, and AP if there are confidences), 0 to 1."""
        ranked = {row["name"]: row for row in self.ranking.labels} if self.ranking else {}
        if self.labels is None:
            return [
                {key: finite(own) if isinstance(own, float) else own for key, own in row.items()}
                for row in ranked.values()
            ]
        rows = label_rows(self.labels)
        for row in rows:
            own = ranked.get(row["name"], {})
            row.update({name: finite(own[name]) for name in ("ap", "ap_50", "ap_75") if own})
        return rows

    def buckets(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return grouping -> bucket -> ``rows`` (count) and ``metrics``: ``["size"]["small"]``."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for name, labels in self.bucket_labels.items():
            found[name] = {}
            for label in sorted({label for own in labels for label in own}, key=_natural):
                rows = np.array([i for i, own in enumerate(labels) if label in own])
                part = select_rows(self.columns, rows)
                if self.scorer.in_bucket is not None:
                    part = self.scorer.in_bucket(part, name, label)
                metrics = {
                    m.name: {"value": finite(float(m.value(part)))} for m in self.scorer.metrics
                }
                found[name][label] = {"rows": len(rows), "metrics": metrics}
        return found


def merge_scores(parts: Sequence[Scores]) -> Scores:
    """Concatenate the scores of the parts of a file, which have no confidences and no labels."""
    first, *others = parts
    if not others:
        return first
    kinds = dict.fromkeys(kind for own in parts for kind in own.bucket_labels)
    labels = {
        kind: [
            label
            for own in parts
            for label in own.bucket_labels.get(kind) or [NO_LABEL] * own.count
        ]
        for kind in kinds
    }
    return replace(
        first,
        kept_rows=[row for own in parts for row in own.kept_rows],
        columns={
            name: np.concatenate([own.columns[name] for own in parts]) for name in first.columns
        },
        groups=np.concatenate([own.groups for own in parts]),
        bucket_labels=labels,
        categories=[name for own in parts for name in own.categories],
        guessed=first.guessed
        and first.guessed.spread(*(own.guessed for own in others if own.guessed)),
        rows_due=max((own.rows_due for own in parts if own.rows_due), default=None),
        failures=_total(own.failures for own in parts),
        text_rules=_total(own.text_rules for own in parts),
    )


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, counts), Counter[str]()).most_common())


def row_groups(rows: Sequence[Mapping[str, Any]], scorer: Scorer, targets: Sequence[Any]) -> Groups:
    """Return the group of each row: its field ``group``, or else the scorer's group, or its image.

    A row without group and image is a group of its own. Groups are returned as hashes of their
    names, so that the groups of several files can be concatenated.
    """
    own = map(scorer.group, targets) if scorer.group else [""] * len(rows)
    names = [
        row.get("group") or name or row.get("image") or ("id", row["id"])
        for row, name in zip(rows, own, strict=True)
    ]
    hashes = [hashlib.blake2b(repr(name).encode(), digest_size=8).digest() for name in names]
    return np.frombuffer(b"".join(hashes), dtype=np.uint64)


def _natural(label: str) -> tuple[bool, int, str]:
    is_number = label.isdecimal()
    return not is_number, len(label.lstrip("0")) if is_number else 0, label


def finite(value: float) -> float | None:
    """Return None if a value is nan, because JSON has no nan; otherwise return the value."""
    return None if math.isnan(value) else value


def label_rows(counts: LabelCounts) -> list[dict[str, Any]]:
    """Return ``name``, counts, precision, recall and F1 (0 to 1) of each label, for results.json.

    A value is None if its denominator is 0, such as the recall of a label without true shapes.
    """
    rows = []
    for name, own in counts.items():
        truths, detections, *paired = own.tolist()
        row: dict[str, Any] = {"name": name, "truths": truths, "detections": detections}
        for threshold, pairs in zip(THRESHOLDS, paired, strict=True):
            row[f"f1_at_{threshold:g}"] = _divided(2 * pairs, truths + detections)
        row["precision_at_0.5"] = _divided(paired[0], detections)
        row["recall_at_0.5"] = _divided(paired[0], truths)
        rows.append(row)
    return rows


def _divided(part: int, whole: int) -> float | None:
    return part / whole if whole else None
