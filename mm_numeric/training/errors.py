"""Exceptions of a training run, and clear messages for a full disk."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mm_numeric.distributed.ranks import EveryRankError
from mm_numeric.io.files import disk_full_message, is_disk_full
from mm_numeric.runs.folder import last_checkpoint


class StoppedError(Exception):
    """Raised after a signal stopped the run and a checkpoint was saved."""

    def __init__(self, message: str, *, received: signal.Signals, resumable: bool) -> None:
        super().__init__(message)
        self.received, self.resumable = received, resumable


class NotFiniteError(EveryRankError):
    """Raised if a loss, gradient or weight is not finite, often due to a high learning rate."""


@contextmanager
def translate_disk_full(folder: Path) -> Iterator[None]:
    """Replace errors caused by a full disk with a ValueError that names the last checkpoint."""
    try:
        yield
    except Exception as error:
        if not is_disk_full(error):
            raise
        checkpoint = last_checkpoint(folder)
        rest = f"resume from {checkpoint} with --resume" if checkpoint else "start again"
        raise ValueError(disk_full_message(error, rest, folder)) from error


def worker_error_message(error: ValueError) -> str:
    """Return an error's message, without the traceback that a DataLoader worker puts into it."""
    message = str(error).strip()
    if "in DataLoader worker process" not in message:
        return message
    return re.split(r"^[\w.]*Error: ", message, flags=re.MULTILINE)[-1]
