"""Types of answers (boxes, times, numbers ...), and ``Example``: one sample of a dataset.

Tasks format and parse answers. Scorers compare a parsed answer with the correct answer.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

HALF_DAY_MINUTES = 720
_NUMBER = re.compile(
    r"-?(?:[0-9]{1,1000}/[0-9]{1,1000}"
    r"|[0-9]{1,1000}(?:\.[0-9]{1,1000})?(?:[eE][-+]?[0-9]{1,3})?)"
)


@dataclass(frozen=True, order=True)
class ClockTime:
    """A time on a 12-hour dial, as hour and minute."""

    hour: int
    """Hour on the dial, 1 to 12."""

    minute: int
    """Minute, 0 to 59."""

    def __post_init__(self) -> None:
        if not 1 <= self.hour <= 12:
            raise ValueError(f"the hour of a dial is 1 to 12, not {self.hour}")
        if not 0 <= self.minute <= 59:
            raise ValueError(f"the minute is 0 to 59, not {self.minute}")

    @classmethod
    def from_minutes(cls, minutes: int) -> "ClockTime":
        """Return the time that is ``minutes`` after 12:00, modulo 12 hours."""
        hour, minute = divmod(minutes % HALF_DAY_MINUTES, 60)
        return cls(hour or 12, minute)

    @property
    def minutes(self) -> int:
        """Return the number of minutes after 12:00, 0 to 719."""
        return self.hour % 12 * 60 + self.minute

    def __str__(self) -> str:
        """Return the time as text, for example ``7:05``."""
        return f"{self.hour}:{self.minute:02d}"


@dataclass(frozen=True)
class ClockReading:
    """The reading of a clock: a time, possibly with seconds and a date, or no valid time."""

    FIELDS: ClassVar[tuple[str, ...]] = ("hours", "minutes", "seconds", "date", "month", "weekday")

    fields: Mapping[str, Any]
    """JSON values of ``valid`` and ``FIELDS``; False for a field that the clock does not show. A
    target may accept several values: a range ``[4, 5]``, or an object with several numbers."""


class Tolerance(NamedTuple):
    """Limits on the error of an answer, which is correct if it is within either limit."""

    relative: float = 0.0
    """Largest relative error: 0.05 is 5 % of the target. It is not used if the target is 0."""

    absolute: float = 0.0
    """Largest absolute error, in the unit of the number."""


@dataclass(frozen=True)
class Number:
    """A number with its original text, such as ``3.50`` or ``2/7``; ``3.5`` equals ``3.50``."""

    text: str = field(compare=False)
    tolerance: Tolerance = field(default=Tolerance(), compare=False, repr=False, kw_only=True)
    """Largest error with which scorers that use a tolerance accept an answer to this target."""

    exact: Fraction = field(init=False, repr=False)
    """The value of ``text``, without rounding."""

    def __post_init__(self) -> None:
        """Parse ``text`` and store its exact value, or raise ValueError if it is not a number."""
        if not isinstance(self.text, str):
            raise ValueError(f"a Number is made of its text, such as '3.50', not of {self.text!r}")
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
        """Return the number as a float; plus or minus infinity if it is too large."""
        try:
            return float(self.exact)
        except OverflowError:
            return float("inf") if self.exact > 0 else float("-inf")

    def __str__(self) -> str:
        return self.text


class Interval(NamedTuple):
    """A range of correct readings, from ``low`` to ``high``, in one of ``units``."""

    low: float
    high: float
    units: tuple[str, ...] = ()
    """Accepted spellings of the unit; empty if the prompt asks for no unit."""


@dataclass(frozen=True)
class Measurement(Number):
    """A number with its unit, as an instrument shows it; ``==`` compares the number only."""

    units: tuple[str, ...] = field(default=(), compare=False)
    """The spelling of the unit in answers, then other accepted spellings; empty if the prompt asks
    for no unit. A parsed answer has one item, which is ``""`` if a requested unit is missing."""

    range: tuple[float, float] | None = field(default=None, compare=False)
    """Lowest and highest value of the instrument, in its unit; None if unknown."""

    intervals: tuple[Interval, ...] = field(default=(), compare=False)
    """Ranges of correct readings, used in place of ``tolerance``; the first contains the number."""

    is_time: bool = field(default=False, compare=False)
    """True if the number is a time of day in seconds, which is written as ``10:09:30``."""

    def __str__(self) -> str:
        if not self.is_time:
            return self.text
        minutes, seconds = divmod(int(self.exact), 60)
        time = f"{minutes // 60}:{minutes % 60:02d}"
        return f"{time}:{seconds:02d}" if seconds else time


Point = tuple[float, float]
"""x and y in pixels of the original image; (0, 0) is the top left corner of the image."""


@dataclass(frozen=True)
class Box:
    """An axis-aligned box, in pixels of the original image."""

    x1: float
    y1: float
    x2: float
    y2: float

    @property
    def points(self) -> tuple[Point, ...]:
        """Return two opposite corners of the box, (x1, y1) and (x2, y2)."""
        return (self.x1, self.y1), (self.x2, self.y2)


@dataclass(frozen=True)
class Polygon:
    """Ordered corners of a polygon, in pixels of the original image. A point has one corner."""

    points: tuple[Point, ...]


Shape = Box | Polygon


class Mask(NamedTuple):
    """A region of an image, as a run-length encoded mask; see ``mm_numeric.geometry.masks``."""

    size: tuple[int, int]
    """Height and width of the image."""

    counts: tuple[int, ...]
    """Run lengths in pixels, column by column: outside the region, inside it, outside it, ..."""


@dataclass(frozen=True)
class Instance:
    """One object in an image: a box or polygon, with an optional label."""

    shape: Shape
    label: str = ""
    ignore: bool = False
    """True if metrics ignore the object, such as text labelled ``###`` (illegible) in text
    detection: finding it is not rewarded, and missing it is not an error."""

    point: Point | None = None
    """Annotated point of the object, for tasks whose answers are points."""

    mask: Mask | None = None
    """The pixels of the object. Scorers compare points and polygons with this mask."""


@dataclass(frozen=True)
class Instances:
    """The objects in an image, in the order defined by the task."""

    items: tuple[Instance, ...]

    cut: bool = False
    """True if the parsed text ends inside an object, for example at the token limit."""

    malformed: int = 0
    """Number of complete but invalid objects in the parsed text, such as a box of three numbers."""

    spans: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    """``spans[i]`` holds the start and the end of ``items[i]`` in the parsed text, as character
    indices; empty if the objects were not parsed from text."""


@dataclass(frozen=True)
class TimeSpans:
    """Spans of a video, in seconds from its beginning."""

    spans: tuple[tuple[float, float], ...]
    """Start and end of each span. Parsed spans may be reversed; the spans of targets are not."""

    scores: tuple[float, ...] = field(default=(), compare=False)
    """Confidence of each span; if empty, the spans are in the order of their confidence."""


@dataclass(frozen=True)
class Text:
    """An answer that is free text."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class JudgedText(Text):
    """A model's response, and the answer that a judge, such as GPT-4, extracted from it."""

    extraction: str


