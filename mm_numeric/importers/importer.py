"""Base classes of importers, the items that importers yield, and shared functions.

An importer reads files in a published format. It yields ``Row`` for each converted sample,
``InvalidLine`` for each error in the files, ``SkippedLine`` for each entry that is left out on
purpose, and ``DeclaredClasses`` for the classes that a file lists, with or without objects.
"""

import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

from mm_numeric.data.images import image_size
from mm_numeric.geometry.row_shapes import finite_numbers, pixel_size, read_box, read_polygon
from mm_numeric.io.files import read_json, rows_or_errors, zipped_files

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp")

_DECIMAL = r"\s*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_NUMBER = re.compile(rf"{_DECIMAL}\s*", re.ASCII)
_WITH_EXPONENT = re.compile(rf"{_DECIMAL}(?:[eE][-+]?[0-9]{{1,3}})?\s*", re.ASCII)


class Row(NamedTuple):
    """A valid sample, with the fields that tasks read. ``where`` is its place in the input."""

    where: str
    fields: dict[str, Any]


class InvalidLine(NamedTuple):
    """An error in an input file: the location ``where`` and the reason ``why``."""

    where: str
    why: str

    kind: str
    """What is invalid, such as "box"."""

    result: str = "row left out"
    """What is done with it: ``row left out``, ``object left out``, ``object ignored``."""


class SkippedLine(NamedTuple):
    """A valid line or entry of an input file that the importer counts, but does not convert."""

    what: str
    """Name of this count in the report, such as "answers without a box"."""


class DeclaredClasses(NamedTuple):
    """The classes that a file declares, in the order of the file, with or without objects."""

    names: tuple[str, ...]

    ids: tuple[int | str, ...]
    """The id of each class in the file, for results in the same format."""


ImportedItem = Row | InvalidLine | SkippedLine | DeclaredClasses


class InvalidRowError(ValueError):
    """Raised for an invalid entry of an input file; importers report it as an ``InvalidLine``."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.shape: dict[str, Any] | None = None
        """The field with the shape of an object, if this is valid; the rest of it is not."""

    def at(self, where: str, *, of_object: bool = False) -> InvalidLine:
        """Return this error as an ``InvalidLine`` at the location ``where``."""
        if not of_object:
            return InvalidLine(where, str(self), self.kind)
        result = "object left out" if self.shape is None else "object ignored"
        return InvalidLine(where, str(self), self.kind, result)


class Option(NamedTuple):
    """Annotation of an importer's field: the help text and choices of a command line option."""

    meaning: str
    choices: Iterable[str] | None = None
    name: str | None = None
    """Placeholder for the value in ``--help``, such as FOLDER."""


ImagesFolder = Annotated[
    Path | None, Option("folder of the images; sizes are read from it and checked", name="FOLDER")
]


