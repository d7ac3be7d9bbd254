"""Read a predictions file, parse its texts, and check if they fit another coordinate frame."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from mm_numeric.answers import Instances, Unreadable
from mm_numeric.evaluation.answers.files import text_id
from mm_numeric.evaluation.answers.joined_rows import joined_predictions
from mm_numeric.evaluation.answers.judge import Response
from mm_numeric.evaluation.answers.source import AnswerRows, AnswerSource
from mm_numeric.evaluation.metrics.base import Scorer
from mm_numeric.evaluation.metrics.repeats import TRUNCATED
from mm_numeric.evaluation.score_text import in_unit
from mm_numeric.geometry.coordinates import Coordinates
from mm_numeric.geometry.frame_presets import FrameRule, published_frames
from mm_numeric.geometry.frames import Frame
from mm_numeric.io.files import read_rows
from mm_numeric.io.log import logger, progress
from mm_numeric.registry import RANK_FIELDS, TASKS
from mm_numeric.runs.results_file import check_complete
from mm_numeric.settings import read_dataclass
from mm_numeric.tasks.answer_part import without_end_tokens
from mm_numeric.tasks.base import task_class


def read_predictions(
    source: AnswerSource, part_rows: Callable[[AnswerRows], int | None]
) -> Iterator[AnswerRows]:
    """Read the rows of a predictions file part by part, and parse their generated texts.

    ``part_rows`` is called with the first row. It returns the number of rows per part, or None to
    read the file as one part.
    """
    predictions, task_name = source.predictions, source.task_name
    read: AnswerRows | None = None
    first: dict[str, Any] = {}
    seen: set[str] = set()
    most: int | None = None
    due: int | None = None
    for where, row in progress(_prediction_rows(source), desc="scoring", unit="row"):
        _check_prediction(row, where, seen)
        if read is None:
            read = _with_task(row, where, source)
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
        if row.get("rows_due") is not None:
            due = max(due or 0, _checked_number(row["rows_due"], where))
        if not first:
            first, most = read.rows[0], part_rows(read)
        _check_same_rule(first, read.rows[-1], where)
        if len(read.rows) == most:
            yield replace(read, rows_due=due)
            read = read.next_part()
    if read is None:
        raise ValueError(f"{predictions}: no predictions to score.")
    cure = f"{predictions} has no answer to the others; let `mm-numeric predict` answer them"
    check_complete(len(seen), due, cure, partial=source.partial)
    if read.rows:
        yield replace(read, rows_due=due)


def _prediction_rows(source: AnswerSource) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return an iterator over (location for error messages, row of predictions.jsonl).

    With ``source.rows`` (the test data), the file was written by another program.
    """
    found: Iterator[tuple[str, dict[str, Any]]] = (
        map(_as_predicted, read_rows(source.predictions))
        if source.rows is None
        else joined_predictions(source, source.rows)
    )
    return iter(_last_of_each_id(found, source.predictions)) if source.keep == "last" else found


