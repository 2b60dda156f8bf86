"""Builds on disk: made once over all processes, whole or not at all; and folders of one process."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Optional

import filelock

from flashinfer_bench import env
from flashinfer_bench.errors import BuildError, StorageError

logger = logging.getLogger(__name__)

COMPLETE = ".complete"
"""Name of the empty file that marks a folder whose build went through."""

PARTIAL = ".partial-"
"""What follows a folder's name in those of the folders in which it is being made or removed."""

MARKER = ".fib-builds"
"""Name of the empty file that marks a folder in which builds are: others are never pruned."""

LOCKS = "locks"
"""Name of the folder, in the cache, for the locks of all others, which solutions do not see."""

ToolGuard = Callable[[Path, Sequence[Path]], AbstractContextManager[Optional[Callable[[], None]]]]
"""Called with the current folder of a tool, and what it may read besides that and the system's
files; lends what is called in its process before it."""

_overlay: Optional[Path] = None
_scratch: Optional[Path] = None
_guard: ToolGuard = lambda cwd, readable: nullcontext()  # noqa: E731 - of that type
# Scratch folders and their locks, by process and place. None is dropped: in a forked child,
# collecting a lock of its parent would unlock the file for both.
_claims: dict[tuple[int, Path], tuple[Path, filelock.BaseFileLock]] = {}


def use_overlay(folder: Path) -> None:
    """Have this process leave what it builds in `folder`, and only read the shared cache.

    For processes that run code which must not change what others load.

    Parameters
    ----------
    folder : Path
        It is made when it is needed.
    """
    global _overlay
    _overlay = folder


def use_scratch(folder: Path) -> None:
    """Have `scratch_folder` work in `folder`, which its owner removes after this process.

    That saves the locks, and the look around for what other processes have left.

    Parameters
    ----------
    folder : Path
        An existing folder that no other process uses.
    """
    global _scratch
    _scratch = folder


def guard_tools(guard: ToolGuard) -> None:
    """Have every tool that this process runs give up something first, as rights to files.

    Parameters
    ----------
    guard : callable
        See `ToolGuard`. What it lends runs between fork and exec: it must not need a lock.
    """
    global _guard
    _guard = guard


def tool_guard() -> ToolGuard:
    """Return what `guard_tools` was given last; whatever runs a compiler goes through it."""
    return _guard


def own_place(path: Path) -> Path:
    """Return where this process may write what belongs at `path` in the cache."""
    cache = env.cache_path()
    if _overlay is None or cache not in path.parents or _overlay in path.parents:
        return path
    return _overlay / path.relative_to(cache)


def cache_folder(name: str) -> Path:
    """Return one builder's (or purpose's) folder in ``FIB_CACHE_PATH``; it may not exist yet."""
    return env.cache_path() / name


def is_complete(folder: Path) -> bool:
    """Return whether `folder` holds a finished build that may be read."""
    try:
        return (folder / COMPLETE).is_file()
    except OSError:
        return False


def build_once(
    folder: Path,
    produce: Callable[[Path], None],
    *,
    sound: Callable[[Path], bool] = is_complete,
) -> Path:
    """Have `produce` fill `folder`, unless it or another process has done so before.

    `produce` works in a folder beside it that gets its final name only at the end. So a build that
    is killed, or runs out of disk space, leaves nothing that could be taken for a result.

    Parameters
    ----------
    folder : Path
        Where the result shall be; name it after a `content_digest`.
    produce : callable
        Called with an empty folder to fill, at most once over all processes; results must not
        contain that folder's path. What it raises is passed on, and the next caller tries again.
    sound : callable, optional
        Called with `folder`; says whether what is there can be used. Default: `is_complete`.
        What is not sound is replaced.

    Returns
    -------
    Path
        `folder`, complete; or the folder in its place, see `use_overlay`.

    Raises
    ------
    StorageError
        If the folder cannot be made or renamed.
    """
    if sound(folder):
        return folder
    folder = own_place(folder)
    with build_lock(lock_of(folder)):
        if sound(folder):
            return folder
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            for left in folder.parent.glob(f"*{PARTIAL}*"):
                _remove_if_dead(left, folder)
            (folder.parent / MARKER).touch()
            working = _beside(folder)
        except OSError as error:
            raise StorageError(f"{folder.parent}: cannot be written: {error}") from error
        try:
            produce(working)
            _publish(working, folder)
        finally:
            shutil.rmtree(working, ignore_errors=True)
    return folder


