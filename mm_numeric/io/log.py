"""The logger of this library, its output on stderr, results on stdout, and progress bars.

Each message is one line with the prefix ``mm-numeric:``. Only rank 0 writes messages, except those
with ``extra=ALL_RANKS``, which every rank writes.

    logger.info("%d rows skipped", count)
    logger.error("%s", error, extra=ALL_RANKS)
    for batch in progress(batches, desc="scoring", unit="batch"): ...
"""

import io
import logging
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from mm_numeric.io.escaping import terminal_text

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tqdm import tqdm

ALL_RANKS = {"all_ranks": True}
"""Value for the argument ``extra`` of a log call, to write the message on every rank."""

NO_PREFIX = {"prefix": ""}
"""Value for the argument ``extra`` of a log call, to omit the prefix ``mm-numeric:``."""

ONCE = {"once": True}
"""Value for ``extra`` of a log call below a warning, to write the message once in a comparison."""

T = TypeVar("T")

WAITING_S = 30.0
"""Seconds between two messages of a ``Waiting``."""

_LINE_S = 10.0  # fewest seconds between two lines of a bar that is not in a terminal

_LIBRARIES = r"(?!transformers\.training_args$)(transformers|accelerate|peft|torch)\."

logger = logging.getLogger("mm_numeric")


def rank() -> int:
    """Return the rank of this process (environment variable RANK), 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def set_verbosity(*, verbose: bool = False, quiet: bool = False) -> None:
    """Set the level of the logger: INFO by default, DEBUG if verbose, ERROR if quiet."""
    logger.setLevel(logging.ERROR if quiet else logging.DEBUG if verbose else logging.INFO)


def shows_progress() -> bool:
    """Return True if progress bars are shown: on rank 0, in a terminal, and not with ``quiet``."""
    return rank() == 0 and logger.isEnabledFor(logging.INFO) and sys.stderr.isatty()


_stages: list[str] = []


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Return a context in which the titles of progress bars start with ``name``, such as 2/5."""
    _stages.append(name)
    try:
        yield
    finally:
        _stages.pop()


def in_stage(title: str) -> str:
    """Return the title of a progress bar with the present stage, such as ``2/5 training``."""
    return " ".join([*_stages[-1:], title])


def progress(
    iterable: Iterable[Any] | None = None,
    *,
    desc: str,
    unit: str,
    total: int | None = None,
    lines: bool = True,
) -> "tqdm[Any]":
    """Return a tqdm bar, which appears after one second in a terminal.

    Without a terminal, rank 0 logs a line after ten seconds, and then every ten seconds or, after
    ten minutes, less often; with ``lines=False``, it logs none. A quiet logger shows nothing.
    """
    from tqdm import tqdm  # not at import: the command line starts without it

    units = f" {unit}es" if unit.endswith("ch") else f" {unit}s"
    settings: dict[str, Any] = {"desc": in_stage(desc), "unit": units, "total": total}
    if not lines or shows_progress() or rank() or not logger.isEnabledFor(logging.INFO):
        return tqdm(iterable, **settings, delay=1, disable=not shows_progress())
    has_end = total is not None or hasattr(iterable, "__len__")
    of, left = (" of {total:,g}", ", {remaining} left") if has_end else ("", "")
    text = f"{{desc}}: {{n:,g}}{of}{units}{{postfix}}, {{elapsed}} so far{left}"
    file: Any = _Lines()
    # With miniters 0, tqdm needs no monitoring thread, which would notice slower iterations.
    own = {"file": file, "bar_format": text, "mininterval": 1, "miniters": 0, "leave": False}
    return type("Lines", (tqdm,), {"monitor_interval": 0})(iterable, **settings, **own)


class _Lines:
    """The file of a tqdm bar that is not in a terminal. It writes the bar as lines of the log."""

    def __init__(self) -> None:
        self.began = self.written = time.monotonic()

    def write(self, text: str) -> None:
        """Log a text, unless the last text was logged only a short time ago."""
        now = time.monotonic()
        if text.strip() and now - self.written >= max(_LINE_S, (now - self.began) / 60):
            self.written = now
            logger.info("%s", text.strip(), extra=NO_PREFIX)

    def flush(self) -> None:
        """Do nothing: the logger flushes its output itself."""