def _as_predicted(located: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    where, row = located
    if type(row.get("id")) is int:
        row = {**row, "id": text_id(row["id"])}
    if isinstance(row.get("text"), str):
        row = {**row, "text": without_end_tokens(row["text"])}
    return where, row


def _last_of_each_id(
    rows: Iterable[tuple[str, dict[str, Any]]], predictions: Path
) -> Collection[tuple[str, dict[str, Any]]]:
    count, last = 0, dict[str, tuple[str, dict[str, Any]]]()
    for where, row in rows:
        count += 1
        key = json.dumps(row.get("id"))
        last.pop(key, None)
        last[key] = where, row
    if len(last) < count:
        message = "%s: %d earlier rows are not scored, because a later row has the same id."
        logger.warning(message, predictions, count - len(last))
    return last.values()


def _check_prediction(row: Mapping[str, Any], where: str, seen: set[str]) -> None:
    for key in ("id", "text"):
        if not isinstance(row.get(key), str):
            raise ValueError(
                f'{where}: no "{key}" (a text) in the fields {", ".join(row)}; a prediction needs '
                "id, text, target. For files of other tools, name the file of the rows with "
                "--rows, or the field of the correct answers with --target; for COCO results, "
                "name the file of the true boxes with --truth."
            )
    if row.get("target") is None:
        raise ValueError(
            f'{where}: no "target"; a prediction needs id, text, target. To take targets from the '
            "rows that were answered, name their file with --rows; from another field, name it "
            "with --target."
        )
    if row["id"] in seen:
        raise ValueError(
            f"{where}: the id {row['id']!r} appears twice; remove one of the rows, or score the "
            "last row of each id with --keep last."
        )
    seen.add(row["id"])


def _with_task(row: Mapping[str, Any], where: str, source: AnswerSource) -> AnswerRows:
    """Read the task and its options from the first row; return them in a part without rows."""
    task_name = source.task_name
    name = task_name or row.get("task")
    if not isinstance(name, str):
        raise ValueError(f"{where}: the rows name no task; name it with --task.")
    if task_name is None and ":" in name and name not in (*TASKS, *TASKS.values()):
        raise ValueError(
            f"{where}: the task {name!r} is an import path, and a data file may not import code; "
            f"if you trust the module {name.partition(':')[0]}, add --task {name}."
        )
    options = row.get("task_options") or {}
    if not isinstance(options, dict):
        raise ValueError(f"{where}: task_options is an object, not {options!r:.60}; correct it.")
    if "scorer" in options:
        raise ValueError(
            f"{where}: task_options names a scorer, and a data file may not import code; remove "
            "it, and name the scorer with --scorer."
        )
    named = {} if source.scorer is None else {"scorer": source.scorer}
    task = read_dataclass(task_class(name, where), {**options, **named}, f"{where}, task")
    head = {"task": name, "task_version": task.version}
    head |= source.rows.record() if source.rows else {}
    return AnswerRows(name, str(source.predictions), head, task=task, options=options)


def _parse_into(read: AnswerRows, row: Mapping[str, Any], where: str) -> None:
    task = read.task
    try:
        frame = None if row.get("frame") is None else Frame.from_dict(row["frame"])
        answer, target = task.read(row["text"], frame), task.recorded(row["target"])
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).rstrip('.')}.") from error
    failed = isinstance(answer, Unreadable)
    read.text_rules.update(task.answer_part(row["text"]).rules)
    scored = {
        "id": row["id"],
        "image": row.get("image"),
        "target": task.record(target),
        "text": row["text"],
        "parsed": None if failed else task.record(answer),
        "reason": answer.reason if failed else None,
    }
    scored |= {name: row[name] for name in ("group", "prompt") if isinstance(row.get(name), str)}
    if row.get("buckets"):
        scored["buckets"] = _checked_buckets(row["buckets"], where)
    if isinstance(answer, Instances):
        scored.update(cut=answer.cut, malformed=answer.malformed)
    if isinstance(row.get(TRUNCATED), bool):
        scored[TRUNCATED] = row[TRUNCATED]
    scored.update(_decode_fields(row, answer, where))
    read.rows.append(scored)
    read.answers.append(answer)
    read.targets.append(target)
    read.frames.append(frame)
    read.sizes_px.append(None if frame is None else (frame.width_px, frame.height_px))
    asked = (row[name] for name in ("query", "prompt") if isinstance(row.get(name), str))
    read.responses.append(
        Response(row["id"], row["text"], next(asked, None), target, row.get("extraction"))
    )


def _checked_number(due: Any, where: str) -> int:
    if type(due) is not int or due < 1:
        raise ValueError(
            f'{where}: "rows_due" is {due!r:.40}; write the number of rows of the data, or remove '
            "the field."
        )
    return due


def _checked_buckets(buckets: Any, where: str) -> dict[str, str]:
    if not (isinstance(buckets, dict) and all(isinstance(v, str) for v in buckets.values())):
        raise ValueError(
            f'{where}: "buckets" is {buckets!r:.60}; write names and texts, such as '
            '{"category": "interpolation"}.'
        )
    return buckets


def _decode_fields(row: Mapping[str, Any], answer: Any, where: str) -> dict[str, Any]:
    """Validate and return the fields of a row of a predictions file that are about confidence.

    The fields are ``decode``, ``confidence`` (a copy of ``decode.confidence``) and, for a list of
    objects, ``scores`` and ``token_scores``. A field ``decode`` of another tool, which is not an
    object with a ``rule``, is ignored.
    """
    found: dict[str, Any] = {}
    if isinstance(row.get("decode"), dict) and "rule" in row["decode"]:
        found["decode"] = _checked_decode(row["decode"], where)
        found["confidence"] = found["decode"].get("confidence")
    if isinstance(answer, Instances):
        for name in RANK_FIELDS:
            if row.get(name) is not None:
                found[name] = _checked_scores(row[name], name, len(answer.items), where)
        if "decode" in found:
            _check_probabilities(found.get("scores", ()), f"{where}: scores")
            if (raw := found["decode"].get("scores_raw")) is not None:
                _checked_scores(raw, "decode.scores_raw", len(answer.items), where)
                _check_probabilities(raw, f"{where}: decode.scores_raw")
    return found


