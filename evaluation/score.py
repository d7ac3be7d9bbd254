"""predictions.jsonl, from any engine, in; results.json and scores.jsonl out.

The text is always read anew here, so that a score depends on the text, the parser's version and the
scorer alone.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import (
    Instances,
    Unreadable,
)
from mm_numeric.evaluation.metrics.base import Measured, Scorer, figures_of, taken
from mm_numeric.evaluation.metrics.bootstrap import interval
from mm_numeric.evaluation.table import Cell, Column, Table
from mm_numeric.files import read_rows, write_text
from mm_numeric.geometry.frames import Frame
from mm_numeric.parsing import read_dataclass
from mm_numeric.registry import PROTOCOLS, SCORERS, choose, load
from mm_numeric.run_folder import RESULTS, SCORES
from mm_numeric.tasks.base import Task, task_class


@dataclass(frozen=True, eq=False)
class Scores:
    """What a scorer says of a file of predictions."""

    task: str
    """Or the protocol, where there is no task."""

    scorer: Scorer
    rows: list[dict[str, Any]]
    """Each row: id, image, target, text, parsed, reason, and one value for each column; the prompt
    and the buckets where the prediction has them, and of an answer of several shapes, ``cut`` and
    ``malformed``."""

    columns: dict[str, NDArray[np.float64]]

    bucket_labels: dict[str, list[tuple[str, ...]]]
    """For each way to sort the rows into buckets, the buckets of each row."""

    @property
    def failures(self) -> dict[str, int]:
        """How many answers could not be read, by reason."""
        return dict(Counter(row["reason"] for row in self.rows if row["reason"]).most_common())

    @property
    def figures(self) -> list[Measured]:
        """The metrics of each category of rows, where there are several, and then of all rows."""
        return figures_of(self.scorer, [row.get("buckets", {}) for row in self.rows])

    def metrics(self) -> dict[str, dict[str, float | None]]:
        """Return each figure with its interval over the rows."""
        found = {}
        for metric, rows in self.figures:
            columns = taken(self.columns, rows)
            low, high = interval(columns, metric.value)
            value = float(metric.value(columns))
            found[metric.name] = {
                "value": _number(value),
                "low": _number(low),
                "high": _number(high),
            }
        return found

    def buckets(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """Return the metrics of the rows of each bucket, such as each hour of the dial."""
        found: dict[str, dict[str, dict[str, float | None]]] = {}
        for name, labels in self.bucket_labels.items():
            found[name] = {}
            for label in sorted({label for own in labels for label in own}, key=_natural):
                rows = np.array([i for i, own in enumerate(labels) if label in own])
                part = taken(self.columns, rows)
                figures = {m.name: _number(float(m.value(part))) for m in self.scorer.metrics}
                found[name][label] = {"rows": len(rows), **figures}
        return found


class Answers(NamedTuple):
    """A file of predictions, as it was read."""

    name: str
    """Of the task."""

    task: Task
    rows: list[dict[str, Any]]
    answers: list[Any]
    targets: list[Any]
    sizes_px: list[tuple[int, int] | None]


def score(
    predictions: Path,
    *,
    task_name: str | None = None,
    out: Path | None = None,
    protocol: str | None = None,
) -> Scores:
    """Score a file of predictions, and write results.json and scores.jsonl.

    Args:
        predictions: A .jsonl file; each row has ``id``, ``text`` and ``target``, and may have
            ``task``, ``task_options`` (fields of the task, such as ``{"answer": "list"}``),
            ``image`` and ``buckets`` (such as ``{"category": "interpolation"}``).
        task_name: The task, where the rows do not name it.
        out: The folder to write to; beside the predictions when None.
        protocol: One of ``PROTOCOLS``, for answers that are shapes of an image.

    Raises:
        ValueError: If a row lacks something, an id stands twice, or there is nothing to score.
    """
    scores = read_scores(predictions, task_name=task_name, protocol=protocol)
    version = task_class(scores.task, str(predictions)).version
    head = {"task": scores.task, "task_version": version}
    write_scores(scores, out or predictions.parent, {**head, "predictions": str(predictions)})
    return scores


def write_scores(scores: Scores, folder: Path, head: Mapping[str, Any]) -> None:
    """Write results.json, which begins with ``head``, and scores.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    results = {
        **head,
        "rows": len(scores.rows),
        "protocols": scores.scorer.protocols,
        "metrics": scores.metrics(),
        "failures": scores.failures,
        "buckets": scores.buckets(),
    }
    lines = [json.dumps(row) + "\n" for row in scores.rows]
    write_text(folder / SCORES, "".join(lines))
    write_text(folder / RESULTS, json.dumps(results, indent=1) + "\n")  # last: it says "done"