@dataclass(frozen=True)
class Choice:
    """An answer chosen from fixed options, such as yes and no."""

    chosen: str
    """One of ``options``."""

    options: tuple[str, ...] = ("no", "yes")

    question: str = field(default="", compare=False)
    """Id of the question. Answers with the same id belong to one question (MultiRC)."""

    def __post_init__(self) -> None:
        if self.chosen not in self.options:
            raise ValueError(f"{self.chosen!r:.40} is not one of {', '.join(self.options)}")


@dataclass(frozen=True, kw_only=True)
class ShortAnswer:
    """The correct answer to a MathVista question, and its type: text, integer, float or list."""

    text: str
    """One of ``choices``, or else a number or a list as in the dataset: ``1.2``, ``[2, 8]``."""

    question_type: str
    """``multi_choice`` or ``free_form``."""

    answer_type: str
    """``text`` if ``text`` is one of ``choices``; otherwise ``integer``, ``float`` or ``list``."""

    choices: tuple[str, ...] = ()

    precision: int | None = None
    """Number of decimals that a ``float`` answer is rounded to."""

    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Categories of the question, such as ``skills``; metrics are also reported per category."""


@dataclass(frozen=True)
class Unreadable:
    """A parse failure: the parser found no valid answer in a generated text."""

    reason: str
    lenient: Any = field(default=None, compare=False)
    """Answer that a more lenient parser found, to be scored separately; None if it found none."""


class Mark(NamedTuple):
    """The position of one number in an answer text, and its role, such as ``hour``."""

    start: int
    """Index of the number's first character."""

    end: int
    """Index after the number's last character."""

    role: str = "free"
    """Role of the number, one of ``ROLES``."""

    group: int = -1
    """Index of the box, polygon or time in the answer that the number belongs to; -1 for a free
    number."""


