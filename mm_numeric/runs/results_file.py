"""Read and write results.json: the results of one predictions file, with a section per protocol.

version             version of this format
predictions         path of the predictions file
predictions_sha256  checksum of that file; when the file changes, the sections of other protocols
                    are removed
protocols           name of each protocol -> its section; ``task`` is the scorer of the task itself

A section has
    metrics   name -> ``value``, ``low`` and ``high`` (ends of the 95 % interval, or null), and
              ``label``, ``unit`` and ``higher_is_better``; the main metric is first
    rules     names of metrics -> how they are computed: thresholds, matching, unparseable answers.
              If only a part of some texts was read as the answer, ``answer`` has the number of
              these rows for each way to choose the part, such as ``after the thoughts``
    rows      number of scored rows
    rows_due  number of rows in the data, or null if unknown; if it is above ``rows``, answers are
              missing
    guesses   kind of guess, such as a constant answer -> name of a metric -> value of the guess
and, if they are known, ``task``, ``task_version``, ``truth``, ``groups``, ``counts``, ``covered``,
``drawn``, ``calibration``, ``failures`` (reason -> number of answers), ``labels`` (a list with the
``metrics`` of each label) and ``buckets`` (``buckets.KIND.NAME`` has ``metrics``). The metrics in
``labels`` and ``buckets`` have only a ``value``.

summary.json of a comparison has the same version, and its values also have ``value``, ``low`` and
``high``. results.json and scores.jsonl belong to predictions.jsonl, results.median.json and
scores.median.jsonl to predictions.median.jsonl, and NAME.results.json and NAME.scores.jsonl to any
other file NAME. Protocols other than ``task`` have their scores in another file, such as
scores.icdar2015.jsonl.
"""

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mm_numeric.io.atomic_files import LockedError, locked
from mm_numeric.io.files import read_json, sha256_of, stored_content, write_json
from mm_numeric.io.log import Waiting, logger
from mm_numeric.runs.folder import PREDICTIONS, RESULTS, SCORES, decoded_name

VERSION = 1
"""Version of results.json and summary.json."""

TASK = "task"
"""Name of the section of the task's own scorer."""

SCORE_AGAIN = "delete it and score again"
_LOCK_WAIT_S = 60.0

ProtocolResults = dict[str, Any]
"""The results under one protocol."""

_STEM = PREDICTIONS.partition(".")[0]
_DECODED = re.compile(rf"{_STEM}\.(\w+)\.jsonl")


def results_path(predictions: Path, folder: Path | None = None) -> Path:
    """Return the path of the results of a predictions file, by default in its folder."""
    return _named(predictions, folder, RESULTS)


def scores_path(predictions: Path, protocol: str = TASK, folder: Path | None = None) -> Path:
    """Return the path of the scored rows of a predictions file, by default in its folder."""
    path = _named(predictions, folder, SCORES)
    return path if protocol == TASK else path.with_name(f"{path.stem}.{protocol}{path.suffix}")


def _named(predictions: Path, folder: Path | None, kind: str) -> Path:
    name, decoded = predictions.name, _DECODED.fullmatch(predictions.name)
    own = f"{name}.{kind}"
    if name == PREDICTIONS:
        own = kind
    elif decoded:
        own = decoded_name(kind, decoded[1])
    return (folder or predictions.parent) / own


def read_sections(path: Path, advice: str = SCORE_AGAIN) -> dict[str, ProtocolResults]:
    """Return the sections of a results.json by protocol, with the protocol ``task`` first.

    ``advice`` ends the error message if the file is damaged or has another version.
    """
    sections = _read(path, advice)["protocols"]
    return {name: sections[name] for name in sorted(sections, key=lambda name: name != TASK)}