class Importer(Protocol):
    """Interface of importers, which are frozen dataclasses that convert one data format to rows.

    Each dataclass field becomes an option of ``mm-numeric prepare FORMAT``. If the field has no
    default, the option is required. An ``Option`` in the field's annotation has the help text.
    """

    version: ClassVar[int]
    """Version of the conversion. Increase it if the same files are converted to different rows."""

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return the files to read, given the files and folders of the command line."""

    def rows(self, files: Sequence[Path]) -> Iterator[ImportedItem]:
        """Convert the files, and yield a row, an error or a ``SkippedLine`` per entry.

        If each row has the objects of all classes in its image, also yield the file's list of
        classes as ``DeclaredClasses``.
        """


@dataclass(frozen=True)
class ImageFolder:
    """The folder of the option ``--images``, in which importers look up image files and sizes.

    Without this option, ``folder`` is None, and no image file is opened.
    """

    folder: Path | None

    def __post_init__(self) -> None:
        if self.folder is not None and not self.folder.is_dir():
            raise ValueError(f"--images {self.folder}: there is no such folder.")

    def find(self, stem: str, ending: str = ".jpg") -> str:
        """Return the file name of the image ``stem``; if there is no folder, add ``ending``."""
        if self.folder is None:
            return f"{stem}{ending}"
        names = self._names.get(stem, [])
        if len(names) != 1:
            found = " and ".join(names) or "no image with this name"
            raise InvalidRowError("image", f"{stem}: {found} in {self.folder}.")
        return names[0]

    def size(self, name: str, declared: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return (width, height) of an image in pixels, with its EXIF rotation applied.

        ``declared`` is the size in the annotations, or None. Without an image folder, return
        ``declared`` unchecked. Otherwise, raise an error if the image file has another size.
        """
        if self.folder is None:
            return declared
        try:
            found = image_size(self.folder / name)
        except ValueError as error:
            raise InvalidRowError("image", f"{error}.") from error
        if declared not in (None, found):
            raise InvalidRowError(
                "image",
                f"its declared size is {declared[0]} x {declared[1]}, but the upright image has "
                f"{found[0]} x {found[1]}.",
            )
        return found

    def fields(self, name: str, declared: tuple[int, int] | None = None) -> dict[str, Any]:
        """Return the row fields ``image`` and, if the size is known, ``width`` and ``height``."""
        size = self.size(name, declared)
        if size is None:
            return {"image": name}
        return {"image": name, "width": size[0], "height": size[1]}

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        assert self.folder is not None
        names: dict[str, list[str]] = {}
        for path in sorted(self.folder.iterdir()):
            if path.suffix.lower() in IMAGE_SUFFIXES:
                names.setdefault(path.stem, []).append(path.name)
        return names


