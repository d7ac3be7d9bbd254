"""The contract of an importer: files of a published format in; rows and invalid lines out."""

import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

from mm_numeric.geometry.row_shapes import read_box, read_polygon

_NUMBER = re.compile(r"\s*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)\s*", re.ASCII)


class Row(NamedTuple):
    """A row in the format that tasks read, and its file and position (``where``)."""

    where: str
    fields: dict[str, Any]


class InvalidLine(NamedTuple):
    """An invalid part of a file, at ``where``; no row is written for it, or for its image."""

    where: str
    why: str

    kind: str
    """One word by which invalid lines are counted."""


class SkippedLine(NamedTuple):
    """A valid part of a file for which no row is written; it is only counted."""

    what: str
    """Plural noun for the count, such as "answers without a box"."""


ImportedItem = Row | InvalidLine | SkippedLine


class InvalidRowError(ValueError):
    """Raised for an invalid part of a file; the caller adds the position with ``at``."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind

    def at(self, where: str) -> InvalidLine:
        """Return the error as an invalid line at a position."""
        return InvalidLine(where, str(self), self.kind)


class Option(NamedTuple):
    """Help of a command line option: ``split: Annotated[str, Option("split to read")]``."""

    meaning: str
    choices: Iterable[str] | None = None
    name: str | None = None
    """Placeholder of the value in the help."""

    renamed: Mapping[str, str] = {}
    """Old values that are accepted for one release, and the new value of each."""


ImagesFolder = Annotated[
    Path | None,
    Option("folder of the images; sizes are read from it and checked", name="FOLDER"),
]
DefaultSize = Annotated[
    str | None, Option("size of images whose row declares none; not used with --images", name="WxH")
]


class Importer(Protocol):
    """A frozen dataclass whose fields are options of ``mm-numeric prepare FORMAT``.

    A field without a default is a required option; an ``Option`` in its annotation is its help.
    """

    version: ClassVar[int]
    """Increased when the same files give different rows."""

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return the files to read."""

    def rows(self, files: Sequence[Path]) -> Iterator[ImportedItem]:
        """Yield rows, invalid lines and skipped lines."""


def parse_number(text: str) -> float:
    """Parse a decimal number; ``nan``, ``1e3`` and non-ASCII digits are rejected."""
    if not _NUMBER.fullmatch(text):
        raise InvalidRowError("numbers", f"{text.strip()!r:.40} is not a number.")
    return float(text)


def parse_box(value: Any, *, xywh: bool = False) -> list[float]:
    """Validate a box, optionally of x, y, width and height; return it as ``[x1, y1, x2, y2]``."""
    try:
        box = read_box(value, "box", xywh=xywh)
    except ValueError as error:
        raise InvalidRowError("box", _reason(error)) from error
    return round_coordinates([box.x1, box.y1, box.x2, box.y2])


def parse_polygon(value: Any) -> list[float]:
    """Validate a polygon and return it as ``[x1, y1, x2, y2, ...]``."""
    try:
        polygon = read_polygon(value, "polygon")
    except ValueError as error:
        raise InvalidRowError("polygon", _reason(error)) from error
    return round_coordinates([coordinate for point in polygon.points for coordinate in point])


def round_coordinates(numbers: Iterable[float]) -> list[float]:
    """Round to 6 decimals to remove floating-point noise: 358.28999999999996 becomes 358.29."""
    rounded = (round(value, 6) for value in numbers)
    return [int(value) if float(value).is_integer() else value for value in rounded]


def declared_size(fields: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return ``width`` and ``height`` of an image, or None if it has neither."""
    width, height = fields.get("width"), fields.get("height")
    if width is None and height is None:
        return None
    if not (type(width) is int and type(height) is int and min(width, height) >= 1):
        raise InvalidRowError(
            "image", f"width {width!r:.20} and height {height!r:.20} are not a size in pixels."
        )
    return width, height


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Parse the value of ``--size``, such as ``640x480``."""
    if text is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", text)
    if not match:
        raise ValueError(f"--size {text}: write width and height in pixels, such as 640x480.")
    return int(match[1]), int(match[2])


def parse_text(value: Any, what: str) -> str:
    """Return a text if it is not empty; ``what`` names its field in the error message."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidRowError("text", f"{what} must be a non-empty text, not {shorten(value)}.")
    return value


def shorten(value: Any) -> str:
    """Return the first 40 characters of the ``repr`` of a value of any depth."""
    return reprlib.repr(value)[:40]


def parse_number_list(value: Any) -> list[float]:
    """Validate a list of finite numbers and return it."""
    if not isinstance(value, list):
        raise InvalidRowError("numbers", f"expected a list of numbers, found {value!r:.40}.")
    for item in value:
        if type(item) not in (int, float) or not math.isfinite(item):
            raise InvalidRowError("numbers", f"{item!r:.40} is not a number.")
    return [float(item) for item in value]


def _reason(error: ValueError) -> str:
    """Return an error message without its position."""
    return str(error).partition(": ")[2]