def read_scores(
    predictions: Path, *, task_name: str | None = None, protocol: str | None = None
) -> Scores:
    """Score a file of predictions without writing anything; see ``score``."""
    read = read_answers(predictions, task_name=task_name)
    if protocol is None:
        scorer = scorer_of(read.task, read.name, read.targets[0], str(predictions))
    else:
        check_shapes(read, protocol, predictions)
        scorer = choose(protocol, PROTOCOLS, "protocol", str(predictions))
    return scores_of(read.name, scorer, read.rows, read.answers, read.targets, read.sizes_px)


def check_shapes(read: Answers, protocol: str, predictions: Path) -> None:
    """Refuse a protocol that judges shapes for answers that are none.

    Raises:
        ValueError: If they are none.
    """
    if not isinstance(read.targets[0], Instances):
        raise ValueError(
            f"{predictions}: the protocol {protocol!r} judges the shapes of an image, and the "
            f"task {read.name!r} answers with something else; leave it out."
        )


def read_answers(predictions: Path, *, task_name: str | None = None) -> Answers:
    """Read the text of every prediction; see ``score``."""
    rows: list[dict[str, Any]] = []
    answers: list[Any] = []
    targets: list[Any] = []
    sizes_px: list[Any] = []
    seen: set[str] = set()
    task: Task | None = None
    name = task_name
    for where, row in read_rows(predictions):
        for key in ("id", "text"):
            if not isinstance(row.get(key), str):
                raise ValueError(
                    f'{where}: no "{key}" (a text); a prediction needs id, text, target.'
                )
        if row.get("target") is None:
            raise ValueError(f'{where}: no "target"; a prediction needs id, text, target.')
        if row["id"] in seen:
            raise ValueError(f"{where}: the id {row['id']!r} stands twice; score each row once.")
        seen.add(row["id"])
        if task is None:
            name = task_name or row.get("task")
            if not isinstance(name, str):
                raise ValueError(f"{where}: the rows name no task; give one with --task.")
            options = row.get("task_options") or {}
            task = read_dataclass(task_class(name, where), options, f"{where}, task")
        if task_name is None and row.get("task", name) != name:
            raise ValueError(
                f"{where}: the task {row['task']!r} among rows of {name!r}; score each by itself."
            )
        if (row.get("task_options") or {}) != options:
            raise ValueError(
                f"{where}: task_options {row.get('task_options')} among rows of {options or None}; "
                "score each by itself."
            )
        try:
            frame = None if row.get("frame") is None else Frame.from_dict(row["frame"])
            answer, target = task.parse(row["text"], frame), task.recorded(row["target"])
        except ValueError as error:
            raise ValueError(f"{where}: {str(error).rstrip('.')}.") from error
        unreadable = isinstance(answer, Unreadable)
        answers.append(answer)
        targets.append(target)
        sizes_px.append(frame and (frame.width_px, frame.height_px))
        rows.append(
            {
                "id": row["id"],
                "image": row.get("image"),
                "target": task.record(target),
                "text": row["text"],
                "parsed": None if unreadable else task.record(answer),
                "reason": answer.reason if unreadable else None,
            }
        )
        if isinstance(row.get("prompt"), str):
            rows[-1]["prompt"] = row["prompt"]
        if row.get("buckets"):
            rows[-1]["buckets"] = _checked_buckets(row["buckets"], where)
        if isinstance(answer, Instances):
            rows[-1].update(cut=answer.cut, malformed=answer.malformed)
            if row.get("scores") is not None:
                rows[-1]["scores"] = _checked_scores(row["scores"], len(answer.items), where)
    if task is None or name is None:
        raise ValueError(f"{predictions}: no predictions to score.")
    return Answers(name, task, rows, answers, targets, sizes_px)


def _checked_buckets(buckets: Any, where: str) -> dict[str, str]:
    """Return what a row says of itself for tables by bucket."""
    named = isinstance(buckets, dict) and all(isinstance(v, str) for v in buckets.values())
    if not named:
        raise ValueError(
            f'{where}: "buckets" is {buckets!r:.60}; give names and texts, such as '
            '{"category": "interpolation"}.'
        )
    found: dict[str, str] = buckets
    return found


