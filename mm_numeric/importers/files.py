"""Files, folders and archives of published data sets, and the images that go with them."""

import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from mm_numeric.data.images import image_size
from mm_numeric.files import rows_or_errors
from mm_numeric.importers.importer import BadLine, Found, RefusedError

PICTURES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp")


def listed(inputs: Sequence[Path], endings: Sequence[str]) -> list[Path]:
    """Return files as they are, and of each folder the files with one of some endings.

    Raises:
        ValueError: If a file or folder is not there, or is of another kind.
    """
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
                f"{path}: this format is read from {' or '.join(endings)}, not "
                f"{path.suffix or 'no ending'!r}."
            )
        else:
            found.append(path)
    return found


def read_texts(
    files: Sequence[Path], endings: Sequence[str], encoding: str
) -> Iterator[tuple[str, PurePosixPath, str | RefusedError]]:
    """Yield where each text stands, its file name, and the text or why it cannot be read.

    A byte order mark is taken off. A .zip stands for the files in it.

    Raises:
        ValueError: If an archive is none, or holds no such files.
    """
    for path in files:
        if path.suffix.lower() != ".zip":
            yield str(path), PurePosixPath(path.name), _decoded(path.read_bytes(), encoding)
            continue
        try:
            with zipfile.ZipFile(path) as archive:
                names = [n for n in archive.namelist() if _is_wanted(PurePosixPath(n), endings)]
                if not names:
                    raise ValueError(f"{path}: no {' or '.join(endings)} files in this archive.")
                for name in sorted(names, key=_natural):
                    text = _decoded(archive.read(name), encoding)
                    yield f"{path}/{name}", PurePosixPath(name), text
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise ValueError(f"{path}: not a whole .zip archive ({error}).") from error
        except (RuntimeError, NotImplementedError) as error:  # a password, an unknown compression
            raise ValueError(f"{path}: cannot be unpacked ({error}).") from error


def _is_wanted(name: PurePosixPath, endings: Sequence[str]) -> bool:
    hidden = name.name.startswith(".") or "__MACOSX" in name.parts
    return name.suffix.lower() in endings and not hidden


def _decoded(raw: bytes, encoding: str) -> str | RefusedError:
    try:
        return raw.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        return RefusedError(
            "encoding",
            f"not {encoding} ({error.reason} at byte {error.start}); say what it is with "
            "--encoding, such as latin-1.",
        )


def _natural(name: str) -> list[tuple[int, str]]:
    """Return what sorts ``img_2`` before ``img_10``."""
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(parts)]


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]] | BadLine]:
    """Yield where each object of a .json or .jsonl file stands, and its fields.

    Raises:
        ValueError: If the file cannot be read at all.
    """
    for row in rows_or_errors(path):
        if isinstance(row, ValueError):
            place, _, why = str(row).removeprefix(str(path)).partition(": ")
            if not place:
                raise row
            yield BadLine(f"{path}{place}", why, "json")
        else:
            yield row


def read_each(
    files: Sequence[Path], read: Callable[[str, str, dict[str, Any]], Iterable[Found]]
) -> Iterator[Found]:
    """Yield what each object of .json and .jsonl files gives; one that is refused is a bad line.

    Args:
        files: In their order.
        read: Takes where an object stands, a name for it, and its fields.

    Raises:
        ValueError: If a file cannot be read at all.
    """
    for path in files:
        for count, item in enumerate(read_objects(path), start=1):
            if isinstance(item, BadLine):
                yield item
                continue
            where, raw = item
            try:
                yield from read(where, f"{Path(path.name.removesuffix('.gz')).stem}.{count}", raw)
            except RefusedError as refusal:
                yield refusal.at(where)


@dataclass(frozen=True)
class ImageFolder:
    """The folder of the image_folder, where it was given."""

    folder: Path | None
    otherwise: tuple[int, int] | None = None
    """Width and height of images of which nothing says it."""

    def __post_init__(self) -> None:
        """Refuse a folder that is not there."""
        if self.folder is not None and not self.folder.is_dir():
            raise ValueError(f"--images {self.folder}: there is no such folder.")

    def named(self, stem: str) -> str:
        """Return the name of an image whose ending is not known; without a folder it is .jpg.

        Raises:
            RefusedError: If the folder does not hold it.
        """
        if self.folder is None:
            return f"{stem}.jpg"
        names = self._names.get(stem, [])
        if len(names) != 1:
            found = " and ".join(names) or "no image with this name"
            raise RefusedError("image", f"{stem}: {found} in {self.folder}.")
        return names[0]

    def size(self, name: str, said: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return width and height of an image, upright, if the folder or the file says them.

        Raises:
            RefusedError: If it cannot be read, or has another size than its file says.
        """
        if self.folder is None:
            return said
        try:
            found = image_size(self.folder / name)
        except ValueError as error:
            raise RefusedError("image", f"{error}.") from error
        if said not in (None, found):
            raise RefusedError(
                "image",
                f"its size is said to be {said[0]} x {said[1]}; the image, upright, has "
                f"{found[0]} x {found[1]}.",
            )
        return found

    def facts(self, name: str, said: tuple[int, int] | None = None) -> dict[str, Any]:
        """Return the fields of a row that are about its image.

        Raises:
            RefusedError: As ``size``.
        """
        size = self.size(name, said)
        if size is None:
            return {"image": name}
        return {"image": name, "width": size[0], "height": size[1]}

    def sized(self, name: str, said: tuple[int, int] | None) -> dict[str, Any]:
        """Return the same, with a size in any case.

        Raises:
            RefusedError: As ``size``, and if nothing says the size.
        """
        facts = self.facts(name, said or (self.otherwise if self.folder is None else None))
        if "width" not in facts:
            raise RefusedError(
                "image", "its size is not known; give --images, --size, or width and height."
            )
        return facts

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        """The images of the folder, by their names without the ending."""
        assert self.folder is not None
        names: dict[str, list[str]] = {}
        for path in sorted(self.folder.iterdir()):
            if path.suffix.lower() in PICTURES:
                names.setdefault(path.stem, []).append(path.name)
        return names
