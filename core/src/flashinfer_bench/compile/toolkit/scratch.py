"""Folders for what belongs to one process: removed with it, even if it is killed.

A process owns one folder below the cache, and holds a lock as long as it lives. Whoever needs a
folder first removes those whose lock nobody holds any more.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Optional

import filelock

from flashinfer_bench.compile.toolkit.cache import cache_folder
from flashinfer_bench.compile.toolkit.locks import try_lock
from flashinfer_bench.errors import StorageError

_ATTEMPTS = 5
_TOKEN = re.compile(r"\d+-[0-9a-f]{32}")


class _Owned:
    """The folder of this process, with the lock that shows that it is in use."""

    def __init__(self, folder: Path, lock: filelock.BaseFileLock) -> None:
        self.folder = folder
        self.lock = lock
        self.pid = os.getpid()

    def usable(self) -> bool:
        # A forked child must not use its parent's, which goes away with the parent.
        return self.pid == os.getpid() and self.folder.is_dir()

    def remove(self) -> None:
        if self.pid != os.getpid():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        Path(self.lock.lock_file).unlink(missing_ok=True)
        self.lock.release()


_owned: dict[Path, _Owned] = {}
# A forked child keeps its parent's lock objects: collecting one could unlock the file for both.
_inherited: list[_Owned] = []
_guard = threading.Lock()
_given: Optional[Path] = None


def _renew_guard() -> None:
    global _guard
    _guard = threading.Lock()


if hasattr(os, "register_at_fork"):  # a thread of the parent may hold it, and is not in the child
    os.register_at_fork(after_in_child=_renew_guard)


def use_scratch(folder: Path) -> None:
    """Have this process make its folders in `folder`, which its owner removes after the process.

    That saves the locks, and the look around for what other processes have left.

    Parameters
    ----------
    folder : Path
        An existing folder that no other process uses.
    """
    global _given
    _given = folder


def scratch_folder(prefix: str) -> Path:
    """Make a new, empty folder that goes away with this process at the latest.

    Parameters
    ----------
    prefix : str
        What its name begins with.

    Returns
    -------
    Path
        The folder. Remove it as soon as it is no longer needed.

    Raises
    ------
    StorageError
        If the cache folder cannot be written.
    """
    base = _given or cache_folder("scratch")
    try:
        if _given is not None:
            return Path(tempfile.mkdtemp(prefix=f"{prefix[:100]}-", dir=_given))
        with _guard:
            owned = _owned.get(base)
            if owned is None or not owned.usable():
                owned = _renew(base, owned)
        return Path(tempfile.mkdtemp(prefix=f"{prefix[:100]}-", dir=owned.folder))
    except OSError as error:
        raise StorageError(
            f"{base}: cannot be written: {error}", hint="Set FIB_CACHE_PATH to a writable folder."
        ) from error


def _renew(base: Path, old: Optional[_Owned]) -> _Owned:
    if old is not None:
        _inherited.append(old)
    _owned[base] = _claim(base)
    return _owned[base]


def _claim(base: Path) -> _Owned:
    base.mkdir(parents=True, exist_ok=True)
    _sweep(base)
    for _ in range(_ATTEMPTS):
        token = f"{os.getpid()}-{uuid.uuid4().hex}"
        lock = filelock.FileLock(base / f"{token}.lock", timeout=0)
        try:
            lock.acquire()
        except filelock.Timeout:
            continue  # another process is just sweeping it away
        if Path(lock.lock_file).exists():
            folder = base / token
            folder.mkdir()
            owned = _Owned(folder, lock)
            atexit.register(owned.remove)
            return owned
        lock.release()  # another process swept it away between its creation and its locking
    raise OSError(f"no folder could be claimed in {_ATTEMPTS} attempts")


def _sweep(base: Path) -> None:
    for path in base.glob("*.lock"):
        if not _TOKEN.fullmatch(path.stem):  # the cache folder may be set to any folder
            continue
        try:
            lock = try_lock(path)
        except OSError:
            continue
        if lock is None:
            continue  # its owner lives, or another process is sweeping it
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
        path.unlink(missing_ok=True)
        lock.release()
