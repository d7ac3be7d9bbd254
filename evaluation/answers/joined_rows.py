"""Join answers that another program has generated with the rows of the test data.

An answer file, for example of lmms-eval, has ids of questions and generated texts. The test data
has the correct answers and the image sizes. Each joined row equals the row that ``mm-numeric
predict`` would write for the same text, so that the score is the same.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from mm_numeric.answers import ImageSource
from mm_numeric.evaluation.answers.files import (
    LLAMA_FACTORY,
    AnswerFields,
    GeneratedText,
    read_answer_file,
)
from mm_numeric.evaluation.answers.join_checks import check_positions
from mm_numeric.evaluation.answers.own_targets import own_questions, own_target
from mm_numeric.evaluation.answers.prepared_rows import (
    PreparedRows,
    Question,
    frames_of,
    read_questions,
    read_task,
)
from mm_numeric.evaluation.answers.source import AnswerSource
from mm_numeric.evaluation.answers.spreadsheet import LONGEST_CELL
from mm_numeric.geometry.frame_presets import FrameRule
from mm_numeric.geometry.frames import Frame
from mm_numeric.io.log import logger
from mm_numeric.runs.results_file import check_complete
from mm_numeric.tasks.answer_part import without_end_tokens
from mm_numeric.tasks.base import Task

_FACTORY_PX = 768 * 768  # default of image_max_pixels of LLaMA-Factory

_KEPT = ("scores", "extraction", "truncated")
"""Fields of an answer that are scored as in predictions.jsonl: the confidence of each shape, and
the answer that a judge extracted from the text."""


def joined_predictions(
    source: AnswerSource, rows: PreparedRows
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the answers in a file of another program as rows of predictions.jsonl, with places."""
    for joined in joined_answers(source, rows):
        for answer in joined.answers:
            kept = {name: answer.row[name] for name in _KEPT if answer.row.get(name) is not None}
            row = {**joined.row, "text": without_end_tokens(answer.text), **kept}
            yield answer.where, json.loads(json.dumps(row))  # as if read from predictions.jsonl


class Joined(NamedTuple):
    """A question with its answers from a file."""

    answers: list[GeneratedText]
    """The rows of the file with this id: one, unless several are allowed or ``keep`` is set."""

    task: Task
    target: Any
    """The correct answer."""

    frame: Frame | None

    row: dict[str, Any]
    """The fields of predictions.jsonl that do not depend on the answer."""


def joined_answers(
    source: AnswerSource, rows: PreparedRows, *, several: bool = False
) -> Iterator[Joined]:
    """Yield each question that has an answer in a file, in the order of the questions.

    ``several`` allows more than one text for each question.
    """
    predictions = source.predictions
    name, task = read_task(rows, source.task_name)
    questions = read_questions(task, rows) if rows.target_field is None else {}
    fields, found_answers = read_answer_file(
        predictions,
        id_field=rows.id_field,
        text_field=rows.text_field,
        list_field=rows.list_field,
        several=several,
    )
    answers = list(found_answers)
    if rows.target_field is None:
        pairs = _matched(answers, questions, predictions, rows.path, partial=source.partial)
    else:
        pairs = own_questions(answers, fields, rows)
    _warn_of_truncated_texts(predictions, [text for answer, _ in pairs for text in answer.texts])
    if source.keep != "last" and not several:
        _check_duplicates(pairs)
    _log_reading(predictions, rows, fields, has_ids=pairs[0][0].id is not None)
    areas = [width * height for _, (_, size, _) in pairs for width, height in [size or (0, 0)]]
    _log_sizes(rows.frame, fields.tool, max(areas))
    framed = frames_of([question for _, question in pairs], task, name, rows)
    if rows.target_field is None and not isinstance(pairs[0][0].id, str):
        check_positions(pairs, fields, task, framed, rows.path)
    reads_by = {option: task.options()[option] for option in task.reads_by}
    framed_pairs = zip(pairs, framed, strict=True)
    for _, group in groupby(framed_pairs, key=lambda own: own[0][1].example.id):
        own = list(group)
        ((first, (example, *_)), frame), found = own[0], [answer for (answer, _), _ in own]
        target = example.answer
        if rows.target_field is not None:
            target = own_target(first, task, name, frame, rows.target_field)
        row = {
            "id": example.id,
            "image": _image_path(example.image),
            **({"group": example.group} if example.group else {}),
            "task": name,
            **({"task_options": reads_by} if reads_by else {}),
            **({"buckets": dict(example.buckets)} if example.buckets else {}),
            "prompt": example.prompt,
            "target": task.record(target),
            "frame": None if frame is None else frame.to_dict(),
            "rows_due": len(questions) or len({own.example.id for _, own in pairs}),
        }
        yield Joined(found, task, target, frame, row)


