"""Read rows from JSONL, JSON, CSV and TSV files; read and write other small files, and archives.

An archive of 4 MB can hold 2 GB of text (a zip bomb), which would fill the memory. The default
limit is 256 MiB per archive. ``--max-unpacked`` changes the limit by setting an environment
variable, which child processes inherit.
"""

import argparse
import codecs
import csv
import errno
import glob
import gzip
import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, TextIO
from xml.etree.ElementTree import Element, ParseError, fromstring
from xml.parsers import expat

from mm_numeric.io.atomic_files import atomic_file

_DELIMITERS = {".csv": ",", ".tsv": "\t"}  # or ";", as German spreadsheets write
_LONGEST_FIELD = 16 << 20  # characters, for images in base64; Python's own limit is 131,072
_LIST = " Name a file with a list of rows .json."


class _RepeatedKeyError(ValueError):
    """Raised for a JSON object that repeats a key; Python would keep the last value."""


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise _RepeatedKeyError(f"the key {twice!r:.60} appears twice; remove one of them.")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeated_keys)


def read_rows(path: Path, field: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location (for error messages) and the fields of each row in a file.

    The file is .jsonl, .json, .csv or .tsv, optionally compressed (.gz). A .json file has a list of
    rows, an object with one list of rows (``field`` chooses one of several), or an object with a
    row for each id. The fields of a table are separated as in its header: by commas, semicolons or
    tabs. A .jsonl file is read line by line, so it need not fit in memory.
    """
    for row in rows_or_errors(path, field):
        if isinstance(row, ValueError):
            raise row
        yield row


def rows_or_errors(
    path: Path, field: str | None = None
) -> Iterator[tuple[str, dict[str, Any]] | ValueError]:
    """Yield rows like ``read_rows``, but yield (not raise) a ValueError for an invalid row."""
    is_packed = path.suffix == ".gz"
    ending = Path(path.stem).suffix if is_packed else path.suffix
    if ending not in (".jsonl", ".json", *_DELIMITERS):
        found = "a folder" if path.is_dir() else repr(ending or "no extension")
        message = f"{path}: rows are read from .jsonl, .json, .csv or .tsv, not {found}."
        if path.is_dir() or ending in (".parquet", ".arrow"):
            message += " In a config, set `dataset` instead of `path`."
        yield ValueError(message)
        return
    try:
        require_file(path)
    except ValueError as error:
        yield error
        return
    try:
        if ending == ".jsonl":
            with (gzip.open if is_packed else open)(path, "rt", encoding="utf-8-sig") as file:
                yield from _jsonl_rows(limited_lines(path, file, is_packed=is_packed), path)
            return
        with io.BytesIO(read_gzip(path)) if is_packed else path.open("rb") as content:
            text = io.TextIOWrapper(content, encoding="utf-8-sig").read()
    except FileNotFoundError:
        yield ValueError(f"{path}: there is no such file.")
        return
    except UnicodeDecodeError as error:
        yield not_utf8(path, error)
        return
    except (OSError, EOFError, zlib.error) as error:
        yield ValueError(f"{path}: cannot be read ({error}).")
        return
    except UnpackedSizeError as error:
        yield error
        return
    if ending in _DELIMITERS:
        yield from _csv_rows(text, path, _DELIMITERS[ending])
    else:
        yield from _json_rows(text, path, field)


def _jsonl_rows(
    lines: Iterable[str], path: Path
) -> Iterator[tuple[str, dict[str, Any]] | ValueError]:
    # The lines of the file and not str.splitlines, which also splits at U+2028 inside of strings.
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                yield _object(_DECODER.decode(line), where)
            except _RepeatedKeyError as error:
                yield ValueError(f"{where}: {error}")
            except (ValueError, RecursionError) as error:  # deep nesting: [[[[[...
                yield ValueError(f"{where}: not JSON ({error}).{_LIST if line[0] == '[' else ''}")


def _json_rows(
    text: str, path: Path, field: str | None
) -> Iterator[tuple[str, dict[str, Any]] | ValueError]:
    try:
        found = _DECODER.decode(text)
    except _RepeatedKeyError as error:
        yield ValueError(f"{path}: {error}")
        return
    except (ValueError, RecursionError) as error:
        yield ValueError(f"{path}: not JSON ({error}).")
        return
    try:
        rows = listed_rows(found, path, field)
    except ValueError as error:
        yield error
        return
    for number, row in enumerate(rows, start=1):
        yield _object(row, f"{path}, row {number}")


def listed_rows(found: Any, path: Path, field: str | None = None) -> list[Any]:
    """Return the list of rows in the content of a JSON file.

    If the content is an object, its rows are the only list of objects in it (``{"accuracy": 0.5,
    "results": [...]}``; ``field`` chooses one of several lists) or, without such a list, its
    values, with the keys as ``id`` (``{"1": {...}, "2": {...}}``).
    """
    if isinstance(found, list):
        return found
    fields = found if isinstance(found, dict) else {}
    lists: dict[str, list[Any]] = {
        name: value
        for name, value in fields.items()
        if isinstance(value, list) and any(isinstance(item, dict) for item in value)
    }
    if field is not None:
        if field not in lists:
            names = ", ".join(lists) or "none"
            raise ValueError(f"{path}: {field!r} is no list of objects; there is {names:.80}.")
        return lists[field]
    for name in ("data_list", "qa_pairs"):  # keys of MMEngine and of published benchmarks
        if isinstance(fields.get(name), list):
            return list(fields[name])
    if len(lists) == 1:
        return next(iter(lists.values()))
    if lists:
        raise ValueError(
            f"{path}: several lists of objects ({', '.join(lists):.80}); name that of the answers "
            "with --list (`score`, `decode`), or write it to a file of its own. `mm-numeric "
            "prepare` converts other formats, such as COCO."
        )
    rows = list(fields.values())
    if rows and all(isinstance(row, dict) for row in rows) and set.intersection(*map(set, rows)):
        return [{"id": name, **row} for name, row in fields.items()]
    keys = f", found {', '.join(fields):.60}" if fields else ""
    raise ValueError(
        f"{path}: expected a list of rows, or an object with one list of rows{keys}. `mm-numeric "
        "prepare` converts other formats, such as COCO."
    )


def matching_files(name: str) -> list[Path]:
    """Return the files that match a pattern such as ``train/*.jsonl``, or else the named file."""
    if glob.has_magic(name) and not Path(name).exists():
        return [Path(file) for file in sorted(glob.glob(name, recursive=True))]
    return [Path(name)]


def not_utf8(path: Path, error: UnicodeDecodeError) -> ValueError:
    """Return the ValueError for a text file in another encoding than UTF-8."""
    found = f"byte {error.object[error.start]:#x}, as in Latin-1"
    if error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        found = "it is UTF-16"
    elif b"\0" in error.object:
        found = "it is not a text file"
    excel = " (in Excel: CSV UTF-8)" if path.suffix in _DELIMITERS else ""
    return ValueError(f"{path}: not UTF-8 ({found}); save it as UTF-8{excel}.")


def _object(row: Any, where: str) -> tuple[str, dict[str, Any]] | ValueError:
    if isinstance(row, dict):
        return where, row
    hint = _LIST if isinstance(row, list) else ""
    return ValueError(f'{where}: expected an object {{"id": ...}}, found {row!r:.40}.{hint}')


def _csv_rows(
    text: str, path: Path, delimiter: str
) -> Iterator[tuple[str, dict[str, Any]] | ValueError]:
    csv.field_size_limit(max(_LONGEST_FIELD, csv.field_size_limit()))  # process-wide setting
    lines = io.StringIO(text)
    header = text.partition("\n")[0][:_LONGEST_FIELD]

    def count_columns(own: str) -> int:
        return len(next(csv.reader([header], delimiter=own)))

    delimiter = max((delimiter, *";\t,"), key=count_columns)  # the first of equal counts
    reader = csv.DictReader(lines, restkey="(more)", restval=None, delimiter=delimiter)
    try:
        names = reader.fieldnames or []
        # Spreadsheets write empty names after the last column.
        twice = [name for i, name in enumerate(names) if name and name in names[:i]]
        if twice:
            yield ValueError(
                f"{path}, line 1: the header has {twice[0]!r:.60} twice; rename or delete a column."
            )
            return
        for record in reader:
            where = f"{path}, line {reader.line_num}"
            if "(more)" in record or None in record.values():
                yield ValueError(
                    f"{where}: expected {len(names)} fields ({', '.join(names)}) as in the header."
                )
            else:
                yield where, dict(record)
    except csv.Error as error:
        yield ValueError(f"{path}, line {reader.line_num + 1}: not CSV ({error}).")


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_disk_full(error: BaseException) -> bool:
    """Return True if an error means that a file could not be written completely."""
    if isinstance(error, ValueError):  # has a message of its own
        return False
    if isinstance(error, OSError):
        return error.errno in _DISK_FULL
    # safetensors and torch.save raise errors of their own, without an errno.
    causes = "inline_container.cc", "iostream error", *map(os.strerror, _DISK_FULL)
    return any(cause in str(error) for cause in causes)


def disk_full_message(error: BaseException, rest: str, folder: Path | None = None) -> str:
    """Return a message that names the file and says what to do after freeing some space.

    ``error`` is one for which ``is_disk_full`` is True. If it does not name the file, the message
    names ``folder``.
    """
    unknown = "a file" if folder is None else f"{folder}: a file"
    file = getattr(error, "filename", None) or unknown
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
    return f"{file} could not be written completely ({reason}); free some space and {rest}."


_MEMORY_FULL = (
    *("can't allocate memory", "Cannot allocate memory", "out of memory", "bad_alloc"),  # torch
    *("failed to map segment", "can't start new thread", "killed by signal: Killed"),
    "out of shared memory",
)


def is_memory_full(error: BaseException) -> bool:
    """Return True if an error means that there was not enough memory, here or on a device."""
    if isinstance(error, ValueError):  # has a message of its own
        return False
    is_general = isinstance(error, RuntimeError | OSError | ImportError)
    return isinstance(error, MemoryError) or (
        is_general and any(cause in str(error) for cause in _MEMORY_FULL)
    )


def memory_full_message(error: BaseException) -> str:
    """Return the message for an error for which ``is_memory_full`` is True."""
    reason = " ".join((str(error) or type(error).__name__).split())[:200]
    return (
        f"there is not enough memory ({reason}); use a smaller model, batch size or file, or allow "
        "the process more memory (ulimit -v); finished work is kept."
    )


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_file(path) as file:
        file.write(text.encode())


@contextmanager
def stored_content(path: Path, advice: str = "restore it from a copy") -> Iterator[None]:
    """Return a context that uses the content of a file; raise ValueError if it is damaged.

    A file that was changed by hand or copied in part may have content of any type.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        reason = f"not UTF-8, {error.reason} at byte {error.start}"
        raise ValueError(f"{path}: {reason}; {advice}.") from error
    except (LookupError, TypeError, AttributeError, RecursionError, json.JSONDecodeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: damaged or of another version ({reason}); {advice}.") from error


def write_json(path: Path, value: Any, *, indent: int | None = None) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=indent) + "\n")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 checksum of a file, in hexadecimal digits."""
    require_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """Read a JSON file; if it is missing or invalid, raise a ValueError that names the file."""
    try:
        require_file(path)
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise ValueError(f"{path}: there is no such file.") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from error
    except ValueError as error:
        raise ValueError(f"{path}: not valid or not complete JSON ({error}).") from error
    except RecursionError as error:
        raise ValueError(f"{path}: not readable JSON (nested too deep).") from error


def parse_xml(content: str | bytes) -> Element:
    """Parse XML without a document type.

    A document type may define entities, which read other files or expand to any length. The parser
    detects a document type in any encoding of the file. Raises ValueError if the XML is invalid or
    truncated, or has a document type.
    """

    def reject(*_: object) -> None:
        raise ValueError("the XML has a document type (<!DOCTYPE ...>); remove it")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = reject
    try:
        parser.Parse(content, True)
        return fromstring(content)
    except (expat.ExpatError, ParseError) as error:
        raise ValueError(f"invalid or truncated XML ({error})") from error


UNPACKED_LIMIT = "MM_NUMERIC_MAX_UNPACKED"
"""Environment variable with the maximum unpacked size of an archive in MiB."""

DEFAULT_LIMIT_MIB = 256

MAX_FILES = 1_000_000
"""Maximum number of files that are read from a zip archive."""

MAX_RATIO = 200
"""Maximum unpacked size of an archive as a multiple of its packed size, if it is not small."""

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
    """Yield the name and content of each file of a zip archive with one of the ``endings``.

    ``endings``, such as ``.txt``, are in lower case. Hidden files are left out. If the files exceed
    a limit (their number, their size, or their size as a multiple of the archive's), none of them
    is unpacked. ``order`` returns the sort key of a name; None: alphabetical.
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
    """Return True if a file has one of these endings and is not hidden, such as macOS's ._1.txt."""
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

    All lines of a packed file together may be as large as the limit or, if this is more,
    ``MAX_RATIO`` times the packed size, because only one line is in memory at a time.
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