def _read(path: Path, advice: str) -> dict[str, Any]:
    found = read_json(path)
    check_version(found, path, advice)
    with stored_content(path, advice):
        for section in found["protocols"].values():
            for metric in section["metrics"].values():
                _ = metric["value"], metric["label"]
            _ = section["rows"], section["rows_due"], section["rules"], section["guesses"]
    return dict(found)


def check_version(found: Any, path: Path, advice: str) -> None:
    """Raise ValueError if the content of results.json or summary.json has another version."""
    version = found.get("version") if isinstance(found, dict) else None
    if version != VERSION:
        was = "no version" if version is None else f"the version {version!r:.20}"
        raise ValueError(
            f"{path}: it has {was} of the format, and this mm-numeric reads version {VERSION}; "
            f"{advice}."
        )


def is_partial(rows: int, due: int | None) -> bool:
    """Return True if fewer than ``due`` rows were answered; False if ``due`` is None (unknown)."""
    return due is not None and rows < due


def rows_text(rows: int, due: int | None) -> str:
    """Format a number of rows: ``60 rows``, or ``7 of 60 rows`` if answers are missing."""
    of = f" of {due:,}" if is_partial(rows, due) else ""
    return f"{rows:,}{of} row{'s' if max(rows, due or 0) > 1 else ''}"


class PartialError(ValueError):
    """Raised if answers are missing. ``counts`` are the numbers of answered and of all rows."""

    def __init__(self, counts: tuple[int, int], cure: str) -> None:
        super().__init__(f"{rows_text(*counts)}: {cure}, or add --partial.")
        self.counts = counts


def check_complete(rows: int, due: int | None, cure: str, *, partial: bool) -> None:
    """Raise PartialError if fewer than ``due`` rows were answered; with ``partial``, only warn.

    ``cure`` is the part of the error message with the file and the remedy, such as "p.jsonl: answer
    the others".
    """
    if due is None or not is_partial(rows, due):
        return
    if not partial:
        raise PartialError((rows, due), cure)
    logger.warning("%s: the results are for these rows only.", rows_text(rows, due))


def write_section(
    predictions: Path, protocol: str, section: Mapping[str, Any], folder: Path | None = None
) -> Path:
    """Write the section of a protocol to the results of a predictions file; return their path.

    Sections of other protocols are kept if the predictions file has not changed since.
    """
    path, digest = results_path(predictions, folder), _digest(predictions)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        kept: dict[str, ProtocolResults] = {}
        if path.is_file():
            found = _read(path, SCORE_AGAIN)
            kept = {name: own for name, own in found["protocols"].items() if name != protocol}
            if kept and found.get("predictions_sha256") != digest:
                logger.warning(
                    "%s: the results of %s are removed, because they do not belong to the present "
                    "answers in %s; score these with --protocol.",
                    *(path, ", ".join(kept), predictions),
                )
                kept = {}
        head = {"version": VERSION, "predictions": str(predictions), "predictions_sha256": digest}
        write_json(path, {**head, "protocols": {**kept, protocol: dict(section)}}, indent=1)
    return path


def is_scored(predictions: Path) -> bool:
    """Return True if the results have the scores of the task for the answers in a file."""
    path = results_path(predictions)
    if not path.is_file():
        return False
    found = _read(path, SCORE_AGAIN)
    return TASK in found["protocols"] and found.get("predictions_sha256") == _digest(predictions)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a results file; wait up to a minute for other processes, which lock it only briefly."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    waiting = Waiting(f"another process that uses {path}")
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(path, "file"))
                break
            except LockedError:
                if time.monotonic() > deadline:
                    raise
                waiting.check()
                time.sleep(0.1)
        yield


def _digest(predictions: Path) -> str:
    """Return a checksum of a predictions file, or of the names and contents of a folder's files."""
    if predictions.is_file():
        return sha256_of(predictions)
    files = sorted(path for path in predictions.rglob("*") if path.is_file())
    lines = [f"{path.relative_to(predictions).as_posix()} {sha256_of(path)}\n" for path in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
