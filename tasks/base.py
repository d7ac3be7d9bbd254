"""The interface of a task, which reads dataset rows, formats answers and parses generated text.

To add a task, derive a frozen dataclass from ``BaseTask`` and write the five abstract methods. The
fields of the dataclass are the options that a config sets under ``task``.

The docstring of each task's module begins with an example row, its prompt, and the text that a
model learns to write. Coordinates in it are those of Qwen2.5-VL for an image that is not resized.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, fields, is_dataclass, replace
from inspect import isfunction
from typing import Any, ClassVar, Protocol

from mm_numeric.answers import Box, Example, Instance, Instances, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.registry import REPORT_SECTIONS, TASKS, choose, unknown
from mm_numeric.tasks.answer_part import AnswerPart, answer_part
from mm_numeric.tasks.class_counts import ClassCounts

Rows = Iterable[tuple[str, Mapping[str, Any]]]
"""Pairs (position, row): the file and line of a row, for error messages, and the row's fields."""


class Task(Protocol):
    """Interface of a task. Members that are not abstract are optional and have defaults."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    version: ClassVar[int] = 1
    """Version of the task; increase it if a new prompt or parser alters scores."""

    reads_by: ClassVar[tuple[str, ...]] = ()
    """Names of the options that ``parse`` depends on; predictions.jsonl stores their values."""

    main_category: ClassVar[str | None] = None
    """Category of test rows whose main metric decides comparisons and comes first in tables, such
    as the category that resembles the training rows. None: all rows decide."""

    report_sections: ClassVar[tuple[str, ...]] = ()
    """Additional sections of this task's report: keys of ``mm_numeric.registry.REPORT_SECTIONS``
    or import paths such as ``my_package.my_report:sections``."""

    sampled_answers: ClassVar[int] = 0
    """Number of answers to draw at random for decoding rules such as ``median``. 0: short answers,
    such as times, are enumerated with their probabilities."""

    is_enumerated: ClassVar[bool] = False
    """True if only models on a server draw ``sampled_answers``. For a loaded model, the likely
    answers, such as boxes, are enumerated, and others are drawn by systematic sampling."""

    augmentations: ClassVar[tuple[str, ...]] = ()
    """Operations of ``data.augment`` that move objects, such as ``flip``, after which answers of
    this task stay correct. The answers must be boxes, ``Instances`` or independent of where objects
    are. Operations that only change pixels, such as ``blur``, are allowed for all tasks."""

    @property
    def scorer(self) -> str | None:
        """Return the scorer's import path; None selects a scorer by answer type, such as box."""
        return None

    @property
    def risk(self) -> str | None:
        """Return the name of the cost that decoding minimises, such as ``within_5_minutes``.

        The name is a key of ``mm_numeric.registry.RISKS`` or an import path. None selects the cost
        by answer type, such as ``iou`` for a box.
        """
        return None

    def options(self) -> dict[str, Any]:
        """Return the names and values of all options of the task, as in a config."""
        return asdict(self)

    @abstractmethod
    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Convert rows of a dataset to examples, which have a prompt, an image and an answer.

        ``training`` is False for evaluation and prediction. Raises ValueError if a row is
        incomplete or invalid; the message begins with the row's position.
        """

    @abstractmethod
    def format(self, answer: Any, frame: Frame | None = None) -> Written:
        """Return the text that the model should generate, with the positions of its numbers."""

    @abstractmethod
    def parse(self, text: str, frame: Frame | None = None) -> Any:
        """Return the answer in a text without special tokens; ``Unreadable`` if it has no answer.

        The text is the part of a generated text that ``answer_part`` returns. Call ``read`` to
        parse generated texts.
        """

    reads_whole_text: ClassVar[bool] = False
    """True if ``parse`` gets whole generated texts, including thoughts. Tasks set it to reproduce
    the metrics of a published script that does the same."""

    def answer_part(self, text: str) -> AnswerPart:
        """Return the part of a generated text that ``parse`` gets."""
        return AnswerPart(text) if self.reads_whole_text else answer_part(text)

    def read(self, text: str, frame: Frame | None = None) -> Any:
        """Parse a generated text without special tokens; return its answer or ``Unreadable``.

        Thoughts and text around answer tags are not parsed. The spans of objects in the answer are
        character indices in the whole text.
        """
        part = self.answer_part(text)
        if part.failure:
            return Unreadable(part.failure)
        answer = self.parse(part.text, frame)
        check_answer_type(self, answer, "parse")
        if part.start and isinstance(answer, Instances):
            spans = ((start + part.start, end + part.start) for start, end in answer.spans)
            return replace(answer, spans=tuple(spans))
        return answer

    def text_frame(self, frame: Frame) -> Frame:
        """Return the frame with the coordinate format that the task writes."""
        return frame

    def grammar(self, frame: Frame | None = None) -> str | None:
        """Return a regular expression of all texts that ``format`` may return; None if unknown.

        ``predict --constrain`` lets a model write only texts that match the expression. ``parse``
        must accept each text that the expression matches as a whole. The expression may leave out
        labels of several lines, of more than 80 characters, or with characters that enclose labels
        and shapes in the coordinate format. ``mm_numeric.geometry.grammar`` defines the syntax.
        """
        return None

    def grammar_after(self, frame: Frame | None = None) -> Callable[[str], str | None] | None:
        """Return a function that narrows ``grammar`` by the text written so far, or None.

        A regular expression cannot compare two numbers, such as the left and the right edge of a
        box, but this function can. It is called after each character with the answer so far, and
        returns a regular expression of the rest of the answer, or None if the rest cannot be
        narrowed yet. The rest must begin after the end of a number, and the whole answer must
        match ``grammar``. The texts of ``grammar`` must have a maximum length, and two frames with
        equal grammars must have equal functions.
        """
        return None

    @abstractmethod
    def record(self, answer: Any) -> Any:
        """Convert an answer to a JSON value for predictions.jsonl."""

    @abstractmethod
    def recorded(self, value: Any) -> Any:
        """Convert a JSON value in predictions.jsonl to an answer, or raise ValueError."""

    def allows(self, answer: Any, frame: Frame | None = None) -> bool:
        """Return True if ``mbr`` may choose an answer that was parsed from a generated text."""
        return True

    def moved_answer(self, answer: Any) -> Any:
        """Restore the form of an answer after augmentation has moved its shapes.

        The corners of a rotated box, for example, must begin with the topmost corner again.
        """
        return answer

    def count_classes(self, examples: Iterable[Example]) -> ClassCounts | None:
        """Count the objects of each class in examples; None if answers have no classes."""
        return None


@dataclass(frozen=True, kw_only=True)
class BaseTask(Task):
    """Base class of all tasks. A task defines its options as dataclass fields.

    The argument ``frame`` of several methods has the size of the image, its resizing and the
    coordinate format; it is None without an image.
    """

    scorer: str | None = None
    """Import path of a ``Scorer`` of your own, such as ``my_tasks:SCORER``. null: the scorer that
    the task's class sets (``scorer = "my_tasks:SCORER"``), or else the scorer for the type of its
    answers, such as boxes."""


def task_class(name: str, where: str) -> type[Task]:
    """Import the class of a task, and check that it implements the interface ``Task``.

    ``name`` is a key of ``mm_numeric.registry.TASKS``, or an import path ``package.module:Class``.
    Error messages begin with ``where``.
    """
    cls: type[Task] = choose(name, TASKS, "task", where)
    if not isinstance(cls, type) or not is_dataclass(cls):
        raise ValueError(f"{where}: {name!r} is not a dataclass.")
    own = {field.name for field in fields(cls)}
    missing = sorted(_MEMBERS - own.union(dir(cls)))
    if not missing and issubclass(cls, BaseTask):
        missing = sorted(cls.__abstractmethods__)
    if missing:
        raise ValueError(
            f"{where}: the task {name!r} lacks {', '.join(missing)}; derive it from "
            "mm_numeric.tasks.base:BaseTask, which has defaults for the optional members, and "
            "define the others."
        )
    for section in cls.report_sections:
        if ":" not in section and section not in REPORT_SECTIONS:
            raise unknown(section, REPORT_SECTIONS, "report section", f"{where}, report_sections")
    if hidden := sorted(own & _METHODS):
        raise ValueError(
            f"{where}: the task {name!r} has a field named {hidden[0]!r}, which hides a method of "
            "every task; rename the field."
        )
    return cls


def check_answer_type(task: Task, answer: Any, method: str) -> None:
    """Raise ValueError if ``method`` of a task returned a plain number, or None, as an answer."""
    if answer is None or isinstance(answer, int | float):
        raise ValueError(
            f"the task {type(task).__name__}: {method} returned {answer!r} "
            f"({type(answer).__name__}); return an answer of mm_numeric.answers, such as Number"
            f"{', or Unreadable' * (method == 'parse')}."
        )


def reads_boxes(task: Task, frame: Frame) -> bool:
    """Return True if the task can parse a box, so that its answers may have boxes."""
    return isinstance(_parsed_box(task, frame), Box | Instances)


def reads_labels(task: Task, frame: Frame) -> bool:
    """Return True if the task parses boxes with labels, such as the class of an object."""
    if not getattr(task, "labels", True):
        return False
    found = _parsed_box(task, frame, "a")
    return isinstance(found, Instances) and [item.label for item in found.items] == ["a"]


def _parsed_box(task: Task, frame: Frame, label: str = "") -> Any:
    x, y = frame.width_px / 2, frame.height_px / 2
    written = task.text_frame(frame).write([Instance(Box(x / 5, y / 5, x, y), label)])
    return task.read(written.text, frame)


def check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """Raise ValueError if ``value``, the value of the option ``name``, is not in ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name} is one of {', '.join(allowed)}, not {value!r}")