class FileImporter:
    """Base class of importers that convert the entries of files, by default JSON objects.

    An importer defines ``row`` if an entry becomes one row, or ``items`` if it becomes several. It
    also defines ``entries`` if the entries of its files are not JSON objects.
    """

    version: ClassVar[int] = 1
    endings: ClassVar[tuple[str, ...]] = (".json", ".jsonl")
    """Suffixes of the files."""

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return the files to read, given the files and folders of the command line."""
        return input_files(inputs, self.endings)

    def rows(self, files: Sequence[Path]) -> Iterator[ImportedItem]:
        """Yield the items of each entry of the files, or an error for an invalid entry."""
        for path in files:
            for where, identity, entry in self.entries(path):
                if isinstance(entry, DeclaredClasses | InvalidLine | InvalidRowError):
                    yield entry.at(where) if isinstance(entry, InvalidRowError) else entry
                    continue
                try:
                    yield from self.items(where, identity, entry)
                except InvalidRowError as error:
                    yield error.at(where)

    def entries(self, path: Path) -> Iterator[tuple[str, str, Any]]:
        """Yield the location, a unique id, and the content of each entry of a file.

        The id is the name of the file and the number of the object, such as ``train.17``. The
        content of an entry that cannot be read is an ``InvalidRowError``. A ``DeclaredClasses`` or
        an ``InvalidLine`` as content is no entry, and is yielded as it is.
        """
        stem = Path(path.name.removesuffix(".gz")).stem
        for count, row in enumerate(rows_or_errors(path), start=1):
            if isinstance(row, ValueError):
                place, _, why = str(row).removeprefix(str(path)).partition(": ")
                if not place:
                    raise row
                yield f"{path}{place}", "", InvalidRowError("json", why)
            else:
                yield row[0], f"{stem}.{count}", row[1]

    def items(self, where: str, identity: str, entry: Any) -> Iterable[ImportedItem]:
        """Convert an entry to rows and other items; raise ``InvalidRowError`` if it is invalid."""
        return [row_or_error(where, self.row, entry, identity)]

    def row(self, entry: Any, identity: str) -> dict[str, Any] | SkippedLine:
        """Convert an entry to the fields of a row; raise ``InvalidRowError`` if it is invalid.

        ``identity`` is a unique id, such as ``train.17`` for the 17th object in ``train.jsonl``.
        """
        raise NotImplementedError


def row_or_error(
    where: str, read: Callable[..., dict[str, Any] | SkippedLine], *arguments: Any
) -> ImportedItem:
    """Call ``read(*arguments)``; return its result as a row, or its error as an ``InvalidLine``."""
    try:
        found = read(*arguments)
    except InvalidRowError as error:
        return error.at(where)
    return found if isinstance(found, SkippedLine) else Row(where, found)


@dataclass(frozen=True, kw_only=True)
class ImageImporter(FileImporter):
    """Base class of importers of rows with images. The images are in ``self.folder``."""

    images: ImagesFolder = None

    @cached_property
    def folder(self) -> ImageFolder:
        """Return the folder of the option ``--images``."""
        return ImageFolder(self.images)


def input_files(inputs: Sequence[Path], endings: Sequence[str]) -> list[Path]:
    """Return the input files, with each folder replaced by its files that match ``endings``."""
    found = []
    for path in inputs:
        if path.is_dir():
            inside = [p for p in path.iterdir() if p.suffix.lower() in endings and p.is_file()]
            if not inside:
                raise ValueError(f"{path}: no {' or '.join(endings)} files in this folder.")
            found += sorted(inside, key=lambda p: _natural(p.name))
        elif not path.is_file():
            raise ValueError(f"{path}: there is no such file.")
        elif path.suffix.lower() not in endings:
            raise ValueError(
                f"{path}: this format has files ending in {' or '.join(endings)}, not "
                f"{path.suffix or 'no ending'!r}."
            )
        else:
            found.append(path)
    return found


def read_texts(
    files: Sequence[Path], endings: Sequence[str], encoding: str
) -> Iterator[tuple[str, PurePosixPath, str | InvalidRowError]]:
    """Yield (location, file name, text) of each text file, including those in .zip archives.

    If a file cannot be decoded, its text is an ``InvalidRowError``. A UTF-8 BOM is removed.
    """
    for path in files:
        if path.suffix.lower() != ".zip":
            yield str(path), PurePosixPath(path.name), _decoded(path.read_bytes(), encoding)
            continue
        is_empty = True
        for name, raw in zipped_files(path, endings, order=_natural):
            is_empty = False
            yield f"{path}/{name}", PurePosixPath(name), _decoded(raw, encoding)
        if is_empty:
            raise ValueError(f"{path}: no {' or '.join(endings)} files in this archive.")


def _decoded(raw: bytes, encoding: str) -> str | InvalidRowError:
    try:
        return raw.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        return InvalidRowError(
            "encoding",
            f"not {encoding} ({error.reason} at byte {error.start}); set another one with "
            "--encoding, such as latin-1.",
        )


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts ``img_2`` before ``img_10``."""
    parts = re.split(r"0*([0-9]+)", name)
    return [(len(part) if i % 2 else 0, part) for i, part in enumerate(parts)]


def named_objects(
    path: Path, what: str
) -> Iterator[tuple[str, str, dict[str, Any] | InvalidRowError]]:
    """Read a JSON file that maps names to objects; yield (location, name, object) of each name.

    If a value is not an object, yield an error instead. Error messages call the values ``what``.
    """
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected an object with a field for each {what}.")
    for name, fields in found.items():
        is_object = isinstance(fields, dict)
        error = InvalidRowError("json", f"expected an object, found {shorten(fields)}.")
        yield f"{path}, {name}", name, fields if is_object else error


def numbered_lines(path: Path, text: str) -> Iterator[tuple[str, int, str]]:
    """Yield (location, number, line) of the lines of a text file that are not blank."""
    # splitlines would also split at U+2028, a line separator within a text.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path}, line {number}", number, line.removesuffix("\r")