def lock_of(folder: Path) -> Path:
    """Return the lock file that is held while `folder` is filled or removed.

    Those of the cache that all share are in one folder: who can open a lock can hold it.
    """
    base = env.cache_path()
    parent = folder.parent
    return (base / LOCKS / parent.name if parent.parent == base else parent) / f"{folder.name}.lock"


def _remove_if_dead(left: Path, mine: Path) -> None:
    """Remove what a build has left that was killed: of `mine`, and where nobody holds the lock."""
    folder = left.with_name(left.name.partition(PARTIAL)[0])
    lock = None if folder == mine else try_lock(lock_of(folder))
    if folder == mine or lock is not None:
        shutil.rmtree(left, ignore_errors=True)
    if lock is not None:
        lock.release()


def _beside(folder: Path) -> Path:
    """Make an empty folder beside `folder`, which may become it: as open to others as any is.

    Those of ``tempfile`` are for one user alone, and caches are shared.
    """
    made = folder.with_name(f"{folder.name}{PARTIAL}{uuid.uuid4().hex[:12]}")
    made.mkdir()
    return made


def _publish(working: Path, folder: Path) -> None:
    try:
        (working / COMPLETE).touch()
        remove_result(folder)  # it has no mark, or is damaged
        os.replace(working, folder)  # noqa: PTH105 - Path.replace would hide that it is a folder
    except OSError as error:
        raise StorageError(f"{folder}: the build cannot be stored: {error}") from error


def remove_result(folder: Path) -> None:
    """Take `folder` away at once: nobody shall find half of it. Hold its lock meanwhile.

    Raises
    ------
    OSError
        If it cannot be renamed.
    """
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        doomed = _beside(folder)
        os.replace(folder, doomed)  # noqa: PTH105 - as above
        shutil.rmtree(doomed, ignore_errors=True)


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
    lock = filelock.FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            logger.info("waiting for the build that holds %s", path)
            lock.acquire(timeout=-1 if timeout_s is None else timeout_s)
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
        If the file cannot be opened or made.
    """
    lock = filelock.FileLock(path, timeout=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire()
    except filelock.Timeout:
        return None
    return lock


def scratch_folder(prefix: str) -> Path:
    """Make a new, empty folder that goes away with this process at the latest.

    A process owns one folder below the cache, and holds a lock as long as it lives. Whoever needs a
    folder first removes those whose lock nobody holds any more.

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
    base = _scratch or cache_folder("scratch")
    try:
        own = _scratch or _claimed(base)
        return Path(tempfile.mkdtemp(prefix=f"{prefix[:100]}-", dir=own))
    except OSError as error:
        raise StorageError(
            f"{base}: cannot be written: {error}", hint="Set FIB_CACHE_PATH to a writable folder."
        ) from error


def _claimed(base: Path) -> Path:
    """Return this process's folder in `base`; a forked child does not use its parent's."""
    owner = (os.getpid(), base)
    if owner in _claims and _claims[owner][0].is_dir():
        return _claims[owner][0]
    base.mkdir(parents=True, exist_ok=True)
    for left in lock_of(base / "any").parent.glob("*.lock"):
        with suppress(OSError):  # somebody else's
            # The cache folder may be set to any folder. Who holds a lock lives, or is at it.
            lock = try_lock(left) if is_scratch_name(left.stem) else None
            if lock is not None:
                _remove_scratch(base / left.stem, lock)
    lock = None
    while lock is None:  # unless another process sweeps it away between being made and locked
        folder = base / f"{os.getpid()}-{uuid.uuid4().hex}"
        lock = try_lock(lock_of(folder))
    folder.mkdir()
    _claims[owner] = (folder, lock)
    atexit.register(_remove_scratch, folder, lock, os.getpid())
    return folder


def is_scratch_name(name: str) -> bool:
    """Return whether a folder in ``scratch`` may belong to a process: ``<pid>-<32 hex digits>``."""
    return re.fullmatch(r"\d+-[0-9a-f]{32}", name) is not None


def _remove_scratch(folder: Path, lock: filelock.BaseFileLock, owner: Optional[int] = None) -> None:
    if owner in (None, os.getpid()):
        shutil.rmtree(folder, ignore_errors=True)
        lock_of(folder).unlink(missing_ok=True)
        lock.release()
