"""Score a predictions.jsonl of any inference engine; write results.json and scores.jsonl.

The answer is always parsed from the generated text, so that a score depends only on the text, the
version of the task's parser, and the scorer.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Instances, Unreadable
from mm_numeric.config.decoding import GREEDY
from mm_numeric.evaluation.confidence import (
    Confidences,
    check_same_rule,
    collect_confidences,
    decode_fields,
    results_rule,
)
from mm_numeric.evaluation.joined_rows import prediction_rows
from mm_numeric.evaluation.judge import Response, judged_answers
from mm_numeric.evaluation.judge_client import Judge
from mm_numeric.evaluation.metrics.base import (
    MetricOnRows,
    Scorer,
    metrics_by_category,
    select_rows,
)
from mm_numeric.evaluation.metrics.bootstrap import interval
from mm_numeric.evaluation.prepared_rows import PreparedRows
from mm_numeric.files import write_text
from mm_numeric.geometry.frames import Frame
from mm_numeric.log import progress
from mm_numeric.parsing import read_dataclass
from mm_numeric.registry import PROTOCOLS, SCORERS, TASKS, choose, load
from mm_numeric.run_folder import RESULTS, SCORES, decoded_name
from mm_numeric.tasks.base import Task, task_class


@dataclass(frozen=True, eq=False)
class Scores:
    """The scored rows of a predictions file, and the metrics computed from them."""

    task: str
    """Name of the task, or of the protocol if there is no task."""

    scorer: Scorer
    rows: list[dict[str, Any]]
    """Rows of scores.jsonl, one dictionary per prediction: id, image, target, text, parsed answer,
    reason of a parse failure, and its value in each column. A row may also have a prompt, buckets,
    and, for a list of shapes, ``cut`` (truncated) and ``malformed`` (number of invalid shapes). For
    MathVista it has ``extraction``, the answer that was extracted from the text and scored. If it
    was decoded by a rule such as the median, it has ``decode`` and ``confidence``."""

    columns: dict[str, NDArray[np.float64]]
    """Column name, such as ``iou`` -> one value per row, [n]."""

    bucket_labels: dict[str, list[tuple[str, ...]]]
    """Name of a grouping, such as ``size`` -> for each row, its buckets, such as ``("small",)``."""

    confidences: Confidences | None = None
    """Confidences of the answers, and whether these are correct; None if there are none."""

    @property
    def failures(self) -> dict[str, int]:
        """Return the number of unparseable answers per reason, the most frequent reason first."""
        return dict(Counter(row["reason"] for row in self.rows if row["reason"]).most_common())

    @property
    def figures(self) -> list[MetricOnRows]:
        """List the metrics to report: first those of single categories, then those of all rows."""
        return metrics_by_category(self.scorer, [row.get("buckets", {}) for row in self.rows])

    def metrics(self) -> dict[str, dict[str, float | None]]:
        """Compute each metric (``value``) and its 95 % bootstrap interval (``low``, ``high``)."""
        found = {}
        for metric, rows in self.figures:
            columns = select_rows(self.columns, rows)
            low, high = interval(columns, metric.value)
            ends = {"value": float(metric.value(columns)), "low": low, "high": high}
            found[metric.name] = {name: finite(value) for name, value in ends.items()}
        return found

    def counts(self) -> dict[str, int]:
        """Return the counts that the scorer reports, such as ``{"detections": 520}``."""
        sums = {name: self.columns[column].sum() for name, column in self.scorer.counts.items()}
        return {name: int(count) for name, count in sums.items()}

    def buckets(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """Compute all metrics for each category, such as ``["size"]["small"]["mean_iou"]``."""
        found: dict[str, dict[str, dict[str, float | None]]] = {}
        for name, labels in self.bucket_labels.items():
            found[name] = {}
            for label in sorted({label for own in labels for label in own}, key=_natural):
                rows = np.array([i for i, own in enumerate(labels) if label in own])
                part = select_rows(self.columns, rows)
                figures = {m.name: finite(float(m.value(part))) for m in self.scorer.metrics}
                found[name][label] = {"rows": len(rows), **figures}
        return found


@dataclass(frozen=True)
class ParsedPredictions:
    """The rows of a predictions file and their parsed answers; index i of each list is row i."""

    name: str
    """Name of the task."""

    task: Task
    options: Mapping[str, Any]
    """Options of the task that are stored with every row (``task_options``)."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    sizes_px: list[tuple[int, int] | None] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)
    """The same rows, for a judge that extracts the answers."""


