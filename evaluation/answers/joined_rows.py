"""Join answers that another program has generated with the rows of the test data.

An answer file, for example of lmms-eval, has ids of questions and generated texts. The test data
has the correct answers and the image sizes. Each joined row equals the row that ``mm-numeric
predict`` would write for the same text. Therefore the score is the same, too.

Files of ms-swift, LLaMA-Factory and TRL have no ids. Their answers are matched to questions by
position. A tool may have shuffled or filtered its data. Therefore the images, prompts and correct
answers in the tool's file are compared with the questions.

With ``score --target FIELD``, the correct answers are read from FIELD of the answer file. A value
in the format of predictions.jsonl, such as a box in pixels of the image, is read as it is; any
other text is parsed like a text of the model. If a correct answer needs more fields, such as the
choices of MathVista, they are read from the same row.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from mm_numeric.answers import Box, Example, ImageSource, Instances, Unreadable
from mm_numeric.data.images import image_size
from mm_numeric.evaluation.answers.files import (
    LLAMA_FACTORY,
    AnswerFields,
    GeneratedText,
    read_answer_file,
    value_at,
)
from mm_numeric.evaluation.answers.source import (
    AnswerSource,
    PreparedRows,
    Question,
    frames_of,
    read_questions,
    read_task,
)
from mm_numeric.evaluation.answers.spreadsheet import LONGEST_CELL
from mm_numeric.geometry.frame_presets import FrameRule
from mm_numeric.geometry.frames import Frame
from mm_numeric.io.log import logger
from mm_numeric.runs.results_file import check_complete
from mm_numeric.tasks.answer_part import without_end_tokens
from mm_numeric.tasks.base import Task

_FACTORY_PX = 768 * 768  # LLaMA-Factory's default of image_max_pixels
_IMAGES = ("images.0", "image", "image_path")
_FILE = re.compile(r"[^\n]{1,500}\.\w{2,5}")  # matches a file name, but not an image in base64
_COMPARED = 100  # maximum number of mismatched answers that are compared with every question
_IDS = "write the id of its question into each answer, and name the field with --id"
_WORD = re.compile(r"\w+")

_KEPT = ("scores", "extraction", "truncated")
"""Fields copied from the answer: confidence of each shape, judge's extraction, truncated or not."""