def _image_path(image: ImageSource | None) -> str | None:
    """Return the absolute path of an image file, or the path in the row if there is no file."""
    if isinstance(image, Path) and not os.path.isfile(image):
        return str(image)
    return None if image is None else str(image.resolve())


def _log_reading(
    predictions: Path, rows: PreparedRows, fields: AnswerFields, *, has_ids: bool
) -> None:
    if rows.target_field is not None:
        message = "%s: read as of %s (%s), with the correct answers in %s."
        logger.info(message, predictions, fields.tool, " or ".join(fields.text), rows.target_field)
        return
    by = f"{'position' if fields.id_is_position else 'id'} ({fields.id})"
    message = "%s: read as of %s (%s); answers are matched to %s by %s."
    logger.info(
        message,
        *(predictions, fields.tool, " or ".join(fields.text), rows.path),
        by if has_ids else "position, because they have no id",
    )


def _log_sizes(rule: FrameRule | None, tool: str, largest_px: int) -> None:
    """Log the limits of resized images, if the coordinates depend on them."""
    if rule is None or not rule.depends_on_limits:
        return
    message = "coordinates are pixels of images that were resized to an area of %d to %d pixels"
    limits = rule.resize.min_pixels, rule.resize.max_pixels
    logger.info(f"{message}; --min-pixels and --max-pixels change it.", *limits)
    if tool == LLAMA_FACTORY and rule.image_max_pixels is None and largest_px > _FACTORY_PX:
        logger.warning(
            "%s shrinks images before the model resizes them, by default above %d pixels; if the "
            "coordinates are pixels of these images, add --image-max-pixels %d.",
            *(tool, _FACTORY_PX, _FACTORY_PX),
        )


def _warn_of_truncated_texts(predictions: Path, texts: Sequence[str]) -> None:
    truncated = sum(len(text) >= LONGEST_CELL for text in texts)
    if predictions.suffix == ".xlsx" and truncated:
        logger.warning(
            "%s: truncated answers: %d; a cell of .xlsx holds at most %d characters. Let the tool "
            "write .tsv or .json (VLMEvalKit: PRED_FORMAT=tsv).",
            *(predictions, truncated, LONGEST_CELL),
        )


def _matched(
    answers: Sequence[GeneratedText],
    questions: Mapping[str, Question],
    predictions: Path,
    path: Path,
    *,
    partial: bool,
) -> list[tuple[GeneratedText, Question]]:
    """Return each answer with its question, in the order of the questions."""
    ids = list(questions)
    if answers[0].id is None:
        if len(answers) != len(ids):
            raise ValueError(
                f"{predictions}: {len(answers)} answers without an id, but {path} has {len(ids)} "
                "questions; give the rows that were answered, or name the field of the id with "
                "--id."
            )
        return list(zip(answers, questions.values(), strict=True))
    pairs, unknown = [], []
    for answer in answers:
        if isinstance(answer.id, int):
            identity = ids[answer.id] if answer.id < len(ids) else None
        else:
            identity = answer.id if answer.id in questions else None
        if identity is None:
            unknown.append(answer)
        else:
            pairs.append((answer, questions[identity]))
    if unknown:
        what = "position" if isinstance(unknown[0].id, int) else "id"
        raise ValueError(
            f"{unknown[0].where}: the {what} {unknown[0].id!r} is not in {path} (ids such as "
            f"{ids[0]!r}), and so for {len(unknown)} of {len(answers)} answers; give the rows that "
            "were answered, or name the field of the id with --id."
        )
    missing = questions.keys() - {question.example.id for _, question in pairs}
    if missing and not partial:
        first = next(questions[identity].example for identity in ids if identity in missing)
        cure = (
            f"{first.where}: no answer to {first.id!r} in {predictions}, and so for {len(missing)} "
            f"of {len(ids)} questions; answer them, or remove their rows"
        )
        check_complete(len(ids) - len(missing), len(ids), cure, partial=False)
    order = {identity: position for position, identity in enumerate(ids)}
    return sorted(pairs, key=lambda pair: order[pair[1].example.id])


def _check_duplicates(pairs: Sequence[tuple[GeneratedText, Question]]) -> None:
    """Raise ValueError if a question has two answers; ``pairs`` is sorted by question."""
    second = [
        after[0] for before, after in pairwise(pairs) if before[1].example.id == after[1].example.id
    ]
    if second:
        raise ValueError(
            f"{second[0].where}: a second answer to the question {second[0].id!r}; {len(second)} "
            f"of {len(pairs)} answers are to questions that were answered before. Remove them, or "
            "score the last answer to each question with --keep last."
        )
