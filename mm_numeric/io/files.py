"""Read rows from JSONL, JSON, CSV and TSV files; read and write other small files."""

import codecs
import csv
import errno
import glob
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ParseError, fromstring
from xml.parsers import expat

from mm_numeric.io.archives import UnpackedSizeError, limited_lines, read_gzip, require_file
from mm_numeric.io.atomic_files import atomic_file

_DELIMITERS = {".csv": ",", ".tsv": "\t"}  # or ";", as German spreadsheets write
_LONGEST_FIELD = 16 << 20  # characters: of an image in base64; Python's own limit is 131,072
_LIST = " Name a file with a list of rows .json."


class _RepeatedKeyError(ValueError):
    """Raised for an object with two values of one key, of which Python would keep the last."""


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

    It is the whole content, the only list of objects in an object (``{"accuracy": 0.5, "results":
    [...]}``; ``field`` chooses one of several), or the values of an object, which get its keys as
    ``id`` (``{"1": {...}, "2": {...}}``).
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
    for name in ("data_list", "qa_pairs"):  # of MMEngine and of published benchmarks
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
    """Return the files of a name or of a pattern such as ``train/*.jsonl``, which may have none."""
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
    csv.field_size_limit(max(_LONGEST_FIELD, csv.field_size_limit()))  # of the whole process
    lines = io.StringIO(text)
    header = text.partition("\n")[0][:_LONGEST_FIELD]

    def count_columns(own: str) -> int:
        return len(next(csv.reader([header], delimiter=own)))

    delimiter = max((delimiter, *";\t,"), key=count_columns)  # of equal counts, the first
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

    ``error`` is one of which ``is_disk_full`` is True. If it does not name the file, ``folder`` is
    named.
    """
    unknown = "a file" if folder is None else f"{folder}: a file"
    file = getattr(error, "filename", None) or unknown
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
    return f"{file} could not be written completely ({reason}); free some space and {rest}."


_MEMORY_FULL = (
    *("can't allocate memory", "Cannot allocate memory", "out of memory", "bad_alloc"),  # of torch
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
    """Return the error message for an error of which ``is_memory_full`` is True."""
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

    A document type may define entities, which read other files or expand to any length. It is
    looked for by the parser, because its text depends on the encoding of the file. Raises
    ValueError if the XML is invalid or truncated, or has a document type.
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
