"""Errors of a training run, translated into one message."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from mm_numeric.run_folder import last_checkpoint

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StoppedError(Exception):
    """A run was asked to stop, and has saved a checkpoint; its text says how to go on."""


class EveryRankError(ValueError):
    """An error that is raised on all ranks; the command line reports it on rank 0 only."""


@contextmanager
def full_disk_as_ours(folder: Path) -> Iterator[None]:
    """Turn what is raised when a file cannot be written to its end into one sentence.

    Raises:
        ValueError: That says what to go on from.
    """
    try:
        yield
    except Exception as error:
        if not _is_full(error):
            raise
        checkpoint = last_checkpoint(folder)
        rest = f"{checkpoint} is whole: go on with --resume" if checkpoint else "start again"
        raise ValueError(
            f"{folder}: a file could not be written to its end, as on a disk that is full "
            f"({str(error).splitlines()[0]}); free some space, and {rest}."
        ) from error


def _is_full(error: Exception) -> bool:
    """Say whether a disk is full; safetensors and torch.save raise errors of their own."""
    if isinstance(error, ValueError):  # a sentence already
        return False
    if getattr(error, "errno", None) in _FULL:
        return True
    said = str(error)
    return "inline_container.cc" in said or any(os.strerror(number) in said for number in _FULL)


@contextmanager
def damaged_as_ours(checkpoint: str | Path) -> Iterator[None]:
    """Turn what is raised for a file of a checkpoint that is not whole into one sentence.

    A kill leaves none, as the last file of a checkpoint says that it is whole; a machine that loses
    its power, and a copy that was cut off, may.

    Raises:
        ValueError: That says what to do.
    """
    try:
        yield
    except Exception as error:
        said = str(error).splitlines()
        if not (isinstance(error, SafetensorError) or "PytorchStreamReader" in str(error)):
            raise
        raise ValueError(
            f"{checkpoint}: a file in it is damaged ({said[0]}); delete this checkpoint, and go on "
            "from the one before with --resume."
        ) from error


def own_sentence(error: ValueError) -> str:
    """Take the sentence out of what a DataLoader worker wraps in its traceback."""
    said = str(error).strip()
    if "in DataLoader worker process" not in said:
        return said
    return re.split(r"^[\w.]*Error: ", said, flags=re.MULTILINE)[-1]
