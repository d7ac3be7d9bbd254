"""Answer types with units. Tasks format and parse answers, scorers compare them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

HALF_DAY_MINUTES = 720
_NUMBER = re.compile(
    r"-?(?:[0-9]{1,1000}/[0-9]{1,1000}"
    r"|[0-9]{1,1000}(?:\.[0-9]{1,1000})?(?:[eE][-+]?[0-9]{1,3})?)"
)


@dataclass(frozen=True, order=True)
class ClockTime:
    """A time on a 12-hour dial."""

    hour: int
    """1 to 12."""

    minute: int
    """0 to 59."""

    def __post_init__(self) -> None:
        if not 1 <= self.hour <= 12:
            raise ValueError(f"the hour of a dial is 1 to 12, not {self.hour}")
        if not 0 <= self.minute <= 59:
            raise ValueError(f"the minute is 0 to 59, not {self.minute}")

    @classmethod
    def from_minutes(cls, minutes: int) -> "ClockTime":
        """Return the time a number of minutes after twelve, modulo 12 hours."""
        hour, minute = divmod(minutes % HALF_DAY_MINUTES, 60)
        return cls(hour or 12, minute)

    @property
    def minutes(self) -> int:
        """Minutes after twelve, 0 to 719."""
        return self.hour % 12 * 60 + self.minute

    def __str__(self) -> str:
        """Return the time as ``7:05``."""
        return f"{self.hour}:{self.minute:02d}"


@dataclass(frozen=True)
class Number:
    """A number in written form: ``-12``, ``3.50``, ``2/7`` or ``1.5e3``, of any size.

    Numbers are compared by value: ``3.5`` equals ``3.50``.
    """

    text: str = field(compare=False)
    exact: Fraction = field(init=False, repr=False)
    """Exact value."""

    def __post_init__(self) -> None:
        """Validate the text and limit its number of digits."""
        if not _NUMBER.fullmatch(self.text):
            raise ValueError(
                f"{self.text!r:.60} is not a number; write -12, 3.5, 2/7 or 1.5e3, with ASCII "
                "digits, at most 1000 of them"
            )
        try:
            object.__setattr__(self, "exact", Fraction(self.text))
        except ZeroDivisionError:
            raise ValueError(f"{self.text!r:.60} divides by 0") from None

    @cached_property
    def value(self) -> float:
        """The nearest float64; infinite if the number is too large."""
        try:
            return float(self.exact)
        except OverflowError:
            return float("inf") if self.exact > 0 else float("-inf")

    def __str__(self) -> str:
        return self.text


Point = tuple[float, float]
"""x and y in pixels of the original image; (0, 0) is the outer corner of its first pixel."""


@dataclass(frozen=True)
class Box:
    """An axis-aligned box, in pixels of the original image."""

    x1: float
    y1: float
    x2: float
    y2: float

    @property
    def points(self) -> tuple[Point, ...]:
        """The corners (x1, y1) and (x2, y2)."""
        return (self.x1, self.y1), (self.x2, self.y2)


@dataclass(frozen=True)
class Polygon:
    """A polygon, in pixels of the original image; with one corner it is a point.

    ``points`` are its corners in order.
    """

    points: tuple[Point, ...]


Shape = Box | Polygon


@dataclass(frozen=True)
class Instance:
    """One object in an image."""

    shape: Shape
    label: str = ""
    ignore: bool = False
    """Whether scores ignore it, found or not: ``###`` in text detection."""


@dataclass(frozen=True)
class Instances:
    """The objects in an image, in the order defined by the task."""

    items: tuple[Instance, ...]

    cut: bool = False
    """Whether the parsed text is truncated inside a shape, as at the token limit."""

    malformed: int = 0
    """Number of complete but invalid shapes in the parsed text, such as three numbers."""

    spans: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    """Start and end character of each item in the parsed text."""


@dataclass(frozen=True)
class Text:
    """An answer in words."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Choice:
    """One of a fixed set of answers, such as yes and no."""

    chosen: str
    """One of ``options``."""

    options: tuple[str, ...] = ("no", "yes")

    question: str = field(default="", compare=False)
    """Id of its question, if several answers belong to one question."""

    def __post_init__(self) -> None:
        if self.chosen not in self.options:
            raise ValueError(f"{self.chosen!r:.40} is not one of {', '.join(self.options)}")


@dataclass(frozen=True, kw_only=True)
class ShortAnswer:
    """A short correct answer and its required form (MathVista)."""

    text: str
    """One of the choices, or a number or list as written in the data: ``1.2``, ``[2, 8]``."""

    question_type: str
    """``multi_choice`` or ``free_form``."""

    answer_type: str
    """``text`` for a choice, else ``integer``, ``float`` or ``list``."""

    choices: tuple[str, ...] = ()

    precision: int | None = None
    """Number of decimals of a float."""

    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Categories of the question, such as its skills, for tables by category."""


@dataclass(frozen=True)
class Unreadable:
    """An unparseable answer; scores count it under its reason."""

    reason: str
    lenient: Any = field(default=None, compare=False)
    """Result of a lenient parser, scored separately; None without one."""


class Mark(NamedTuple):
    """Position and meaning of one number in the text of an answer."""

    start: int
    """Index of the first character."""

    end: int
    """Index after the last character."""

    role: str = "free"
    """One of ``ROLES``."""

    group: int = -1
    """Index of its box, polygon or time in the answer; -1 without one."""


class Written(NamedTuple):
    """Target text of an answer, with marks on its numbers."""

    text: str
    marks: tuple[Mark, ...]


ROLES = ("free", "x", "y", "hour", "minute")
"""Meanings of a number. ``NumberSpans.role`` has indices into this tuple."""


@dataclass(frozen=True)
class EmbeddedImage:
    """An image that is stored in a table, not in its own file."""

    name: str
    """Name in its row, or the index of the row."""

    place: str
    """Location, for messages."""

    read: Callable[[], bytes] = field(repr=False, compare=False)
    """Returns the bytes of the encoded image."""

    def resolve(self) -> Self:
        """Return the image itself, like ``Path.resolve``."""
        return self

    def __str__(self) -> str:
        return self.place


ImageSource = Path | EmbeddedImage


@dataclass(frozen=True, kw_only=True)
class Example:
    """One question, optionally with an image, and its answer if known."""

    id: str
    image: ImageSource | None
    prompt: str
    answer: Any
    """A value of an answer type of this module; None if the row has no answer."""

    where: str
    """File and line of the row, for errors."""

    size_px: tuple[int, int] | None = None
    """Width and height of the upright image, if the row has them."""

    buckets: Mapping[str, str] = field(default_factory=dict)
    """Properties of the row for tables by bucket. Each value of ``category``, for example
    ``interpolation``, also gets columns in the table of a comparison."""