def _check_same_rule(first: Mapping[str, Any], row: Mapping[str, Any], where: str) -> None:
    """Raise ValueError if two rows of a predictions file were not decoded by the same rule.

    The risk may differ between rows: its default depends on the type of the answer.
    """
    one, other = (
        f"decoded by {own['decode']['rule']}" if own.get("decode") else 'without "decode"'
        for own in (first, row)
    )
    if one != other:
        raise ValueError(
            f"{where}: a row {other} among rows {one}; score the answers of each rule in a file "
            "of its own."
        )


def _checked_decode(decode: dict[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(decode["rule"], str):
        raise ValueError(
            f"{where}: decode.rule is {decode['rule']!r:.60}; write the name of a rule, such as "
            '"median", or remove the field "decode".'
        )
    for name in ("confidence", "confidence_raw", "covered", "drawn"):
        if decode.get(name) is not None:
            _check_probabilities([decode[name]], f"{where}: decode.{name}")
    return decode


def _check_probabilities(values: Sequence[Any], where: str) -> None:
    for value in values:
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise ValueError(
                f"{where} has {value!r:.40}; a confidence of a decoded answer is a probability, "
                "0 to 1."
            )


def _checked_scores(scores: Any, name: str, count: int, where: str) -> list[float]:
    numbers = isinstance(scores, list) and all(type(s) in (int, float) for s in scores)
    if not numbers or len(scores) != count:
        raise ValueError(
            f'{where}: "{name}" is {scores!r:.60}, and the text holds {count} shapes; write one '
            "number for each shape, or remove the field."
        )
    return scores


SAMPLE_ROWS = 100
"""The first answers of a file, up to this number, are parsed in each frame."""

_FEWEST = 10  # frames are not compared on fewer answers
_MARGIN = 0.3  # smallest difference of a metric, as a share of 1, that suggests another frame


def other_frame(read: AnswerRows, scorer: Scorer) -> str:
    """Return a warning if coordinates score much better when read in another frame; else "".

    Only the texts of the first rows are tested. The warning suggests the frame, but scoring never
    switches to it: choosing the frame with the best metric would inflate the metric.
    """
    first = islice(zip(read.rows, read.frames, read.targets, strict=True), SAMPLE_ROWS)
    rows = [(row["text"], frame, target) for row, frame, target in first if frame is not None]
    main = scorer.metrics[0]
    if len(rows) < _FEWEST or not (main.is_share and main.higher_is_better):
        return ""

    def value(own: Sequence[Frame]) -> float:
        answers = [read.task.read(text, frame) for (text, *_), frame in zip(rows, own, strict=True)]
        found = float(main.value(scorer.judge(answers, [target for *_, target in rows])))
        return -1.0 if math.isnan(found) else found

    declared = [frame for _, frame, _ in rows]
    now, best, option = value(declared), -1.0, ""
    for name, rule in _ranges(declared[0].coordinates).items() if now < 1 - _MARGIN else ():
        try:
            found = value([rule.frame(frame.width_px, frame.height_px) for frame in declared])
        except ValueError:  # this model family does not accept an image of this size
            continue
        if found > best:
            best, option = found, name
    if best < now + _MARGIN:
        return ""
    return (
        f"the answers seem to be in another frame: {main.label} of the first {len(rows)} is "
        f"{in_unit(max(now, 0.0), main.unit)} in the declared one, and {in_unit(best, main.unit)} "
        f"with {option}; check --family, --frame or the field frame of the answers."
    )


def _ranges(declared: Coordinates) -> dict[str, FrameRule]:
    """Return one published frame for each coordinate range and order (x or y first), by name.

    A parser detects the text format in any frame. Therefore only ranges and orders are compared,
    and all frames get the declared text format. If several have the same range and order, the name
    is that of a frame that was published with the declared format.
    """
    found: dict[FrameRule, str] = {}
    rules = published_frames().items()
    for name, rule in sorted(rules, key=lambda pair: pair[1].coordinates.format != declared.format):
        if not rule.coordinates.bins and not declared.bins:
            coordinates = replace(rule.coordinates, format=declared.format)
            rule = replace(rule, coordinates=coordinates)
        found.setdefault(rule, name)
    return {name: rule for rule, name in found.items()}
