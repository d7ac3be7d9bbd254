"""Score generated answers of this library or another tool, or detections; write results.json.

Files of any source are converted to ``AnswerRows``. A protocol is a ``Scorer``: it computes columns
with a value for each row, and may rank objects by confidence. The answer is always parsed from the
generated text. Therefore a score depends only on the text, the parser's version and the scorer.
"""

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mm_numeric.answers import Instances
from mm_numeric.evaluation.answers.detections import COCO_AP, default_protocol, read_truth_files
from mm_numeric.evaluation.answers.judge import Judge, judged_answers
from mm_numeric.evaluation.answers.predictions import other_frame, read_predictions
from mm_numeric.evaluation.answers.source import AnswerRows, AnswerSource, PreparedRows
from mm_numeric.evaluation.guesses import MOST_ROWS, GuessedRows
from mm_numeric.evaluation.metrics.base import CATEGORY, Scorer
from mm_numeric.evaluation.metrics.calibration import collect_confidences, collect_coverage
from mm_numeric.evaluation.metrics.coco_ap import Rules, coco_scorer
from mm_numeric.evaluation.metrics.ranking import RANKING, no_ranking
from mm_numeric.evaluation.metrics.repeats import TRUNCATED
from mm_numeric.evaluation.score_text import section_of, write_rows
from mm_numeric.evaluation.scores import NO_LABEL, Scores, merge_scores, row_groups
from mm_numeric.geometry.layouts import key_notes
from mm_numeric.io.log import logger
from mm_numeric.registry import PROTOCOLS, RANK_FIELDS, choose, scorer_of
from mm_numeric.runs.results_file import (
    TASK,
    read_sections,
    results_path,
    scores_path,
    write_section,
)

PART_ROWS = 10_000
"""Number of rows that are scored together, unless the scores of a row depend on other rows."""


def score(
    predictions: Path | str,
    *,
    task_name: str | None = None,
    scorer: str | None = None,
    protocol: str | Rules | None = None,
    keep: str | None = None,
    judge: Judge | None = None,
    rows: PreparedRows | None = None,
    partial: bool = False,
    truth: Path | str | None = None,
    lines: str | None = None,
    out: Path | str | None = None,
    write: bool = True,
) -> Scores:
    """Score answers, and write scores.jsonl and a section of results.json.

    ``mm_numeric.runs.results_file`` describes results.json and the names of both files. Rows are
    written to scores.jsonl part by part to save memory; ``Scores.rows`` reads them again.

    Args:
        predictions: A .jsonl file; each row has ``id``, ``text`` and ``target``, and may have
            ``task``, ``task_options`` (options of the task, such as ``{"answer": "yes_no"}``),
            ``image``, ``group`` (a text; bootstrap resamples draw the rows of a group together),
            ``buckets`` (such as ``{"category": "interpolation"}``), for lists of shapes ``scores``
            (a confidence for each shape) and, for MathVista, ``extraction``, the answer that a
            judge extracted from ``text``. With ``rows``, a file of another tool; with ``truth``,
            detections.
        task_name: Name or import path of the task; overrides the field ``task`` of the rows. This
            field may only hold a name of ``mm_numeric.registry.TASKS``.
        scorer: Import path of a ``Scorer`` that replaces the task's own, as ``task.scorer`` does.
        protocol: Name of a protocol for many shapes per image (one of ``PROTOCOLS``), or the
            ``Rules`` of ``coco_ap``. When None, the task's own scorer is used; detections are
            scored by ``icdar2015`` (text files) or ``labelled`` (JSON; labels must be equal).
        keep: ``last`` scores only the last row of each id; None rejects an id that appears twice.
        judge: An LLM that extracts the answers of rows without ``extraction``, only for tasks whose
            benchmark uses a judge (MathVista). The extractions are saved in ``out``.
        rows: The samples of the data set with their targets, if the predictions are a file of
            another tool without targets. The texts are matched to samples by id or by order.
        partial: If answers are missing, score the answers that exist and log a warning, instead of
            an error. ``rows_due`` in the predictions, or else ``rows``, says how many are expected.
        truth: Files with the true shapes, if the predictions are detections of any detector. Both
            are a folder or zip of text files, or COCO JSON; see ``answers.detections``.
        lines: Format of a line in the text files, such as ``quad`` (four corners); detected from
            the first line when None.
        out: The folder to write to. When None, files are written to the folder of the predictions;
            with ``truth``, nothing is written.
        write: False to write nothing, and to keep the rows in memory.
    """
    predictions = Path(predictions)
    truth, out = (None if path is None else Path(path) for path in (truth, out))
    source = AnswerSource(
        predictions=predictions,
        task_name=task_name,
        scorer=scorer,
        keep=keep,
        judge=judge,
        rows=rows,
        partial=partial,
        truth=truth,
        lines=lines,
    )
    if protocol == COCO_AP:
        protocol = Rules()
    if not write or (truth is not None and out is None):
        return merge_scores(list(_scored_parts(source, protocol, out, check_frame=False)))
    path = results_path(predictions, out)
    if path.is_file():
        read_sections(path)  # an early error if the other results in it are corrupt
    name = protocol or (TASK if truth is None else default_protocol(truth))
    name = COCO_AP if isinstance(name, Rules) else name
    kept: list[Scores] = []

    def rows_of_parts() -> Iterator[list[dict[str, Any]]]:
        for part in _scored_parts(source, protocol, out, check_frame=True):
            kept.append(replace(part, kept_rows=[]))
            yield part.kept_rows

    write_rows(rows_of_parts(), predictions, name, out)
    scores = replace(merge_scores(kept), rows_file=scores_path(predictions, name, out))
    write_section(predictions, name, section_of(scores), out)
    return scores


