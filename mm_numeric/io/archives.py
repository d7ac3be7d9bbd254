"""Read zip and gzip files and lines, and raise an error if their size exceeds a limit.

An archive of 4 MB can hold 2 GB of text (a zip bomb), which would fill the memory. The default
limit is 256 MiB per archive. ``--max-unpacked`` changes it by setting an environment variable,
which child processes inherit.
"""

import argparse
import gzip
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

UNPACKED_LIMIT = "MM_NUMERIC_MAX_UNPACKED"
"""Environment variable with the limit in MiB."""

DEFAULT_LIMIT_MIB = 256

MAX_FILES = 1_000_000
"""Maximum number of files that are read from a zip archive."""

MAX_RATIO = 200
"""Maximum unpacked size of an archive, as a multiple of its own, if it is not small."""

_MIB = 1 << 20


class UnpackedSizeError(ValueError):
    """Raised for an archive whose content is larger than the limit."""


def require_file(path: Path) -> None:
    """Raise ValueError if a path is a named pipe or a device, whose reading may never end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(f"{path}: it is a pipe or a device; write its content to a file first.")


def add_limit_option(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--max-unpacked`` (maximum unpacked size of an archive) to a command."""
    parser.add_argument(
        "--max-unpacked",
        type=int,
        default=argparse.SUPPRESS,  # so that it may come before or after the name of the command
        metavar="MIB",
        help=f"largest unpacked size of a zip or gzip file (default: {DEFAULT_LIMIT_MIB})",
    )


def set_limit(arguments: argparse.Namespace) -> None:
    """Set the maximum unpacked size of an archive, if ``--max-unpacked`` was given."""
    mib = getattr(arguments, "max_unpacked", None)
    if mib is not None:
        if mib < 1:
            raise ValueError(f"--max-unpacked is a number of MiB of at least 1, not {mib}.")
        os.environ[UNPACKED_LIMIT] = str(mib)


def _limit() -> int:
    """Return the maximum unpacked size of an archive in bytes."""
    text = os.environ.get(UNPACKED_LIMIT) or str(DEFAULT_LIMIT_MIB)
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ValueError(f"{UNPACKED_LIMIT} is a number of MiB of at least 1, not {text!r:.40}.")
    return int(text) * _MIB


def _too_large(path: Path, what: str) -> UnpackedSizeError:
    return UnpackedSizeError(
        f"{path}: {what}, more than the limit of {_limit() // _MIB} MiB; if you trust "
        "the file, raise the limit with --max-unpacked MIB."
    )


def zipped_files(
    path: Path, endings: Sequence[str], order: Callable[[str], Any] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of the files of certain types in a zip archive.

    ``endings`` are these types, such as ``.txt``, in lower case. Hidden files are left out. If the
    files exceed a limit (their number, their size, or their size as a multiple of the archive's),
    none of them is unpacked. ``order`` returns the sort key of a name; None: alphabetical.
    """
    require_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            wanted = [info for info in archive.infolist() if is_wanted(info.filename, endings)]
            if len(wanted) > MAX_FILES:
                raise UnpackedSizeError(f"{path}: {len(wanted):,} files, above {MAX_FILES:,}.")
            # zipfile never unpacks more of a file than the size that the archive states for it.
            size = sum(info.file_size for info in wanted)
            if size > _limit():
                raise _too_large(path, f"unpacks to {-(-size // _MIB)} MiB")
            if size > max(16 * _MIB, MAX_RATIO * path.stat().st_size):
                raise UnpackedSizeError(
                    f"{path}: unpacks to {-(-size // _MIB)} MiB, more than {MAX_RATIO} times its "
                    "size; if you trust the file, unpack it yourself."
                )
            for name in sorted((info.filename for info in wanted), key=order):
                yield name, archive.read(name)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: there is no such file.") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"{path}: not a whole .zip archive ({error}).") from error
    except (RuntimeError, NotImplementedError) as error:  # password, unknown compression
        raise ValueError(f"{path}: cannot be unpacked ({error}).") from error


def is_wanted(name: str, endings: Sequence[str]) -> bool:
    """Return True if a file has one of these endings and is not hidden, as macOS's ._1.txt is."""
    inner = PurePosixPath(name)
    hidden = inner.name.startswith(".") or "__MACOSX" in inner.parts
    return inner.suffix.lower() in endings and not hidden


def read_gzip(path: Path) -> bytes:
    """Return the content of a gzip file, or raise an error once it exceeds the size limit."""
    limit = _limit()
    with gzip.open(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise _too_large(path, f"unpacks to at least {len(content)} bytes")
    return content


def limited_lines(path: Path, file: TextIO, *, is_packed: bool) -> Iterator[str]:
    """Yield the lines of an opened file; raise an error if a line exceeds the size limit.

    All lines of a packed file together may be as large as the limit, or ``MAX_RATIO`` times as
    large as the file: the shards of a large data set are read one line after the other.
    """
    limit, size = _limit(), 0
    most = max(limit, MAX_RATIO * path.stat().st_size)
    while line := file.readline(limit + 1):
        if len(line) > limit:
            raise _too_large(path, f"has a line of at least {len(line)} characters")
        size += len(line)
        if is_packed and size > most:
            raise _too_large(path, f"unpacks to at least {size} characters")
        yield line