def joined_predictions(
    source: AnswerSource, rows: PreparedRows
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the answers in a file of another program as (location, row of predictions.jsonl)."""
    for joined in joined_answers(source, rows):
        for answer in joined.answers:
            kept = {name: answer.row[name] for name in _KEPT if answer.row.get(name) is not None}
            row = {**joined.row, "text": without_end_tokens(answer.text), **kept}
            yield answer.where, json.loads(json.dumps(row))  # as if read from predictions.jsonl


class Joined(NamedTuple):
    """A question with the answers to it that an answer file contains."""

    answers: list[GeneratedText]
    """The answers to this question: only one, unless several are allowed or ``keep`` is set."""

    task: Task
    target: Any
    """The correct answer."""

    frame: Frame | None

    row: dict[str, Any]
    """The fields of the row of predictions.jsonl that do not depend on the answer."""


def joined_answers(
    source: AnswerSource, rows: PreparedRows, *, several: bool = False
) -> Iterator[Joined]:
    """Yield the answered questions in the order of the data; ``several`` allows several texts."""
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
        fields, answers = _by_position(fields, answers, questions)
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
    """Return the absolute path of an image, or the path in the row if the file is missing."""
    if isinstance(image, Path) and not os.path.isfile(image):
        return str(image)
    return None if image is None else str(image.resolve())


def _log_reading(
    predictions: Path, rows: PreparedRows, fields: AnswerFields, *, has_ids: bool
) -> None:
    if rows.target_field is not None:
        message = "%s: read as a file of %s (%s), with the correct answers in %s."
        logger.info(message, predictions, fields.tool, " or ".join(fields.text), rows.target_field)
        return
    by = f"{'position' if fields.id_is_position else 'id'} ({fields.id})"
    message = "%s: read as a file of %s (%s); answers are matched to %s by %s."
    logger.info(
        message,
        *(predictions, fields.tool, " or ".join(fields.text), rows.path),
        by if has_ids else "position, because they have no id",
    )


def _log_sizes(rule: FrameRule | None, tool: str, largest_px: int) -> None:
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


def _by_position(
    fields: AnswerFields, answers: list[GeneratedText], questions: Mapping[str, Question]
) -> tuple[AnswerFields, list[GeneratedText]]:
    """Take the ids of a file of VLMEvalKit for positions if they are 0, 1 ... and no ids of rows.

    VLMEvalKit counts the rows of a data set without the column ``index``.
    """
    positions = {str(position): position for position in range(len(questions))}
    found = {answer.id for answer in answers}
    if fields.id != "index" or found <= questions.keys() or found != positions.keys():
        return fields, answers
    renamed = [answer._replace(id=positions[str(answer.id)]) for answer in answers]
    return replace(fields, id_is_position=True), renamed


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
    second = [
        after[0] for before, after in pairwise(pairs) if before[1].example.id == after[1].example.id
    ]
    if second:
        raise ValueError(
            f"{second[0].where}: a second answer to the question {second[0].id!r}; {len(second)} "
            f"of {len(pairs)} answers are to questions that were answered before. Remove them, or "
            "score the last answer to each question with --keep last."
        )


def image_name(row: Mapping[str, Any]) -> str:
    """Return the path of the image of an answer, with slashes; "" without an image.

    ms-swift stores the path as ``{"path": ...}``.
    """
    for field in _IMAGES:
        image = value_at(row, field)
        image = image.get("path") if isinstance(image, Mapping) else image
        if isinstance(image, str) and _FILE.fullmatch(image):
            return image.replace("\\", "/")
    return ""


def own_questions(
    answers: Sequence[GeneratedText], fields: AnswerFields, rows: PreparedRows
) -> list[tuple[GeneratedText, Question]]:
    """Return each answer with a question made from its row; ``own_target`` reads the target."""
    questions: dict[str, Question] = {}
    pairs = []
    for position, answer in enumerate(answers):
        identity = str(position if answer.id is None else answer.id)
        if identity not in questions:
            questions[identity] = _question(answer, identity, fields, rows)
        pairs.append((answer, questions[identity]))
    order = {identity: place for place, identity in enumerate(questions)}
    return sorted(pairs, key=lambda pair: order[pair[1].example.id])


def _question(
    answer: GeneratedText, identity: str, fields: AnswerFields, rows: PreparedRows
) -> Question:
    row, name = answer.row, image_name(answer.row)
    folder = Path(rows.images) if rows.images is not None else rows.path.parent
    image = folder / name if name else None
    prompt = row.get(fields.prompt)
    width, height = row.get("width"), row.get("height")
    size, problem = None, ""
    if type(width) is int and type(height) is int and min(width, height) > 0:
        size = width, height
    elif rows.frame is not None and image is None:
        problem = f"no image in {', '.join(_IMAGES)}"
    elif rows.frame is not None and image is not None:
        try:
            size = image_size(image)
        except ValueError as error:
            problem = str(error)
    example = Example(
        id=identity,
        image=image,
        prompt=prompt if isinstance(prompt, str) else "",
        answer=None,
        where=answer.where,
        size_px=size,
    )
    return Question(example, size, problem)


def own_target(
    answer: GeneratedText, task: Task, name: str, frame: Frame | None, field: str
) -> Any:
    """Read the correct answer from ``field`` of a generated answer's row, or raise ValueError."""
    value = value_at(answer.row, field)
    if value is None:
        raise ValueError(
            f"{answer.where}: no correct answer in {field!r}; name its field with --target. "
            f"Fields: {', '.join(answer.row)}."
        )
    whole = {**answer.row, "answer": value}
    reason = None
    for candidate in (value, whole):
        try:
            return task.recorded(candidate)
        except ValueError as error:
            reason = reason or error
    if isinstance(value, str):
        found = task.read(without_end_tokens(value), frame)
        if not isinstance(found, Unreadable):
            return found
    raise ValueError(
        f"{answer.where}: {field} {value!r:.60} is no correct answer of the task {name!r} "
        f"({str(reason).rstrip('.')})."
    )


class _Evidence(NamedTuple):
    """A property, such as the prompt, of all answers and of the questions matched to them."""

    name: str
    answers: list[Any]
    """One value per answer; empty if the file does not have this property."""

    questions: list[Any]
    """One value per question: question i is matched to answer i."""

    is_same: Callable[[Any, Any], bool]


def check_positions(
    pairs: Sequence[tuple[GeneratedText, Question]],
    fields: AnswerFields,
    task: Task,
    frames: Sequence[Frame | None],
    path: Path,
) -> None:
    """Raise ValueError if answers matched by position may belong to other questions.

    Three properties are compared: image, prompt and correct answer. A property is only used if the
    file has it and not all questions share it. At least one must agree for all answers, and image
    names must never differ. lmms-eval stores the position of each answer's question: there, a
    mismatch is an error only if each mismatched answer fits another question. Otherwise a warning
    is logged.
    """
    compared = _images(pairs), _prompts(pairs, fields), _targets(pairs, fields, task, frames)
    found = [
        evidence
        for evidence in compared
        if evidence.answers and any(value != evidence.questions[0] for value in evidence.questions)
    ]
    agreeing = [_agrees(evidence, pairs, path) for evidence in found]
    if pairs[0][0].id is not None:
        return
    for answer, (example, *_) in pairs:
        names = _image_name(answer), isinstance(example.image, Path) and example.image.name
        if all(names) and names[0] != names[1]:
            raise ValueError(
                f"{answer.where}: the answer is about the image {names[0]}, but the question at "
                f"the same position in {path} is about {names[1]}; give the rows in the order of "
                f"the answers, or {_IDS}."
            )
    if found and not any(agreeing):
        kinds = " and ".join(evidence.name for evidence in found)
        raise ValueError(
            f"{pairs[0][0].where}: the answers have no id, and their {kinds} cannot be assigned to "
            f"the questions of {path}, so that their order is not certain; {_IDS}."
        )


def _agrees(
    evidence: _Evidence, pairs: Sequence[tuple[GeneratedText, Question]], path: Path
) -> bool:
    answers, questions = evidence.answers, evidence.questions
    wrong = [i for i, own in enumerate(answers) if not evidence.is_same(own, questions[i])]
    compared = wrong[:_COMPARED]
    owners = (
        next((j for j, value in enumerate(questions) if evidence.is_same(answers[i], value)), None)
        for i in compared
    )
    swapped = [(i, j) for i, j in zip(compared, owners, strict=True) if j is not None]
    if len(swapped) < len(compared) and pairs[0][0].id is not None:
        logger.warning(
            "%s: the %s of %d of %d answers differs from the question at the same position in %s; "
            "check that these are the rows that were answered.",
            *(pairs[wrong[0]][0].where, evidence.name, len(wrong), len(pairs), path),
        )
    elif swapped:
        i, other = swapped[0]
        raise ValueError(
            f"{pairs[i][0].where}: the {evidence.name} is that of the question "
            f"{pairs[other][1].example.id!r}, but the question at the same position in {path} "
            f"is {pairs[i][1].example.id!r}, and so for up to {len(wrong)} of "
            f"{len(pairs)} answers; give the rows in the order of the answers, or {_IDS}."
        )
    return not wrong


def _images(pairs: Sequence[tuple[GeneratedText, Question]]) -> _Evidence:
    """Compare the names of image files, if all answers and questions have one."""
    answers = [_image_name(answer) for answer, _ in pairs]
    images = [question.example.image for _, question in pairs]
    questions = [image.name for image in images if isinstance(image, Path)]
    has_all = all(answers) and len(questions) == len(images)
    return _Evidence("image", answers if has_all else [], questions, str.__eq__)


def _image_name(answer: GeneratedText) -> str:
    return image_name(answer.row).rpartition("/")[2]


def _prompts(pairs: Sequence[tuple[GeneratedText, Question]], fields: AnswerFields) -> _Evidence:
    """Compare prompts by the phrase that distinguishes a question from the other questions.

    The words that all questions share at the start and end are ignored, because the tool may have
    used another template. If a prompt contains the phrases of several questions ("red car" and
    "car"), it belongs to the question with the longest phrase.
    """
    prompts = [_words(value_at(answer.row, fields.prompt)) for answer, _ in pairs]
    asked = [_words(question.example.prompt) for _, question in pairs]
    for _ in ("start", "end"):
        words = enumerate(zip(*asked, strict=False))
        shared = next((i for i, own in words if len(set(own)) > 1), min(map(len, asked)))
        asked = [own[shared:][::-1] for own in asked]
    phrases = [tuple(own) for own in asked]
    lengths: dict[str, set[int]] = {}  # first word -> lengths of the phrases
    for phrase in filter(None, phrases):
        lengths.setdefault(phrase[0], set()).add(len(phrase))
    known = set(phrases)
    found = []
    for own in prompts:
        parts = {tuple(own[i : i + n]) for i, word in enumerate(own) for n in lengths.get(word, ())}
        parts = parts & known or {()}
        longest = max(map(len, parts))
        found.append({part for part in parts if len(part) == longest})
    return _Evidence("prompt", found if all(prompts) else [], phrases, set.__contains__)


def _words(prompt: Any) -> list[str]:
    return _WORD.findall(" ".join(_texts(prompt)).casefold())


def _texts(prompt: Any) -> list[str]:
    """Return the texts in a prompt, which is a text or a list of messages.

    The assistant's messages are left out. The content of a message is a text, or a list of parts
    such as ``{"type": "text", "text": ...}``.
    """
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, Mapping):
        is_answer = prompt.get("role") == "assistant"
        return [] if is_answer else _texts(prompt.get("content", prompt.get("text")))
    return [text for part in prompt for text in _texts(part)] if isinstance(prompt, list) else []


