"""Check that answers of another tool are joined with the questions that they answer.

Files of ms-swift, LLaMA-Factory and TRL have no ids, so that answers are matched to questions by
position. A tool may have shuffled or filtered its data. Therefore the images, prompts and correct
answers in its file are compared with those of the questions.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mm_numeric.answers import Box, Instances, Unreadable
from mm_numeric.evaluation.answers.files import AnswerFields, GeneratedText, value_at
from mm_numeric.evaluation.answers.own_targets import image_name
from mm_numeric.evaluation.answers.prepared_rows import Question
from mm_numeric.geometry.frames import Frame
from mm_numeric.io.log import logger
from mm_numeric.tasks.answer_part import without_end_tokens
from mm_numeric.tasks.base import Task

_COMPARED = 100  # answers without their own question that are compared with every other question
_IDS = "write the id of its question into each answer, and name the field with --id"
_WORD = re.compile(r"\w+")


class _Evidence(NamedTuple):
    """A property of answers, such as the prompt, and the same property of the questions."""

    name: str
    answers: list[Any]
    """One value per answer; empty if the file does not have it."""

    questions: list[Any]
    """One value per question, in the order in which the answers are joined."""

    is_same: Callable[[Any, Any], bool]


def check_positions(
    pairs: Sequence[tuple[GeneratedText, Question]],
    fields: AnswerFields,
    task: Task,
    frames: Sequence[Frame | None],
    path: Path,
) -> None:
    """Raise ValueError if answers matched by position may belong to other questions.

    At least one of the images, prompts and correct answers in the file must agree with every
    question, unless the file has none of them that distinguishes the questions. Names of images
    must never differ. Positions of lmms-eval, which are stored with the answers, are an error only
    if all answers that do not agree belong to other questions; otherwise a warning is logged.
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
            "%s: the %s of %d of %d answers is not that of the question at the same position in "
            "%s; check that these are the rows that were answered.",
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
    """Compare prompts with what distinguishes a question from the others, such as its phrase.

    The text around it, which all questions share, may be a different one in the tool. A prompt that
    contains several phrases ("red car" and "car") belongs to the question with the longest one.
    """
    prompts = [_words(value_at(answer.row, fields.prompt)) for answer, _ in pairs]
    asked = [_words(question.example.prompt) for _, question in pairs]
    for _ in ("start", "end"):
        words = enumerate(zip(*asked, strict=False))
        shared = next((i for i, own in words if len(set(own)) > 1), min(map(len, asked)))
        asked = [own[shared:][::-1] for own in asked]
    phrases = [tuple(own) for own in asked]
    lengths: dict[str, set[int]] = {}  # of the phrases that begin with a word
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
    """Return the texts of a prompt: a text, or messages without those of the model.

    The content of a message is a text, or a list of parts: ``{"type": "text", "text": ...}``.
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
    """Compare correct answers; those of shapes with a tolerance of two coordinate steps."""
    answers, questions = [], []
    for (answer, (example, *_)), frame in zip(pairs, frames, strict=True):
        label = value_at(answer.row, fields.target)
        if not isinstance(label, str) or not label:
            return _Evidence("correct answer", [], [], _is_close)
        parsed = task.read(without_end_tokens(label), frame)
        found = None if isinstance(parsed, Unreadable) else _comparable(parsed, task)
        answers.append((found, 2 * max(frame.step_px) if frame else 0.0))
        try:  # with the task's own changes, such as boxes clipped to the image
            target = task.read(task.format(example.answer, frame).text, frame)
        except ValueError:  # a box outside the image cannot be written
            target = example.answer
        target = example.answer if isinstance(target, Unreadable) else target
        questions.append(_comparable(target, task))
    return _Evidence("correct answer", answers, questions, _is_close)


def _comparable(answer: Any, task: Task) -> Any:
    """Return the sorted x and the sorted y of shapes, in pixels; other answers as JSON."""
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
