"""Locks that keep two processes, or two threads, from building the same thing at once."""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Optional

import filelock

from flashinfer_bench.errors import BuildError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PATIENCE_S = 0.2

logger = logging.getLogger(__name__)


@contextmanager
def build_lock(path: Path, *, timeout_s: Optional[float] = None) -> Iterator[None]:
    """Hold the lock file `path` for the duration of a ``with`` block.

    The operating system drops the lock when its holder dies, however that happens: what is left on
    disk after a crash is an empty file that locks nothing. Whoever holds the lock may remove the
    file; those who wait for it then take turns with a new one.

    Parameters
    ----------
    path : Path
        The lock file; missing folders are made. It must not be on a file system without locks.
    timeout_s : float, optional
        Seconds to wait; default: for ever.

    Raises
    ------
    BuildError
        If the lock cannot be had in time.
    StorageError
        If the file cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _acquire(path, timeout_s)
    except filelock.Timeout:
        raise BuildError(
            f"another process has held {path} for more than {timeout_s:g} s",
            hint="Wait for that build, or end the process that holds the lock.",
        ) from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be locked: {error}") from error
    try:
        yield
    finally:
        lock.release()


def try_lock(path: Path) -> Optional[filelock.BaseFileLock]:
    """Return a lock on the file `path` that the caller must release, or None if somebody has it.

    Raises
    ------
    OSError
        If the file cannot be opened.
    """
    lock = filelock.FileLock(path, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        return None
    if _is_current(lock, path):
        return lock
    lock.release()
    return None


def _acquire(path: Path, timeout_s: Optional[float]) -> filelock.BaseFileLock:
    started = time.monotonic()
    while True:
        lock = filelock.FileLock(path)
        left = None if timeout_s is None else timeout_s - (time.monotonic() - started)
        _wait(lock, path, left)
        if _is_current(lock, path):
            return lock
        lock.release()


def _wait(lock: filelock.BaseFileLock, path: Path, timeout_s: Optional[float]) -> None:
    timeout_s = None if timeout_s is None else max(0.0, timeout_s)
    patience = _PATIENCE_S if timeout_s is None else min(_PATIENCE_S, timeout_s)
    try:
        lock.acquire(timeout=patience)
    except filelock.Timeout:
        logger.info("waiting for the build that holds %s", path)
        lock.acquire(timeout=-1 if timeout_s is None else timeout_s - patience)


def _is_current(lock: filelock.BaseFileLock, path: Path) -> bool:
    """Return whether `lock` is on the file that has that name now.

    Its last holder may have removed the file while we waited for it. Then others lock another file
    of that name, and ours keeps nobody out.
    """
    descriptor = getattr(getattr(lock, "_context", None), "lock_file_fd", None)
    if not isinstance(descriptor, int):  # newer releases of filelock look for themselves
        return True
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
