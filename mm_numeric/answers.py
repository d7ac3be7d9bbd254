"""What a task asks for, as values with units. Tasks write and read them, scorers compare them."""

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
        """Refuse what no dial shows."""
        if not 1 <= self.hour <= 12:
            raise ValueError(f"the hour of a dial is 1 to 12, not {self.hour}")
        if not 0 <= self.minute <= 59:
            raise ValueError(f"the minute is 0 to 59, not {self.minute}")

    @classmethod
    def from_minutes(cls, minutes: int) -> "ClockTime":
        """Make the time that is so many minutes after twelve, going round as often as needed."""
        hour, minute = divmod(minutes % HALF_DAY_MINUTES, 60)
        return cls(hour or 12, minute)

    @property
    def minutes(self) -> int:
        """Minutes after twelve, 0 to 719."""
        return self.hour % 12 * 60 + self.minute

    def __str__(self) -> str:
        """Write ``7:05``."""
        return f"{self.hour}:{self.minute:02d}"


@dataclass(frozen=True)
class Number:
    """A number as it was written: ``-12``, ``3.50``, ``2/7`` or ``1.5e3``, of any size.

    Two numbers are equal when their values are, however they are written.
    """

    text: str = field(compare=False)
    exact: Fraction = field(init=False, repr=False)
    """Its value, without rounding."""

    def __post_init__(self) -> None:
        """Refuse what is no number, and one of more digits than anybody means."""
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
        """The nearest float64; infinite beyond what one holds."""
        try:
            return float(self.exact)
        except OverflowError:
            return float("inf") if self.exact > 0 else float("-inf")

    def __str__(self) -> str:
        """Write it as it was written."""
        return self.text


Point = tuple[float, float]
"""x and y in pixels of the original image: (0, 0) is the outer corner of its first pixel."""


@dataclass(frozen=True)
class Box:
    """An upright box, in pixels of the original image."""

    x1: float
    y1: float
    x2: float
    y2: float

    @property
    def points(self) -> tuple[Point, ...]:
        """The corner nearest to the origin and the one farthest from it."""
        return (self.x1, self.y1), (self.x2, self.y2)


@dataclass(frozen=True)
class Polygon:
    """The corners of a shape in their order, in pixels of the original image.

    With one corner it is a point.
    """

    points: tuple[Point, ...]


Shape = Box | Polygon


@dataclass(frozen=True)
class Instance:
    """One thing in an image."""

    shape: Shape
    label: str = ""
    ignore: bool = False
    """It need not be found, and finding it is no mistake: ``###`` in text detection."""


@dataclass(frozen=True)
class Instances:
    """What there is in an image, in an order that the task has declared."""

    items: tuple[Instance, ...]

    cut: bool = False
    """Of a text: whether it ends within a shape, as one does that reached the token limit."""

    malformed: int = 0
    """Of a text: how many shapes were closed and are none, such as three numbers in brackets."""

    spans: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    """Of a text: where each item stands in it, from its first character to one past its last."""


@dataclass(frozen=True)
class Text:
    """Something in words, as it was written."""

    text: str

    def __str__(self) -> str:
        """Write it as it was written."""
        return self.text


@dataclass(frozen=True)
class Choice:
    """One of the few things that a question can be answered with, such as yes and no."""

    chosen: str
    """One of ``options``."""

    options: tuple[str, ...] = ("no", "yes")

    question: str = field(default="", compare=False)
    """Which question it belongs to, where one has several such answers."""

    def __post_init__(self) -> None:
        """Refuse what is not among the options."""
        if self.chosen not in self.options:
            raise ValueError(f"{self.chosen!r:.40} is none of {', '.join(self.options)}")


@dataclass(frozen=True, kw_only=True)
class ShortAnswer:
    """A right answer in a few characters, and what its question says of its form (MathVista)."""

    text: str
    """One of the choices, or a number or list as the data writes it: ``1.2``, ``[2, 8]``."""

    question_type: str
    """multi_choice or free_form."""

    answer_type: str
    """text for a choice, else integer, float or list."""

    choices: tuple[str, ...] = ()

    precision: int | None = None
    """Decimals of a float."""

    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the question is about, for tables by bucket; it may have several skills."""


@dataclass(frozen=True)
class Unreadable:
    """An answer that a parser could not read: it is counted under its reason, never dropped."""

    reason: str
    lenient: Any = field(default=None, compare=False)
    """What a kinder reader takes it for, scored apart and by name; None for nothing."""


class Mark(NamedTuple):
    """Where one number stands in an answer's text, and what it means."""

    start: int
    """First character."""

    end: int
    """One past the last character."""

    role: str = "free"
    """A key of ``ROLES``."""

    group: int = -1
    """Which box, polygon or time of the answer it belongs to; -1 when none."""


class Written(NamedTuple):
    """An answer as the model is to write it, with its numbers marked."""

    text: str
    marks: tuple[Mark, ...]


ROLES = ("free", "x", "y", "hour", "minute")
"""What a number can stand for. ``NumberSpans.role`` holds the position in this tuple."""


@dataclass(frozen=True)
class EmbeddedImage:
    """An image that is no file of its own, but part of a table."""

    name: str
    """As its row calls it, or the number of the row."""

    place: str
    """Where it stands, for sentences."""

    read: Callable[[], bytes] = field(repr=False, compare=False)
    """What returns the bytes of its file."""

    def resolve(self) -> Self:
        """Return itself: it has no other name."""
        return self

    def __str__(self) -> str:
        """Write where it stands."""
        return self.place


ImageSource = Path | EmbeddedImage


@dataclass(frozen=True, kw_only=True)
class Example:
    """One question, about one image or none, and its answer where it is known."""

    id: str
    image: ImageSource | None
    prompt: str
    answer: Any
    """One of the values above; None where the row has no answer."""

    where: str
    """File and line of the row, for errors."""

    size_px: tuple[int, int] | None = None
    """Width and height of the upright image, where the row says them."""

    buckets: Mapping[str, str] = field(default_factory=dict)
    """What the row says of itself for tables by bucket. Under ``category``, such as
    ``interpolation``, it has columns of its own in the table of a comparison."""