def _checked_scores(scores: Any, count: int, where: str) -> list[float]:
    """Return the scores of the shapes of an answer, one each."""
    numbers = isinstance(scores, list) and all(type(s) in (int, float) for s in scores)
    if not numbers or len(scores) != count:
        raise ValueError(
            f'{where}: "scores" is {scores!r:.60}, and the text holds {count} shapes; give one '
            "number each, or leave it out."
        )
    return scores


def scores_of(
    name: str,
    scorer: Scorer,
    rows: list[dict[str, Any]],
    answers: list[Any],
    targets: list[Any],
    sizes_px: list[Any] | None = None,
) -> Scores:
    """Judge answers, and put what was found into the rows.

    Args:
        name: Of the task.
        scorer: How they are judged.
        rows: One for each answer.
        answers: As they were parsed.
        targets: As many.
        sizes_px: Width and height of each image, or None.
    """
    columns = scorer.judge(answers, targets, sizes_px)
    for i, row in enumerate(rows):
        if scorer.reason is not None and row["reason"] is None:
            row["reason"] = scorer.reason(answers[i], targets[i])
            row["parsed"] = row["parsed"] if row["reason"] is None else None
        row.update({column: float(values[i]) for column, values in columns.items()})
    labels = {
        kind: [_buckets(label(target)) for target in targets]
        for kind, label in scorer.buckets.items()
    }
    for kind in dict.fromkeys(kind for row in rows for kind in row.get("buckets", ())):
        labels[kind] = [(row.get("buckets", {}).get(kind, "none"),) for row in rows]
    return Scores(task=name, scorer=scorer, rows=rows, columns=columns, bucket_labels=labels)


def _buckets(found: str | tuple[str, ...]) -> tuple[str, ...]:
    return (found,) if isinstance(found, str) else found


def scorer_of(task: Task, name: str, answer: Any, where: str) -> Scorer:
    """Return how answers are judged: as the task says, else as their kind is.

    Raises:
        ValueError: If neither is known.
    """
    path = task.scorer or SCORERS.get(type(answer))
    if path is None:
        raise ValueError(f"{where}: the task {name!r} has no `scorer`; give it one to score it.")
    found: Scorer = load(path, where)
    return found


def results_table(scores: Scores) -> str:
    """Return the metrics and the parse failures as text for a terminal."""
    units = {metric.name: metric for metric, _ in scores.figures}
    what = "protocol" if scores.task in PROTOCOLS else "task"
    head = f"{len(scores.rows)} rows, {what} {scores.task}"
    lines = [f"{head}; 95 % bootstrap intervals over the rows"]
    rows = []
    for name, found in scores.metrics().items():
        value, low, high = (in_unit(found[k], units[name].unit) for k in ("value", "low", "high"))
        rows.append([units[name].label, value, f"{low} to {high}"])
    lines.append(_indented_table(rows))
    if scores.failures:
        lines.append("answers that could not be parsed:")
        lines.append(_indented_table([[r, str(count)] for r, count in scores.failures.items()]))
    return "\n".join(lines)


def _indented_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table without header, its columns at the same places as in other results."""
    columns = [
        Column(header=Cell(), align="left", min_width=28),
        Column(header=Cell(), min_width=8),
        Column(header=Cell(), align="left"),
    ]
    return Table.of(columns[: len(rows[0])], rows).to_terminal(header=False, indent=2)


def in_unit(value: float | None, unit: str) -> str:
    """Write a figure with its unit: ``81.2 %``, ``3.5 min``, ``0.973``."""
    if value is None:
        return "-"
    if not unit:
        return plain_figure(value)
    return f"{100 * value:.1f} %" if unit == "%" else f"{value:.1f} {unit}"


def plain_figure(value: float, sign: str = "") -> str:
    """Write a figure that has no unit: ``0.973``, ``12.300``, ``1.7e+09``; ``+`` for its sign."""
    return f"{value:{sign}.3f}" if abs(value) < 1e6 else f"{value:{sign}.2g}"


def _natural(label: str) -> tuple[bool, int, str]:
    """Sort 2 before 10, and numbers before words."""
    return not label.isdecimal(), int(label) if label.isdecimal() else 0, label


def _number(value: float) -> float | None:
    """Return a figure as JSON can hold it: null for nan."""
    return None if math.isnan(value) else value