def score(
    predictions: Path,
    *,
    task_name: str | None = None,
    out: Path | None = None,
    protocol: str | None = None,
    keep: str | None = None,
    judge: Judge | None = None,
    rows: PreparedRows | None = None,
) -> Scores:
    """Score a predictions file, and write results.json and scores.jsonl.

    For predictions.median.jsonl, whose rows ``predict`` or ``compare`` decoded by the median, the
    names are results.median.json and scores.median.jsonl, and so on for each rule.

    Args:
        predictions: A .jsonl file; each row has ``id``, ``text`` and ``target``, and may have
            ``task``, ``task_options`` (options of the task, such as ``{"answer": "list"}``),
            ``image``, ``buckets`` (such as ``{"category": "interpolation"}``) and, for MathVista,
            ``extraction``, the answer that a judge extracted from ``text``.
        task_name: Name or import path of the task; overrides the field ``task`` of the rows, which
            may only hold a name of ``mm_numeric.registry.TASKS``.
        out: The folder to write to; the folder of the predictions when None.
        protocol: Rules of scoring for tasks with many shapes per image, one of ``PROTOCOLS``; the
            task's own scorer when None.
        keep: ``last`` scores only the last row of each id; None rejects an id that appears twice.
        judge: An LLM that extracts the answers of rows without ``extraction``, only for tasks whose
            benchmark uses a judge (MathVista). They are stored in extractions.jsonl in ``out``.
        rows: The samples of the data set with their targets, if the predictions are a file of
            another tool without targets. The texts are matched to samples by id or by order.
    """
    scores = read_scores(
        predictions,
        task_name=task_name,
        protocol=protocol,
        keep=keep,
        judge=judge,
        folder=out,
        rows=rows,
    )
    version = task_class(scores.task, str(predictions)).version
    head = {"task": scores.task, "task_version": version, "predictions": str(predictions)}
    head.update(rows.record() if rows else {})
    rule = results_rule(predictions, scores.rows[0])
    write_scores(scores, out or predictions.parent, head, rule=rule)
    return scores


