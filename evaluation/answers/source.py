"""Data classes for answers to score, and functions that read the questions of a data set.

An answer file of another program may only have ids and generated texts. Then the questions, the
correct answers and the image sizes are read from the data set.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from mm_numeric.answers import Example
from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import examples_of_row, rows_of_file
from mm_numeric.data.images import image_size
from mm_numeric.evaluation.answers.judge import Judge, Response
from mm_numeric.geometry.frame_presets import FrameRule
from mm_numeric.geometry.frames import Frame
from mm_numeric.io.files import read_json, read_rows
from mm_numeric.registry import TASK_OF_FORMAT, task_of_row
from mm_numeric.settings import read_dataclass
from mm_numeric.tasks.base import Task, needs_frame, task_class


@dataclass(frozen=True, kw_only=True)
class PreparedRows:
    """A file of questions with correct answers, and how to match generated answers with them."""

    path: Path
    """Rows in the format of the task, as in ``data.test.path`` of a config."""

    frame: FrameRule | None = None
    """How the model resized images and writes coordinates; None for answers without coordinates."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the task, such as ``{"answer": "yes_no"}``."""

    images: str | None = None
    """Folder of the images, to read sizes that rows do not have; None: the folder of ``path``."""

    id_field: str | None = None
    """Field of the answers with the id of the question; detected if None."""

    text_field: str | None = None
    """Field of the answers with the generated text; detected if None."""

    list_field: str | None = None
    """The field with the list of answers, needed if a .json file has several lists."""

    target_field: str | None = None
    """Field of the answers with the correct answer, if ``path`` is the file of answers itself."""

    def record(self) -> dict[str, Any]:
        """Return the path of the rows and the coordinate format, for results.json."""
        frame = None if self.frame is None else self.frame.to_dict()
        return {"rows_from": str(self.path), "frame": frame}


class Question(NamedTuple):
    """A question with its correct answer, and the image size or why it could not be read."""

    example: Example
    size_px: tuple[int, int] | None
    problem: str


def read_task(rows: PreparedRows, task_name: str | None) -> tuple[str, Task]:
    """Return the task's name (by default, as ``mm-numeric prepare`` recorded it) and the task."""
    record = rows.path.with_name(f"{rows.path.name}.prepared.json")
    if task_name is None and record.is_file():
        found = read_json(record)
        task_name = (
            TASK_OF_FORMAT.get(str(found.get("format"))) if isinstance(found, dict) else None
        )
    if task_name is None:
        raise ValueError(f"{rows.path}: the rows do not contain the task; name it with --task.")
    has_rows = rows.target_field is None
    if has_rows and task_name in ("grounding", "detection") and "answer" not in rows.options:
        _, first = next(read_rows(rows.path), ("", {}))
        task_name = task_of_row(first) or task_name
    task: Task = read_dataclass(task_class(task_name, str(rows.path)), rows.options, "--option")
    return task_name, task


def read_questions(task: Task, rows: PreparedRows) -> dict[str, Question]:
    """Return id -> question; the image sizes are read from the rows or from the image files."""
    source = DataSource(path=str(rows.path), images=rows.images)
    found: dict[str, Question] = {}
    unanswerable = []
    for row in rows_of_file(rows.path):
        for example, error in examples_of_row(task, row, source, training=False):
            if example is None:
                hint = " `score` sets task.NAME with --option NAME=VALUE." * ("task." in str(error))
                message = f"{error}{hint}" if error else f"{rows.path}: a row without a question."
                raise ValueError(message) from error
            if example.id in found:
                raise ValueError(
                    f"{example.where}: the id {example.id!r} is already used in "
                    f"{found[example.id].example.where}; give each row its own id."
                )
            found[example.id] = _sized(example, error, needs_size=rows.frame is not None)
            unanswerable += [example] * (example.answer is None)
    if not found:
        raise ValueError(f"{rows.path}: no rows with a question.")
    if unanswerable:
        raise ValueError(
            f"{unanswerable[0].where}: no correct answer to compare with, and so for "
            f"{len(unanswerable)} of {len(found)} questions; remove these rows."
        )
    return found


