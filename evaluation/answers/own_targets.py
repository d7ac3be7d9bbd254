"""Read questions from a file of answers that also has the correct answers.

With ``score --target FIELD``, no file of rows is needed. A text in the field is read like a text of
the model. Other values are those of predictions.jsonl, such as a box in pixels of the image; if an
answer needs more fields, such as the choices of MathVista, they are those of its row.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mm_numeric.answers import Example, Unreadable
from mm_numeric.data.images import image_size
from mm_numeric.evaluation.answers.files import AnswerFields, GeneratedText, value_at
from mm_numeric.evaluation.answers.prepared_rows import PreparedRows, Question
from mm_numeric.geometry.frames import Frame
from mm_numeric.tasks.answer_part import without_end_tokens
from mm_numeric.tasks.base import Task

_IMAGES = ("images.0", "image", "image_path")
_FILE = re.compile(r"[^\n]{1,500}\.\w{2,5}")  # and not an image in base64


def image_name(row: Mapping[str, Any]) -> str:
    """Return the path of the image of an answer; ms-swift stores it as {"path": ...}. "" if none.

    Paths of Windows are returned with slashes.
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
    """Return each answer with its question, whose correct answer is read by ``own_target``."""
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
    """Return the correct answer in a field of an answer, or raise ValueError."""
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