def write_scores(
    scores: Scores, folder: Path, head: Mapping[str, Any], *, rule: str = GREEDY
) -> None:
    """Write scores.jsonl and results.json, which begins with the entries of ``head``.

    The names of the files have the name of ``rule``, unless it is ``greedy``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = {
        **head,
        "rows": len(scores.rows),
        "protocols": scores.scorer.protocols,
        "counts": scores.counts(),
        "metrics": scores.metrics(),
        **({"calibration": scores.confidences.results()} if scores.confidences else {}),
        "failures": scores.failures,
        "buckets": scores.buckets(),
    }
    lines = [json.dumps(row) + "\n" for row in scores.rows]
    write_text(folder / decoded_name(SCORES, rule), "".join(lines))
    # Last, because its existence marks the scoring as complete.
    write_text(folder / decoded_name(RESULTS, rule), json.dumps(results, indent=1) + "\n")


def read_scores(
    predictions: Path,
    *,
    task_name: str | None = None,
    protocol: str | None = None,
    keep: str | None = None,
    judge: Judge | None = None,
    folder: Path | None = None,
    rows: PreparedRows | None = None,
) -> Scores:
    """Score a predictions file, and return the scores without writing them to a file.

    If a judge (an LLM) extracts the answers, these are saved in ``folder``. The default is the
    folder of the predictions.
    """
    read = read_answers(predictions, task_name=task_name, keep=keep, rows=rows)
    if protocol is None:
        scorer = scorer_of(read.task, read.name, read.targets[0], str(predictions))
    else:
        check_shapes(read, protocol, predictions)
        scorer = choose(protocol, PROTOCOLS, "protocol", str(predictions))
    answers: Sequence[Any] = read.answers
    folder = folder or predictions.parent
    judged = judged_answers(scorer, read.responses, judge, folder, str(predictions))
    if judged is not None:
        scorer, answers = judged
        for row in read.rows:
            row["reason"] = None  # of the response; the reason of the extraction is set below
    return scores_of(read.name, scorer, read.rows, list(answers), read.targets, read.sizes_px)


def check_shapes(read: ParsedPredictions, protocol: str, predictions: Path) -> None:
    """Raise ValueError if the targets are not lists of shapes, which ``protocol`` requires."""
    if not isinstance(read.targets[0], Instances):
        raise ValueError(
            f"{predictions}: the protocol {protocol!r} scores shapes in an image, but answers of "
            f"the task {read.name!r} are not shapes; remove the protocol."
        )


def read_answers(
    predictions: Path,
    *,
    task_name: str | None = None,
    keep: str | None = None,
    rows: PreparedRows | None = None,
) -> ParsedPredictions:
    """Read a predictions file, and parse the generated text of each row into an answer."""
    read: ParsedPredictions | None = None
    seen: set[str] = set()
    found = prediction_rows(predictions, rows, task_name=task_name, keep=keep)
    for where, row in progress(found, desc="scoring", unit="row"):
        _check_prediction(row, where, seen)
        if read is None:
            read = _with_task(row, where, task_name)
        if task_name is None and row.get("task", read.name) != read.name:
            raise ValueError(
                f"{where}: the task {row['task']!r} among rows of {read.name!r}; score each task "
                "in a file of its own."
            )
        if (row.get("task_options") or {}) != read.options:
            raise ValueError(
                f"{where}: task_options {row.get('task_options')} among rows of "
                f"{read.options or None}; score each setting in a file of its own."
            )
        _parse_into(read, row, where)
        check_same_rule(read.rows[0], read.rows[-1], where)
    if read is None:
        raise ValueError(f"{predictions}: no predictions to score.")
    return read


def _check_prediction(row: Mapping[str, Any], where: str, seen: set[str]) -> None:
    for key in ("id", "text"):
        if not isinstance(row.get(key), str):
            raise ValueError(
                f'{where}: no "{key}" (a text); a prediction needs id, text, target. For files of '
                "other tools, name the file of the rows with --rows."
            )
    if row.get("target") is None:
        raise ValueError(
            f'{where}: no "target"; a prediction needs id, text, target. To take targets from the '
            "rows that were answered, name their file with --rows."
        )
    if row["id"] in seen:
        raise ValueError(
            f"{where}: the id {row['id']!r} appears twice; remove one of the rows, or score the "
            "last row of each id with --keep last."
        )
    seen.add(row["id"])


def _with_task(row: Mapping[str, Any], where: str, task_name: str | None) -> ParsedPredictions:
    name = task_name or row.get("task")
    if not isinstance(name, str):
        raise ValueError(f"{where}: the rows name no task; name it with --task.")
    if task_name is None and ":" in name and name not in (*TASKS, *TASKS.values()):
        raise ValueError(
            f"{where}: the task {name!r} is an import path, and a data file may not import code; "
            f"if you trust the module {name.partition(':')[0]}, add --task {name}."
        )
    options = row.get("task_options") or {}
    task = read_dataclass(task_class(name, where), options, f"{where}, task")
    return ParsedPredictions(name, task, options)


def _parse_into(read: ParsedPredictions, row: Mapping[str, Any], where: str) -> None:
    try:
        frame = None if row.get("frame") is None else Frame.from_dict(row["frame"])
        answer, target = read.task.parse(row["text"], frame), read.task.recorded(row["target"])
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).rstrip('.')}.") from error
    failed = isinstance(answer, Unreadable)
    scored = {
        "id": row["id"],
        "image": row.get("image"),
        "target": read.task.record(target),
        "text": row["text"],
        "parsed": None if failed else read.task.record(answer),
        "reason": answer.reason if failed else None,
    }
    if isinstance(row.get("prompt"), str):
        scored["prompt"] = row["prompt"]
    if row.get("buckets"):
        scored["buckets"] = _checked_buckets(row["buckets"], where)
    if isinstance(answer, Instances):
        scored.update(cut=answer.cut, malformed=answer.malformed)
    scored.update(decode_fields(row, answer, where))
    read.rows.append(scored)
    read.answers.append(answer)
    read.targets.append(target)
    read.sizes_px.append(None if frame is None else (frame.width_px, frame.height_px))
    asked = (row[name] for name in ("query", "prompt") if isinstance(row.get(name), str))
    read.responses.append(
        Response(row["id"], row["text"], next(asked, None), target, row.get("extraction"))
    )


def _checked_buckets(buckets: Any, where: str) -> dict[str, str]:
    if not (isinstance(buckets, dict) and all(isinstance(v, str) for v in buckets.values())):
        raise ValueError(
            f'{where}: "buckets" is {buckets!r:.60}; write names and texts, such as '
            '{"category": "interpolation"}.'
        )
    return buckets


def scores_of(
    name: str,
    scorer: Scorer,
    rows: list[dict[str, Any]],
    answers: list[Any],
    targets: list[Any],
    sizes_px: list[Any] | None = None,
) -> Scores:
    """Score parsed answers, and add the scores, such as ``iou``, to each dictionary in ``rows``.

    ``name`` is stored as the task of the result; ``sizes_px`` has width and height of each image.
    """
    columns = scorer.judge(answers, targets, sizes_px)
    confidences = collect_confidences(scorer, rows, answers, targets, columns)
    for i, row in enumerate(rows):
        if scorer.reason is not None and row["reason"] is None:
            row["reason"] = scorer.reason(answers[i], targets[i])
            row["parsed"] = row["parsed"] if row["reason"] is None else None
        if scorer.extraction is not None:
            row["extraction"] = scorer.extraction(answers[i], targets[i])
        row.update({column: float(values[i]) for column, values in columns.items()})
    labels: dict[str, list[tuple[str, ...]]] = {}
    for kind, label in scorer.buckets.items():
        found = map(label, targets)
        labels[kind] = [(own,) if isinstance(own, str) else own for own in found]
    for kind in dict.fromkeys(kind for row in rows for kind in row.get("buckets", ())):
        labels[kind] = [(row.get("buckets", {}).get(kind, "none"),) for row in rows]
    return Scores(name, scorer, rows, columns, labels, confidences)


def scorer_of(task: Task, name: str, answer: Any, where: str) -> Scorer:
    """Return the scorer that a task names, or else the default scorer for the type of ``answer``.

    If there is no scorer, the error message has ``name`` (the task) and ``where`` (its file).
    """
    path = task.scorer or SCORERS.get(type(answer))
    if path is None:
        raise ValueError(f"{where}: the task {name!r} has no `scorer`; add one to score it.")
    found: Scorer = load(path, where)
    return found


def _natural(label: str) -> tuple[bool, int, str]:
    return not label.isdecimal(), int(label) if label.isdecimal() else 0, label


def finite(value: float) -> float | None:
    """Return None if a value is nan, because JSON has no nan; otherwise return the value."""
    return None if math.isnan(value) else value