def _sized(example: Example, error: ValueError | None, *, needs_size: bool) -> Question:
    if not needs_size or example.image is None or example.size_px is not None:
        return Question(example, example.size_px, "")
    if error is not None:  # the image file is missing
        return Question(example, None, str(error).removeprefix(f"{example.where}: "))
    try:
        return Question(example, image_size(example.image), "")
    except ValueError as failure:
        return Question(example, None, f"{failure}.")


def frames_of(
    questions: Sequence[Question], task: Task, name: str, rows: PreparedRows
) -> list[Frame | None]:
    """Return the frame of each question, which converts coordinates in the answer to pixels.

    A frame is None if ``rows.frame`` is None, or if the question has no image of known size.
    """
    needed = needs_frame(task)
    if rows.frame is None:
        if needed:
            raise ValueError(
                f"{rows.path}: answers of the task {name!r} are coordinates, which depend on the "
                "model; name it with --family (such as qwen2_5_vl), or their format with --frame "
                "(such as pixels_original, or the folder of the model)."
            )
        return [None] * len(questions)
    has_image = [q.example.image is not None or q.problem for q in questions]
    unsized = [q for q, own in zip(questions, has_image, strict=True) if q.size_px is None and own]
    if unsized and needed:
        raise ValueError(
            f"{unsized[0].example.where}: no image size ({unsized[0].problem.rstrip('.')}), and so "
            f"for {len(unsized)} of {len(questions)} questions; add width and height to the rows, "
            "or name the folder of the images with --images."
        )
    return [_frame(question, rows.frame) for question in questions]


def _frame(question: Question, rule: FrameRule) -> Frame | None:
    if question.size_px is None:
        return None
    try:
        return rule.frame(*question.size_px)
    except ValueError as error:
        raise ValueError(f"{question.example.where}: {error}; remove the row.") from error


@dataclass(frozen=True, kw_only=True)
class AnswerSource:
    """The files with answers and targets; the function ``score`` describes the fields."""

    predictions: Path
    task_name: str | None = None
    scorer: str | None = None
    keep: str | None = None
    judge: Judge | None = None
    rows: PreparedRows | None = None
    partial: bool = False
    truth: Path | None = None
    lines: str | None = None


@dataclass(frozen=True)
class AnswerRows:
    """Rows with answers, from any source; index i of each list is row i."""

    name: str
    """Name of the task, or of the protocol if there is no task."""

    where: str
    """Paths of the files with the rows, for error messages."""

    head: Mapping[str, Any] = field(default_factory=dict)
    """Entries of results.json about the source: the task and its version, or the true shapes."""

    task: Any = None
    """The task that parses the texts; None for detections, which need no parsing."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the task that are stored with every row (``task_options``)."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows of scores.jsonl, without scores."""

    answers: list[Any] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    sizes_px: list[tuple[int, int] | None] = field(default_factory=list)
    """Width and height of each image; empty if the answers are not parsed from text."""

    frames: list[Frame | None] = field(default_factory=list)
    """The frame of each row, or None; empty if the answers are not parsed from text."""

    responses: list[Response] = field(default_factory=list)
    """The rows as input for a judge, which extracts the answers."""

    rows_due: int | None = None
    """Number of rows of the data set; None if the predictions do not say it."""

    text_rules: Counter[str] = field(default_factory=Counter)
    """Rule that selected the answer in a text, such as "after the thoughts" -> number of rows."""

    def next_part(self) -> "AnswerRows":
        """Return a copy without rows, to be filled with the next part of the file."""
        lists: Any = {name: [] for name in ("rows", "answers", "targets", "sizes_px", "frames")}
        return replace(self, **lists, responses=[], text_rules=Counter())
