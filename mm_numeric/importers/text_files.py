"""Base class of importers for data sets with one text file per image, such as ICDAR 2015."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, NamedTuple

from mm_numeric.importers.files import ImageFolder, input_files, read_texts
from mm_numeric.importers.importer import (
    ImagesFolder,
    ImportedItem,
    InvalidLine,
    InvalidRowError,
    Option,
    Row,
    parse_box,
    parse_number,
    parse_polygon,
)


class Word(NamedTuple):
    """A text region of an image: a word or line of text, and its box or polygon."""

    numbers: list[float]
    """Coordinates: x1, y1, x2, y2 of a box, or x1, y1, x2, y2, x3, y3, ... of a polygon."""

    text: str | None
    """Transcription of the region; None if the file has none."""

    ignore: bool
    is_box: bool = False


@dataclass(frozen=True, kw_only=True)
class TextFiles(ABC):
    """Base class of importers that read one text file per image, from folders or .zip archives."""

    version: ClassVar[int] = 1
    endings: ClassVar[tuple[str, ...]] = (".txt",)
    text_field: ClassVar[str] = "text"
    """Field of an instance for ``Word.text``: ``text`` for a transcription, or ``label``."""

    image_ending: ClassVar[str] = ".jpg"
    """Suffix of the images, if no image folder is given."""

    images: ImagesFolder = None
    encoding: Annotated[str, Option("encoding of the text files (default: utf-8)", name="NAME")] = (
        "utf-8"
    )

    def __post_init__(self) -> None:
        try:
            "a".encode(self.encoding)
        except (LookupError, ValueError):
            raise ValueError(f"--encoding: there is no encoding {self.encoding!r}.") from None

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return the files to read, given the files and folders of the command line."""
        return input_files(inputs, (*self.endings, ".zip"))

    def rows(self, files: Sequence[Path]) -> Iterator[ImportedItem]:
        """Yield one row per image with its text regions, and an error for each invalid region.

        An image with an invalid region gets no row, unless the region is marked ``ignore``. A row
        without the region would train the model to overlook text.
        """
        image_folder = ImageFolder(self.images)
        for where, name, text in read_texts(files, self.endings, self.encoding):
            if isinstance(text, InvalidRowError):
                yield text.at(where)
                continue
            try:
                stem = self.image(name.stem)
                image = image_folder.find(stem, self.image_ending)
                fields = {"id": stem, **image_folder.fields(image)}
            except InvalidRowError as error:
                yield error.at(where)
                continue
            fields["instances"] = []
            is_complete = True
            for item in self._instances(where, name, text):
                if isinstance(item, dict):
                    fields["instances"].append(item)
                else:
                    yield item[0]
                    is_complete = is_complete and item[1]
            if is_complete:
                yield Row(where, fields)

    def _instances(
        self, where: str, name: PurePosixPath, text: str
    ) -> Iterator[dict[str, Any] | tuple[InvalidLine, bool]]:
        """Yield a dict for each valid text region, and (error, flag) for each invalid one.

        The flag is True if the invalid region is marked ``ignore``. The image can then be used for
        training without this region.
        """
        try:
            records = list(self.records(text, name.suffix.lower()))
        except InvalidRowError as error:
            yield error.at(where), False
            return
        for line, record in records:
            ignore = False
            try:
                word = self.word(record)
                ignore = word.ignore
                yield _instance(word, self.text_field)
            except InvalidRowError as error:
                # An ignored region without an area excludes nothing, so it may be missing.
                yield error.at(f"{where}, line {line}"), ignore

    def image(self, stem: str) -> str:
        """Convert the stem of a text file, ``gt_img_1``, to the stem of its image, ``img_1``."""
        return stem.removeprefix("gt_")

    def records(self, text: str, ending: str) -> Iterator[tuple[int, str]]:
        """Yield (line number, line) of an annotation file, which has one text region per line."""
        for line, record in enumerate(text.split("\n"), start=1):
            if record.strip():
                yield line, record.removesuffix("\r")

    @abstractmethod
    def word(self, record: str) -> Word:
        """Parse one text region, such as ``x1,y1,x2,y2,text``; raise if it is invalid."""


def leading_numbers(parts: Sequence[str]) -> int:
    """Return the number of leading fields that are numbers: 2 for ``["38", "43", "cat", "7"]``."""
    for count, part in enumerate(parts):
        try:
            parse_number(part)
        except InvalidRowError:
            return count
    return len(parts)


def _instance(word: Word, text_field: str) -> dict[str, Any]:
    if word.is_box:
        instance: dict[str, Any] = {"box": parse_box(word.numbers)}
    else:
        instance = {"polygon": parse_polygon(word.numbers)}
    if word.text is not None:
        instance[text_field] = word.text
    if word.ignore:
        instance["ignore"] = True
    return instance