def check_placeholders(name: str, template: str, *placeholders: str) -> None:
    """Raise ValueError if ``template``, the value of the option ``name``, lacks a placeholder."""
    for placeholder in placeholders:
        if f"{{{placeholder}}}" not in template:
            raise ValueError(f"{name} needs {{{placeholder}}} in it, not {template!r:.60}")


def image_example(
    row: Mapping[str, Any],
    where: str,
    *,
    prompt: str,
    answer: Any,
    ids: Sequence[str] = ("id",),
    bucket_fields: Sequence[str] = (),
) -> Example:
    """Return an example with a row's id and image, and the image size if the row has it.

    The id is the first field of ``ids`` that the row has, or else the path of the image. Metrics
    are also reported for each value of ``bucket_fields``. Error messages begin with ``where``.
    """
    # Imported here, because commands such as ``ls`` load this module without numpy.
    from mm_numeric.geometry.row_shapes import read_id, read_image

    image, size_px = read_image(row, where)
    return Example(
        id=read_id(row, ids, image),
        image=image,
        prompt=prompt,
        answer=answer,
        where=where,
        size_px=size_px,
        buckets=buckets(row, bucket_fields),
    )


def buckets(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Return the values of those fields of a row that are not empty, as texts."""
    return {name: str(row[name]) for name in names if row.get(name) not in (None, "")}


def one_per_phrase(example: Example, phrases: Sequence[str]) -> Iterator[Example]:
    """Yield an example for each phrase, which replaces ``{phrase}`` in the prompt of ``example``.

    If there are several phrases, their numbers are appended to the id: ``7.0``, ``7.1``.
    """
    for i, phrase in enumerate(phrases):
        identity = example.id if len(phrases) == 1 else f"{example.id}.{i}"
        yield replace(example, id=identity, prompt=example.prompt.replace("{phrase}", phrase))


def needs_frame(task: Task) -> bool:
    """Return True if the task needs the frame of an image to parse a text with coordinates."""
    try:
        task.read("", None)
    except ValueError:
        return True
    return False


def frame_of_image(frame: Frame | None) -> Frame:
    """Return the frame; raise ValueError if it is None."""
    if frame is None:
        raise ValueError("boxes, polygons and points need the frame of their image")
    return frame


_METHODS = {name for name, value in vars(Task).items() if name[0] != "_" and isfunction(value)}
_MEMBERS = _METHODS | {name for name in vars(Task) if name[0] != "_"}