class Written(NamedTuple):
    """An answer formatted as text, and the position of each number in this text."""

    text: str
    marks: tuple[Mark, ...]
    format_digits: frozenset[int] = frozenset()
    """Indices of the digits that belong to the text format, such as the 2 of ``bbox_2d``. They are
    the same in every answer, and ``objective.numbers: all`` does not count them as numbers."""


ROLES = ("free", "x", "y", "hour", "minute")
"""Roles of a number; ``free`` is a number that is no coordinate or time. ``NumberSpans.role`` holds
indices into this tuple."""


@dataclass(frozen=True)
class EmbeddedImage:
    """An image whose bytes are stored in a table, such as a parquet file."""

    name: str
    """The file name that the row gives for the image, or the index of the row."""

    place: str
    """Where the image is stored, for error messages."""

    read: Callable[[], bytes] = field(repr=False, compare=False)
    """Function that returns the encoded image (PNG, JPEG, ...) as bytes."""

    def resolve(self) -> Self:
        """Return this object unchanged, so that callers can call ``resolve`` as on a ``Path``."""
        return self

    def digest(self) -> str:
        """Return a hash of the bytes. All rows with the same image have the same hash."""
        return hashlib.blake2b(self.read(), digest_size=16).hexdigest()

    def __str__(self) -> str:
        return self.place


ImageSource = Path | EmbeddedImage

IMAGE = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Placeholder for an image in a prompt. If a prompt has none, the image comes before the text."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One sample of a dataset: a prompt, its correct answer if known, and possibly an image.

    Rows are hashed by ``repr(example)``: give new fields ``repr=False`` to keep old hashes valid.
    """

    id: str
    image: ImageSource | None
    prompt: str
    answer: Any
    """An instance of one of this module's answer types; None if the row has no answer."""

    where: str
    """File and line of the row, for error messages."""

    size_px: tuple[int, int] | None = None
    """Width and height of the image after EXIF rotation; None if the row does not give them."""

    dropped: tuple[str, ...] = field(default=(), repr=False)
    """Labels of objects in the row that the question does not ask for."""

    buckets: Mapping[str, str] = field(default_factory=dict)
    """Properties of the row, such as ``{"category": "interpolation"}``. Metrics are also reported
    for each value of each property, and comparison tables have columns for each ``category``."""

    more_images: tuple[ImageSource, ...] = field(default=(), repr=False)
    """Images after the first one, such as frames of a video, all of the same size. The prompt has
    ``IMAGE`` once for each image."""

    epoch: int | None = field(default=None, repr=False, compare=False)
    """Number of earlier passes over the data during training; None if unknown."""

    repeat: int = field(default=0, repr=False, compare=False)
    """Number of earlier occurrences of the row in a stream, or in an epoch of weighted sources.
    Augmentation differs for each occurrence."""

    fold_group: str | None = field(default=None, repr=False)
    """The row's field ``fold_group``, shared by samples that are alike; None if it has none."""

    @property
    def images(self) -> tuple[ImageSource, ...]:
        """Return all images of the sample."""
        return () if self.image is None else (self.image, *self.more_images)

    @property
    def group(self) -> str | None:
        """Return the key that dependent samples share; None if ``image`` is such a key.

        Samples are dependent if they have the same ``fold_group`` or, without one, the same images.
        """
        if self.fold_group is not None:
            return self.fold_group
        if not self.more_images and not isinstance(self.image, EmbeddedImage):
            return None
        return " ".join(i.digest() if isinstance(i, EmbeddedImage) else str(i) for i in self.images)
