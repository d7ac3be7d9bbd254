"""The contract between a task and the rest of the library.

A task is a frozen dataclass; its fields are the options that a config sets under ``task``. Derive
it from ``BaseTask``, write the five abstract methods, and override what differs from the defaults.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, fields, is_dataclass
from inspect import isfunction
from pathlib import Path
from typing import Any, ClassVar, Protocol

from mm_numeric.answers import Example, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.registry import REPORT_SECTIONS, TASKS, choose, unknown

Rows = Iterable[tuple[str, Mapping[str, Any]]]
"""Each row with its position (file and line), for error messages."""


class Task(Protocol):
    """What the library reads from a task, with a default for each optional member."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    version: ClassVar[int] = 1
    """Increased when a prompt, a parser or a renderer changes a score."""

    reads_by: ClassVar[tuple[str, ...]] = ()
    """Options that ``parse`` depends on. They are stored with every prediction."""

    categories: ClassVar[tuple[str, ...]] = ()
    """Categories that ``render`` accepts, such as extrapolation."""

    report_sections: ClassVar[tuple[str, ...]] = ()
    """Chapters that a report adds for this task: keys of ``mm_numeric.registry.REPORT_SECTIONS`` or
    import paths such as ``my_package.my_report:sections``."""

    @property
    def scorer(self) -> str | None:
        """Import path of the scorer; None selects the scorer of the answer's type."""
        return None

    @property
    def render_settings(self) -> Mapping[str, Any] | None:
        """Everything that rendered rows depend on except count, seed and categories.

        It is part of the cache key. None for a task that cannot render rows.
        """
        return None

    def options(self) -> dict[str, Any]:
        """Return the options as a config writes them."""
        return asdict(self)

    @abstractmethod
    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield the examples of some rows.

        Args:
            rows: Position (file and line) and fields of each row.
            training: Whether the examples are trained on.

        Raises:
            ValueError: If a row is incomplete or invalid; the message begins with its position.
        """

    @abstractmethod
    def format(self, answer: Any, frame: Frame | None = None) -> Written:
        """Return the text of an answer and the positions of its numbers.

        Args:
            answer: The answer of an example.
            frame: How the model sees the image; None for an example without an image.
        """

    @abstractmethod
    def parse(self, text: str, frame: Frame | None = None) -> Any:
        """Return the answer that a generated text contains, or ``Unreadable`` with a reason.

        Args:
            text: The text, without special tokens.
            frame: The frame that the text was written in; None for an example without an image.
        """

    @abstractmethod
    def record(self, answer: Any) -> Any:
        """Return an answer as a JSON value for predictions.jsonl."""

    @abstractmethod
    def recorded(self, value: Any) -> Any:
        """Return the answer that ``record`` wrote; raise a ValueError for any other value."""

    def describe(self) -> str:
        """Return one sentence about training and test data, or an empty text."""
        return ""

    def render(self, folder: Path, count: int, seed: int, categories: Sequence[str] = ()) -> Path:
        """Render rows and their images into a folder; override ``render_settings`` with it.

        Args:
            folder: An empty folder.
            count: Number of rows.
            seed: The same seed gives the same rows.
            categories: Some of ``self.categories``.

        Returns:
            The file of the rows.
        """
        name = type(self).__name__
        raise NotImplementedError(f"{name} has render_settings but no render")


@dataclass(frozen=True, kw_only=True)
class BaseTask(Task):
    """Base class of all tasks. It has no options of its own."""


def task_class(name: str, where: str) -> type[Task]:
    """Return the class of a task, after checking that it has every member of the contract.

    Args:
        name: A key of ``mm_numeric.registry.TASKS`` or an import path with a colon.
        where: File and field of the name, for the error message.
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


def check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """Validate an option that is one of a few words."""
    if value not in allowed:
        raise ValueError(f"{name} is one of {', '.join(allowed)}, not {value!r}")


_METHODS = {name for name, value in vars(Task).items() if name[0] != "_" and isfunction(value)}
_MEMBERS = _METHODS | {name for name in vars(Task) if name[0] != "_"}