def _targets(
    pairs: Sequence[tuple[GeneratedText, Question]],
    fields: AnswerFields,
    task: Task,
    frames: Sequence[Frame | None],
) -> _Evidence:
    """Compare correct answers; coordinates of shapes may differ by two steps of the format."""
    answers, questions = [], []
    for (answer, (example, *_)), frame in zip(pairs, frames, strict=True):
        label = value_at(answer.row, fields.target)
        if not isinstance(label, str) or not label:
            return _Evidence("correct answer", [], [], _is_close)
        parsed = task.read(without_end_tokens(label), frame)
        found = None if isinstance(parsed, Unreadable) else _comparable(parsed, task)
        answers.append((found, 2 * max(frame.step_px) if frame else 0.0))
        try:  # apply the changes of the task's formatter, such as clipping boxes to the image
            target = task.read(task.format(example.answer, frame).text, frame)
        except ValueError:  # a box outside the image cannot be formatted
            target = example.answer
        target = example.answer if isinstance(target, Unreadable) else target
        questions.append(_comparable(target, task))
    return _Evidence("correct answer", answers, questions, _is_close)


def _comparable(answer: Any, task: Task) -> Any:
    """Return all x and all y of an answer's shapes, sorted, in pixels; or other answers as JSON."""
    if not isinstance(answer, Box | Instances):
        return json.dumps(task.record(answer))
    shapes = [answer] if isinstance(answer, Box) else [item.shape for item in answer.items]
    points = [point for shape in shapes for point in shape.points]
    return [sorted(x for x, _ in points), sorted(y for _, y in points)]


def _is_close(answer: tuple[Any, float], target: Any) -> bool:
    found, tolerance_px = answer
    if not isinstance(found, list):
        return bool(found == target)
    return all(
        len(own) == len(their)
        and all(abs(a - b) <= tolerance_px for a, b in zip(own, their, strict=True))
        for own, their in zip(found, target, strict=True)
    )