def _scored_parts(
    source: AnswerSource, protocol: str | Rules | None, folder: Path | None, *, check_frame: bool
) -> Iterator[Scores]:
    """Score answers part by part, so that few rows are in memory at a time.

    If the scores of a row depend on other rows, all rows are scored as one part. With
    ``check_frame``, a warning is logged if coordinates seem to be in another frame. The answers of
    a judge are saved in ``folder``.
    """
    predictions, warns = source.predictions, check_frame
    if source.truth is not None:
        read, scorer = read_truth_files(source, source.truth, protocol)
        yield scores_of(read, scorer)
        return
    scorers: list[Scorer] = []

    def part_rows(read: AnswerRows) -> int | None:
        scorer = _chosen_scorer(read, protocol, str(predictions))
        scorers.append(scorer)
        joins_rows = scorer.joins_rows or scorer.judge_rules or scorer.labels or scorer.ranked
        return None if joins_rows or "decode" in read.rows[0] else PART_ROWS

    notes, frames = Counter[tuple[str, bool]](), 0
    for read in read_predictions(source, part_rows):
        scorer = scorers[0]
        if warns:
            for row, frame in zip(read.rows, read.frames, strict=True):
                text = read.task.answer_part(row["text"]).text
                notes.update(key_notes(text, frame.coordinates) if frame else ())
                frames += frame is not None
        if check_frame:
            # A protocol that only ranks objects has no metric to compare between frames.
            by_task = scorer if scorer.metrics else _chosen_scorer(read, None, str(predictions))
            if hint := other_frame(read, by_task):
                logger.warning("%s: %s", predictions, hint)
            coverage = collect_coverage(read.rows) if "decode" in read.rows[0] else None
            if coverage is not None and (warning := coverage.warning()):
                logger.warning("%s: %s.", predictions, warning)
            check_frame = False
        judged = None
        if scorer.judge_rules or source.judge:
            place = folder or predictions.parent
            judged = judged_answers(scorer, read.responses, source.judge, place, str(predictions))
        if judged is None:
            yield scores_of(read, scorer)
            continue
        scorer, read = judged[0], replace(read, answers=list(judged[1]))
        for row in read.rows:
            row["reason"] = None  # scores_of sets the reason for the extraction instead
        yield replace(scores_of(read, scorer), guessed=None)  # guesses are not sent to the judge
    for (note, is_mistake), count in notes.items():
        level = logging.WARNING if is_mistake else logging.INFO
        logger.log(level, "%s: in %d of %d answers, %s.", predictions, count, frames, note)


def _chosen_scorer(read: AnswerRows, protocol: str | Rules | None, where: str) -> Scorer:
    scorer: Scorer
    if protocol is None:
        scorer = scorer_of(read.task, read.name, read.targets[0], where)
    elif not isinstance(read.targets[0], Instances):
        name = COCO_AP if isinstance(protocol, Rules) else protocol
        raise ValueError(
            f"{where}: the protocol {name!r} scores shapes in an image, but answers of the task "
            f"{read.name!r} are not shapes; remove the protocol."
        )
    elif isinstance(protocol, Rules):
        scorer = coco_scorer(protocol, _confidences_of(read.rows[0], protocol.rank_by))
    else:
        scorer = choose(protocol, PROTOCOLS, "protocol", where)
    return scorer


def _confidences_of(row: dict[str, Any], rank_by: str) -> str:
    """Describe where the confidences of a predictions file come from, for results.json."""
    if rank_by != RANK_FIELDS[0]:
        return f"{rank_by} of the rows (mean probability of tokens)"
    if "decode" in row:
        return f"of the rows (probability of being correct; decoded by {row['decode']['rule']})"
    return "of the rows (predict: mean probability of tokens)"


