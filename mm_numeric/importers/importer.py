"""What an importer is: files of a published format in; rows out, and every line that gives none."""

import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

from mm_numeric.geometry.row_shapes import read_box, read_polygon

_NUMBER = re.compile(r"\s*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)\s*", re.ASCII)


class Row(NamedTuple):
    """A row, as tasks read it."""

    where: str
    """The file, and the place in it."""

    fields: dict[str, Any]


class BadLine(NamedTuple):
    """A part of a file that gives no row, or that cost its image the row."""

    where: str
    why: str
    """One sentence."""

    kind: str
    """A word to count it under."""


class LeftOut(NamedTuple):
    """Something that is in order and is no row: it is counted."""

    what: str
    """In the plural, such as "answers without a box"."""


Found = Row | BadLine | LeftOut


class RefusedError(ValueError):
    """Why something is a bad line; where it stands is added by who knows it."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind

    def at(self, where: str) -> BadLine:
        """Return it as a bad line."""
        return BadLine(where, str(self), self.kind)


class Option(NamedTuple):
    """What the command line says of a field: ``split: Annotated[str, Option("which part")]``."""

    meaning: str
    choices: Iterable[str] | None = None
    name: str | None = None
    """What stands for the value in the help."""


ImagesFolder = Annotated[
    Path | None,
    Option("the folder that image names start from: sizes are read and checked", name="FOLDER"),
]
OneSize = Annotated[
    str | None, Option("of images of which nothing else says it, without --images", name="WxH")
]


class Importer(Protocol):
    """A frozen dataclass; each of its fields is an option of the command.

    A field without a default must be given; an ``Option`` in its annotation explains it.
    """

    version: ClassVar[int]
    """Raise it when the same files give other rows."""

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return the files that will be read.

        Raises:
            ValueError: If there are none.
        """

    def rows(self, files: Sequence[Path]) -> Iterator[Found]:
        """Read them.

        Raises:
            ValueError: If a file cannot be read at all.
        """


def number(text: str) -> float:
    """Read a decimal number; ``nan``, ``1e3`` and digits that are not ASCII are none.

    Raises:
        RefusedError: If it is none.
    """
    if not _NUMBER.fullmatch(text):
        raise RefusedError("numbers", f"{text.strip()!r:.40} is not a number.")
    return float(text)


def box_of(value: Any, *, xywh: bool = False) -> list[float]:
    """Return a box as ``[x1, y1, x2, y2]``.

    Raises:
        RefusedError: If it is none.
    """
    try:
        box = read_box(value, "box", xywh=xywh)
    except ValueError as error:
        raise RefusedError("box", _sentence(error)) from error
    return tidy([box.x1, box.y1, box.x2, box.y2])


def polygon_of(value: Any) -> list[float]:
    """Return a polygon as ``[x1, y1, x2, y2, ...]``.

    Raises:
        RefusedError: If it is none.
    """
    try:
        polygon = read_polygon(value, "polygon")
    except ValueError as error:
        raise RefusedError("polygon", _sentence(error)) from error
    return tidy([coordinate for point in polygon.points for coordinate in point])


def tidy(numbers: Iterable[float]) -> list[float]:
    """Return numbers without the last bits of floating point: 358.28999999999996 is 358.29."""
    rounded = (round(value, 6) for value in numbers)
    return [int(value) if float(value).is_integer() else value for value in rounded]


def size_of(fields: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return ``width`` and ``height`` of an image, or None where it has neither.

    Raises:
        RefusedError: If they are no size.
    """
    width, height = fields.get("width"), fields.get("height")
    if width is None and height is None:
        return None
    if not (type(width) is int and type(height) is int and min(width, height) >= 1):
        raise RefusedError("image", f"width {width!r:.20} and height {height!r:.20} are no size.")
    return width, height


def read_size(text: str | None) -> tuple[int, int] | None:
    """Read ``640x480``.

    Raises:
        ValueError: If it is no size.
    """
    if text is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", text)
    if not match:
        raise ValueError(f"--size {text}: write width and height in pixels, such as 640x480.")
    return int(match[1]), int(match[2])


def text_of(value: Any, what: str) -> str:
    """Return a text that is not empty.

    Raises:
        RefusedError: If it is none.
    """
    if not isinstance(value, str) or not value.strip():
        raise RefusedError("text", f"{what} is not a text: {shown(value)}.")
    return value


def shown(value: Any) -> str:
    """Return the beginning of a value as Python writes it, however deep it is nested."""
    return reprlib.repr(value)[:40]


def number_list(value: Any) -> list[float]:
    """Return a list of finite numbers.

    Raises:
        RefusedError: If it is none.
    """
    if not isinstance(value, list):
        raise RefusedError("numbers", f"expected a list of numbers, found {value!r:.40}.")
    for item in value:
        if type(item) not in (int, float) or not math.isfinite(item):
            raise RefusedError("numbers", f"{item!r:.40} is not a number.")
    return [float(item) for item in value]


def _sentence(error: ValueError) -> str:
    """Return what an error says behind its place."""
    return str(error).partition(": ")[2]