def image_row(
    where: str,
    fields: Mapping[str, Any],
    objects: Iterable[tuple[str, Any]],
    read: Callable[[Any], dict[str, Any] | SkippedLine],
) -> Iterator[ImportedItem]:
    """Yield an error per invalid object, and the row of an image with its other objects.

    If the shape of an invalid object is valid, it becomes an ignored region, so that it does not
    count in scores.

    ``fields`` are the row's fields, except ``instances``. ``objects`` are pairs of the location of
    an object, such as ``line 3``, and the object. ``read`` converts an object to its entry in
    ``instances``, or to a ``SkippedLine`` if the object is left out on purpose.
    """
    instances = []
    for position, raw in objects:
        try:
            found = read(raw)
        except InvalidRowError as error:
            yield error.at(f"{where}, {position}", of_object=True)
            if error.shape is not None:
                instances.append({**error.shape, "ignore": True})
            continue
        if isinstance(found, SkippedLine):
            yield found
        else:
            instances.append(found)
    yield Row(where, {**fields, "instances": instances})


@contextmanager
def of_shape(shape: dict[str, Any]) -> Iterator[None]:
    """Set the ``shape`` of each ``InvalidRowError`` that is raised within this context."""
    try:
        yield
    except InvalidRowError as error:
        error.shape = shape
        raise


@contextmanager
def invalid_as(kind: str, where: str = "") -> Iterator[None]:
    """Convert a ValueError to an ``InvalidRowError``, without the location in its message."""
    try:
        yield
    except InvalidRowError:
        raise
    except ValueError as error:
        raise InvalidRowError(kind, str(error).removeprefix(where).lstrip(":, ")) from error


def parse_number(text: str, *, exponent: bool = False) -> float:
    """Parse a decimal number; with ``exponent``, also accept texts such as ``1e3``.

    Raises InvalidRowError for other texts, such as ``nan`` and digits that are not ASCII.
    """
    if not (_WITH_EXPONENT if exponent else _NUMBER).fullmatch(text):
        raise InvalidRowError("numbers", f"{text.strip()!r:.40} is not a number.")
    return float(text)


def parse_box(value: Any, *, xywh: bool = False) -> list[float]:
    """Validate a box ([x, y, width, height] if ``xywh``), and return [x1, y1, x2, y2]."""
    with invalid_as("box"):
        box = read_box(value, "", xywh=xywh)
    return round_coordinates([box.x1, box.y1, box.x2, box.y2])


def parse_polygon(value: Any) -> list[float]:
    """Validate a polygon and return it as ``[x1, y1, x2, y2, ...]``."""
    with invalid_as("polygon"):
        polygon = read_polygon(value, "")
    return round_coordinates([coordinate for point in polygon.points for coordinate in point])


def text_region(
    numbers: Any, text: str | None, *, ignore: bool, field: str = "text"
) -> dict[str, Any]:
    """Return the entry of a region in ``instances``: its polygon and, if given, its text."""
    texts = {} if text is None else {field: text}
    return {"polygon": parse_polygon(numbers), **texts, **({"ignore": True} if ignore else {})}


def round_coordinates(numbers: Iterable[float]) -> list[float]:
    """Round to 6 decimals to remove floating-point noise: 358.28999999999996 becomes 358.29."""
    rounded = (round(value, 6) for value in numbers)
    return [int(value) if float(value).is_integer() else value for value in rounded]


def declared_size(fields: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return (width, height) in pixels from the fields of a row; None if both are missing."""
    width, height = fields.get("width"), fields.get("height")
    if width is None and height is None:
        return None
    size = pixel_size(width, height)
    if size is None:
        raise InvalidRowError(
            "image", f"width {width!r:.20} and height {height!r:.20} are not a size in pixels."
        )
    return size


def parse_text(value: Any, what: str) -> str:
    """Check that a value is a non-empty string, and return it. Error messages call it ``what``."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidRowError("text", f"{what} must be a non-empty text, not {shorten(value)}.")
    return value


def text_field(fields: Mapping[str, Any], name: str) -> str:
    """Return the field ``name``, which must be a non-empty string."""
    return parse_text(fields.get(name), name)


def shorten(value: Any) -> str:
    """Return at most 40 characters of a value's ``repr``, for error messages."""
    return reprlib.repr(value)[:40]


def parse_number_list(value: Any) -> list[float]:
    """Check that a value is a list of finite numbers, and return the numbers as floats."""
    with invalid_as("numbers"):
        return finite_numbers(value, "")