@contextmanager
def user_warnings_only() -> Iterator[None]:
    """Return a context in which FutureWarnings about calls between libraries are not shown.

    Users of the command line cannot change these calls; a verbose logger shows them. Other
    warnings, such as those about settings of ``trainer``, are shown.
    """
    with warnings.catch_warnings():
        if not logger.isEnabledFor(logging.DEBUG):
            warnings.filterwarnings("ignore", category=FutureWarning, module=_LIBRARIES)
        yield


@contextmanager
def without_repeats() -> Iterator[None]:
    """Return a context in which each warning, and message with ``extra=ONCE``, is written once."""
    logged = set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        can_repeat = record.levelno != logging.WARNING and "once" not in record.__dict__
        is_first = text not in logged
        logged.add(text)
        return can_repeat or is_first

    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)


class Waiting:
    """Logs every 30 seconds what this process waits for. The wait starts with the object."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.started = self.logged = time.monotonic()

    def check(self) -> None:
        """Log a message if there was none for 30 seconds; call this repeatedly while waiting."""
        now = time.monotonic()
        if now - self.logged >= WAITING_S:
            self.logged = now
            logger.info("waiting for %s (%.0f s so far)", self.text, now - self.started)

    def result(self, future: "Future[T]") -> T:
        """Return the result of a future, after waiting for it."""
        while True:
            try:
                return future.result(min(WAITING_S, 1.0))
            except TimeoutError:
                if future.done():  # it raised a TimeoutError itself, or ended just now
                    return future.result()
                self.check()


def show(text: object = "", *, end: str = "\n") -> None:
    """Print a text to stdout, above any progress bar, without escape sequences of a terminal."""
    _write(terminal_text(text) + end, sys.stdout)


def _write(text: str, file: TextIO) -> None:
    encoding = getattr(file, "encoding", None) or "utf-8"  # cp1252 for a pipe on Windows
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    tqdm = sys.modules.get("tqdm")
    if tqdm is None:
        file.write(text)
    else:
        tqdm.tqdm.write(text, file=file, end="")


class _StderrHandler(logging.Handler):
    """Log handler that writes to ``sys.stderr``, above any progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        _write(terminal_text(self.format(record)) + "\n", sys.stderr)


if not logger.handlers:
    _handler = _StderrHandler()
    _handler.setFormatter(
        logging.Formatter("%(prefix)s%(message)s", defaults={"prefix": "mm-numeric: "})
    )
    _handler.addFilter(lambda record: rank() == 0 or bool(record.__dict__.get("all_ranks")))
    logger.addHandler(_handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    # DeepSpeed writes this to stdout, before our output, whenever a machine has no GPU.
    logging.getLogger("DeepSpeed").addFilter(
        lambda record: "Setting accelerator to CPU" not in str(record.msg)
    )


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_format_unescaped, _warning_unescaped = logging.Handler.format, warnings.formatwarning


def escape_libraries() -> None:
    """Escape log messages, warnings and uncaught errors of all libraries for the terminal.

    For example, messages of transformers contain tensor names from a checkpoint. Colours are
    removed. If another library has replaced a hook for uncaught errors, its hook is kept.
    """
    logging.Handler.format = _format_escaped  # type: ignore[method-assign, assignment]
    warnings.formatwarning = _warning_escaped
    for module, name in ((sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook")):
        default = getattr(module, f"__{name}__")
        if getattr(module, name) is default:
            setattr(module, name, _escaped(default))


def _format_escaped(handler: logging.Handler, record: logging.LogRecord) -> str:
    text = _format_unescaped(handler, record)
    own = isinstance(handler, _StderrHandler)  # colour codes in our messages come from data
    return terminal_text(text if own else _COLOURS.sub("", text))


def _warning_escaped(*arguments: Any, **named: Any) -> str:
    return terminal_text(_warning_unescaped(*arguments, **named))


def _escaped(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook for uncaught errors that escapes the output of ``hook``."""

    def show_escaped(*arguments: Any) -> None:
        with redirect_stderr(io.StringIO()) as text:
            hook(*arguments)
        _write(terminal_text(text.getvalue()), sys.stderr)

    return show_escaped