def scores_of(read: AnswerRows, scorer: Scorer) -> Scores:
    """Score parsed answers, and add the scores, such as ``iou``, to the row of each answer."""
    rows, answers, targets = read.rows, read.answers, read.targets
    texts = [row["text"] for row in rows] if scorer.from_text else None
    columns = scorer.judge(answers, targets, read.sizes_px, texts)
    if TRUNCATED in columns:
        known = [TRUNCATED in row for row in rows]
        columns["end_known"] = np.array(known, dtype=np.float64)
        columns[TRUNCATED] = np.array(
            [row.get(TRUNCATED) is True for row in rows], dtype=np.float64
        )
    groups = row_groups(rows, scorer, targets)
    confidences = coverage = None
    if rows and "decode" in rows[0]:
        confidences = collect_confidences(scorer, rows, answers, targets, columns, groups)
        if (coverage := collect_coverage(rows)) is not None:
            coverage.check_rule(rows[0]["decode"]["rule"], read.where)
    for i, row in enumerate(rows):
        if scorer.reason is not None and row["reason"] is None:
            row["reason"] = scorer.reason(answers[i], targets[i])
            row["parsed"] = row["parsed"] if row["reason"] is None else None
        if scorer.extraction is not None:
            row["extraction"] = scorer.extraction(answers[i], targets[i])
    for column, values in columns.items():
        for row, value in zip(rows, values.tolist(), strict=True):
            row[column] = value
    labels = _bucket_labels(scorer, rows, targets)
    shapes = [answer if isinstance(answer, Instances) else None for answer in answers]
    counted = scorer.labels(shapes, targets) if scorer.labels else None
    failures = Counter(row["reason"] for row in rows if row["reason"])
    categories = [sys.intern(row.get("buckets", {}).get(CATEGORY, "none")) for row in rows]
    scores = Scores(
        task=read.name,
        scorer=scorer,
        kept_rows=rows,
        columns=columns,
        groups=groups,
        bucket_labels=labels,
        categories=categories,
        failures=dict(failures.most_common()),
        text_rules=dict(read.text_rules.most_common()),
        confidences=confidences,
        coverage=coverage,
        labels=counted,
        source=read.head,
        rows_due=read.rows_due,
        guessed=_rows_to_guess(read, scorer, categories),
    )
    return scores if scorer.ranked is None else _with_ranking(scores, read, shapes)


def _rows_to_guess(read: AnswerRows, scorer: Scorer, categories: list[str]) -> GuessedRows | None:
    """Return the test rows without the model's answers, to score guesses; None without a task."""
    if read.task is None:
        return None
    rows = GuessedRows(
        scorer=scorer,
        task=read.task,
        targets=read.targets,
        frames=read.frames,
        sizes_px=read.sizes_px,
        prompts=[row.get("prompt") for row in read.rows],
        categories=categories,
    )
    return rows.spread() if len(read.rows) > MOST_ROWS else rows


def _bucket_labels(
    scorer: Scorer, rows: list[dict[str, Any]], targets: list[Any]
) -> dict[str, list[tuple[str, ...]]]:
    """Return the buckets of each row, for each grouping that the scorer or the rows define."""
    labels: dict[str, list[tuple[str, ...]]] = {}
    known: dict[str | tuple[str, ...], tuple[str, ...]] = {}  # equal buckets share one object
    for kind, label in scorer.buckets.items():
        found = map(label, targets)
        labels[kind] = [
            known.setdefault(own, (own,) if isinstance(own, str) else own) for own in found
        ]
    for kind in dict.fromkeys(kind for row in rows for kind in row.get("buckets", ())):
        own_labels = (row.get("buckets", {}).get(kind, *NO_LABEL) for row in rows)
        labels[kind] = [known.setdefault(own, (own,)) for own in own_labels]
    return labels


def _with_ranking(scores: Scores, read: AnswerRows, shapes: list[Instances | None]) -> Scores:
    """Add the column for average precision (AP) and, if AP is defined, its metrics.

    AP ranks all objects by their confidence. Unless the protocol requires AP, it is not reported if
    there are no true objects, a confidence is missing, or all of several confidences are equal.
    """
    scorer, rules = scores.scorer, scores.scorer.ranked
    assert rules is not None
    ranks: list[Any] = [row.get(rules.field) for row in read.rows]
    found = [own for own, answer in zip(ranks, shapes, strict=True) if answer and answer.items]
    if rules.is_required and rules.field != RANK_FIELDS[0] and None in found:
        raise ValueError(
            f'{read.where}: a row has no "{rules.field}"; only greedy answers that were decoded '
            "together with another rule have them. Remove --rank-by to rank by scores."
        )
    values = [value for own in found for value in (own or [None])]
    has_truths = any(not item.ignore for target in read.targets for item in target.items)
    is_ordered = has_truths and (len(values) < 2 or len(set(values)) > 1)
    if (None in values or not is_ordered) and not rules.is_required:
        column: Any = no_ranking(rules.metrics, len(read.rows))
        return replace(scores, columns={**scores.columns, RANKING: column})
    try:
        column = rules.rank(shapes, read.targets, ranks)
    except ValueError as error:
        raise ValueError(f"{read.where}: {error}") from error
    return replace(
        scores,
        scorer=replace(scorer, metrics=rules.metrics),
        columns={**scores.columns, RANKING: column},
    )
