"""What data sets with a text file for each image have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, NamedTuple

from mm_numeric.importers.files import ImageFolder, listed, read_texts
from mm_numeric.importers.importer import (
    BadLine,
    Found,
    ImagesFolder,
    Option,
    RefusedError,
    Row,
    box_of,
    number,
    polygon_of,
)


class Word(NamedTuple):
    """A region of text as a file has it."""

    numbers: list[float]
    """x1, y1, x2, y2 of a box; x and y of three or more points of a polygon."""

    text: str | None
    """What is written there; None where the file does not say it."""

    ignore: bool
    is_box: bool = False


@dataclass(frozen=True, kw_only=True)
class TextFiles(ABC):
    """Text files named after their image_folder, in folders or .zip archives; a row an image."""

    version: ClassVar[int] = 1
    endings: ClassVar[tuple[str, ...]] = (".txt",)

    images: ImagesFolder = None
    encoding: Annotated[str, Option("of the text files (default: utf-8)", name="NAME")] = "utf-8"

    def __post_init__(self) -> None:
        """Refuse an encoding that there is not."""
        try:
            "a".encode(self.encoding)
        except (LookupError, ValueError):
            raise ValueError(f"--encoding: there is no encoding {self.encoding!r}.") from None

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return the files that will be read."""
        return listed(inputs, (*self.endings, ".zip"))

    def rows(self, files: Sequence[Path]) -> Iterator[Found]:
        """Read them.

        An image with a bad line has no row: the word that is missing would be taught as not there.
        """
        image_folder = ImageFolder(self.images)
        for where, name, text in read_texts(files, self.endings, self.encoding):
            if isinstance(text, RefusedError):
                yield text.at(where)
                continue
            try:
                stem = self.image(name.stem)
                fields = {"id": stem, **image_folder.facts(image_folder.named(stem))}
            except RefusedError as refusal:
                yield refusal.at(where)
                continue
            fields["instances"] = []
            whole = True
            for found in self._instances(where, name, text):
                if isinstance(found, dict):
                    fields["instances"].append(found)
                else:
                    yield found[0]
                    whole = whole and found[1]
            if whole:
                yield Row(where, fields)

    def _instances(
        self, where: str, name: PurePosixPath, text: str
    ) -> Iterator[dict[str, Any] | tuple[BadLine, bool]]:
        """Yield instances; or a bad line, and whether the image is whole without it."""
        try:
            records = list(self.records(text, name.suffix.lower()))
        except RefusedError as refusal:
            yield refusal.at(where), False
            return
        for line, record in records:
            ignore = False
            try:
                word = self.word(record)
                ignore = word.ignore
                yield _instance(word)
            except RefusedError as refusal:
                # A region to ignore that has no area excludes nothing.
                yield refusal.at(f"{where}, line {line}"), ignore

    def image(self, stem: str) -> str:
        """Return the name of an image without its ending, from that of its text file.

        Raises:
            RefusedError: If it is no such name.
        """
        return stem.removeprefix("gt_")

    def records(self, text: str, ending: str) -> Iterator[tuple[int, str]]:
        """Yield the line that each region begins in, and what stands there.

        Raises:
            RefusedError: If nothing of the file can be read.
        """
        for line, record in enumerate(text.split("\n"), start=1):
            if record.strip():
                yield line, record.removesuffix("\r")

    @abstractmethod
    def word(self, record: str) -> Word:
        """Read a region.

        Raises:
            RefusedError: If it is none.
        """


def leading_numbers(parts: Sequence[str]) -> int:
    """Return how many numbers a line begins with."""
    for count, part in enumerate(parts):
        try:
            number(part)
        except RefusedError:
            return count
    return len(parts)


def _instance(word: Word) -> dict[str, Any]:
    if word.is_box:
        instance: dict[str, Any] = {"box": box_of(word.numbers)}
    else:
        instance = {"polygon": polygon_of(word.numbers)}
    if word.text is not None:
        instance["text"] = word.text
    if word.ignore:
        instance["ignore"] = True
    return instance
