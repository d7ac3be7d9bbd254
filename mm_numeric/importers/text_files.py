"""Base class of importers for data sets with one text file per image, such as ICDAR 2015."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from mm_numeric.importers.importer import (
    ImageImporter,
    ImportedItem,
    InvalidLine,
    InvalidRowError,
    Option,
    Row,
    image_row,
    input_files,
    numbered_lines,
    parse_number,
    read_texts,
    text_region,
)


class Word(NamedTuple):
    """A text region of an image: a word or line of text, and its polygon."""

    numbers: list[float]
    """Coordinates of a polygon: x1, y1, x2, y2, x3, y3, ..."""

    text: str | None
    """Transcription of the region; None if the file has no transcriptions."""

    ignore: bool


@dataclass(frozen=True, kw_only=True)
class TextFiles(ImageImporter, ABC):
    """Base class of importers that read one text file per image, from folders or .zip archives."""

    endings: ClassVar[tuple[str, ...]] = (".txt",)
    text_field: ClassVar[str] = "text"
    """Field of an instance that gets ``Word.text``: ``text`` for transcriptions, or ``label``."""

    image_ending: ClassVar[str] = ".jpg"
    """Suffix of the images, if no image folder is given."""

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

    def entries(self, path: Path) -> Iterator[tuple[str, str, Any]]:
        """Yield the name and the text of each text file."""
        for where, name, text in read_texts([path], self.endings, self.encoding):
            yield where, "", text if isinstance(text, InvalidRowError) else (name, text)

    def items(self, where: str, identity: str, entry: Any) -> Iterator[ImportedItem]:
        """Yield an error per invalid region, and the row of the image with the others."""
        name, text = entry
        stem = self.image(name.stem)
        fields = self.folder.fields(self.folder.find(stem, self.image_ending))
        objects = ((f"line {n}", r) for n, r in self.records(text, name.suffix.lower()))
        found = list(image_row(where, {"id": stem, **fields}, objects, self._instance))
        errors = [item for item in found if isinstance(item, InvalidLine)]
        has_regions = any(isinstance(item, Row) and item.fields["instances"] for item in found)
        if errors and not has_regions and {e.kind for e in errors} <= {"numbers", "record"}:
            why = f"no line is a region of an image; the first: {errors[0].why}"
            raise InvalidRowError("file", why)  # such as a readme
        yield from found

    def _instance(self, record: str) -> dict[str, Any]:
        word = self.word(record)
        return text_region(word.numbers, word.text, ignore=word.ignore, field=self.text_field)

    def image(self, stem: str) -> str:
        """Convert the stem of a text file, ``gt_img_1``, to the stem of its image, ``img_1``."""
        return stem.removeprefix("gt_")

    def records(self, text: str, ending: str) -> Iterator[tuple[int, str]]:
        """Yield (line number, line) of an annotation file, which has one text region per line."""
        for _, line, record in numbered_lines(Path(), text):
            yield line, record

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
