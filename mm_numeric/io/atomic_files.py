"""Write files and folders atomically, even while other processes write the same files.

No file is written through a symbolic link, because a link of another user could lead anywhere.
"""

import errno
import glob
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mm_numeric.io.log import logger

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""Errors of a file system that has no locks, such as some of NFS, Lustre and FUSE."""

_AS_IT_IS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags to open a path without following a link, and without waiting if it is a pipe."""


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Return a context that writes a new file, which replaces ``path`` at the end of the context.

    If an error is raised or the process is killed, the old file remains unchanged. Until the
    context ends, the new file is ``NAME.*.unfinished``. Such files of killed processes are deleted.
    """
    reject_link(path)
    unfinished = _unfinished(path)
    file = unfinished.open("xb")
    while not _is_kept(unfinished, file.fileno()):
        file.close()
        unfinished = _unfinished(path)
        file = unfinished.open("xb")
    try:
        with file:
            yield file
            file.flush()
            if sys.platform != "win32":  # before the lock is released
                unfinished.replace(path)
        if sys.platform == "win32":  # Windows cannot rename an open file
            unfinished.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Return a context that fills a new folder, which becomes ``path`` at the end of the context.

    If an error is raised, the new folder is deleted. Until the context ends, its name is
    ``NAME.*.unfinished``. Such folders of killed processes are deleted.
    """
    reject_link(path)
    unfinished = _unfinished(path)
    handle = _new_folder(unfinished)
    while not _is_kept(unfinished, handle):
        if handle is not None:
            os.close(handle)
        unfinished = _unfinished(path)
        handle = _new_folder(unfinished)
    try:
        yield unfinished
        unfinished.rename(path)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        if handle is not None:
            os.close(handle)
        shutil.rmtree(unfinished, ignore_errors=True)


def append_to(path: Path) -> IO[str]:
    """Open a text file to append to it."""
    reject_link(path)
    return open(
        path,
        "a",
        encoding="utf-8",
        opener=lambda name, flags: os.open(name, flags | _AS_IT_IS, 0o666),
    )


def reject_link(path: Path) -> None:
    """Raise ValueError if a file or folder that is to be written is a symbolic link."""
    if path.is_symlink():
        raise ValueError(
            f"{path}: a link to {os.readlink(path)}, and nothing is written through links; delete "
            "it, or choose another name."
        )


def reject_links(folder: Path) -> None:
    """Raise ValueError if a symbolic link in a folder or its subfolders leads out of the folder.

    Links within the folder, such as ``wandb/latest-run``, are allowed.
    """
    root = os.path.realpath(folder)
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                reject_link(path)


def _unfinished(path: Path) -> Path:
    """Return a temporary name for ``path``; delete the files that killed processes have left."""
    for left in path.parent.glob(f"{glob.escape(path.name)}.{'?' * 32}.unfinished"):
        _delete_abandoned(left)
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}.unfinished")


def _new_folder(path: Path) -> int | None:
    """Create a folder, and open it, so that it can be locked; None if it cannot be opened."""
    path.mkdir()
    if sys.platform == "win32":
        return None
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # another process has deleted it
        return None


def _is_kept(unfinished: Path, handle: int | None) -> bool:
    """Lock a new file or folder; return False if another process deletes it.

    Until it is locked, other processes that write the same path may consider it abandoned.
    """
    try:
        lock(handle)
    except BlockingIOError:
        return False
    except OSError:  # NFS cannot lock folders: leftovers are kept
        pass
    return unfinished.exists()


def _delete_abandoned(path: Path) -> None:
    """Delete a file or folder that no process has locked. Locks end with their process."""
    with suppress(OSError):  # it is locked, or another process has deleted or renamed it
        handle = os.open(path, os.O_RDONLY | _AS_IT_IS)
        try:
            is_abandoned = lock(handle)  # without locks, it may be in use, and is kept
            if is_abandoned and sys.platform != "win32":  # while the lock is held
                _delete(path)
        finally:
            os.close(handle)
        if is_abandoned and sys.platform == "win32":  # Windows cannot delete an open file
            _delete(path)


def _delete(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def open_lock(path: Path) -> int:
    """Open a file to lock it; create it if it is missing. Its content is not changed.

    Raises ValueError if the path is a link, which could lead anywhere, or no regular file.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a link" if path.is_symlink() else "not a regular file"
        raise ValueError(f"{path}: the lock is {kind}; delete it.")
    return os.open(path, os.O_RDWR | os.O_CREAT | _AS_IT_IS, 0o666)


def lock(handle: int | None) -> bool:
    """Lock an open file or, on Unix, folder; closing it releases the lock.

    Return False if its file system has no locks. Raises BlockingIOError if another process, or
    another handle of this process, has locked it.
    """
    if handle is None:
        return True
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except PermissionError as error:  # raised on Windows and by some network file systems
        raise BlockingIOError(error.errno, error.strerror) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def unlock(handle: int) -> None:
    """Release a lock, even if a process that was forked meanwhile keeps the file open."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_UN)


class LockedError(ValueError):
    """Raised if another process is using a folder or file."""


_reported_devices = set[int]()
"""File systems without locks for which a warning was logged."""


@contextmanager
def locked(path: Path, kind: str = "folder") -> Iterator[None]:
    """Lock a path inside the context. The lock is also released if the process is killed.

    If the file system has no locks, a warning is logged. ``kind`` (folder, file or run) is for the
    error message if another process has locked the path.
    """
    lock_file = _lock_file(path)
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_lock(lock_file), "rb") as file:
        try:
            is_locked = lock(file.fileno())
        except BlockingIOError:
            raise LockedError(
                f"{path}: another process is using this {kind}; wait, or choose another {kind}."
            ) from None
        except OSError as error:
            error.filename = str(lock_file)
            raise
        device = os.fstat(file.fileno()).st_dev
        if not is_locked and device not in _reported_devices:
            _reported_devices.add(device)
            logger.warning(
                "%s: the file system has no locks, so a second process that uses this %s is not "
                "noticed; make sure that there is none.",
                *(path, kind),
            )
        try:
            yield
        finally:
            if is_locked:
                unlock(file.fileno())


def has_locks(path: Path) -> bool:
    """Return True if the file system of ``path``, which the caller has ``locked``, has locks."""
    with os.fdopen(open_lock(_lock_file(path)), "rb") as file:
        try:
            return lock(file.fileno())
        except BlockingIOError:
            return True


def _lock_file(path: Path) -> Path:
    # Folders are resolved: "." has no name, and a link is another name of the same folder. A link
    # to a file is not resolved, because its lock would be elsewhere.
    target = path.resolve() if path.is_dir() else path.parent.resolve() / path.name
    return target.with_name(f".{target.name}.lock")
