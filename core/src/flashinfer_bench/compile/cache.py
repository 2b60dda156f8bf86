"""Cached builds, made atomically and once across all processes; and per-process scratch folders."""

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
from flashinfer_bench.errors import StorageError

logger = logging.getLogger(__name__)

COMPLETE = ".complete"
"""Name of the empty file that marks a complete build folder."""

PARTIAL = ".partial-"
"""Separator between a folder's name and the suffix of its copies being created or removed."""

MARKER = ".fib-builds"
"""Name of the empty file that marks a folder of builds; only marked folders are pruned."""

LOCKS = "locks"
"""Name of the cache folder that holds the locks of all other folders; hidden from solutions."""

ToolGuard = Callable[[Path, Sequence[Path]], AbstractContextManager[Optional[Callable[[], None]]]]
"""Called with a tool's working directory and the extra paths that it may read; returns a context
manager that yields the function to call in the tool's process before exec."""

_overlay: Optional[Path] = None
_scratch: Optional[Path] = None
_guard: ToolGuard = lambda cwd, readable: nullcontext()  # noqa: E731 - typed by the annotation
# Scratch folders and their locks, by process and location. Entries are never dropped: if a forked
# child garbage-collected its parent's lock, it would unlock the file for both.
_claims: dict[tuple[int, Path], tuple[Path, filelock.BaseFileLock]] = {}


def use_overlay(folder: Path) -> None:
    """Make this process build into `folder` and treat the shared cache as read-only.

    For processes that run untrusted code, which must not change what other processes load.

    Parameters
    ----------
    folder : Path
        Created on demand.
    """
    global _overlay
    _overlay = folder


def use_scratch(folder: Path) -> None:
    """Make `scratch_folder` use `folder`, which its owner removes after this process ends.

    This avoids the locks and the search for leftovers of other processes.

    Parameters
    ----------
    folder : Path
        An existing folder that no other process uses.
    """
    global _scratch
    _scratch = folder


def guard_tools(guard: ToolGuard) -> None:
    """Apply `guard` to every tool that this process runs, for example to drop file access rights.

    Parameters
    ----------
    guard : callable
        See `ToolGuard`. The function it yields runs between fork and exec: it must not take a lock.
    """
    global _guard
    _guard = guard


def tool_guard() -> ToolGuard:
    """Return the guard set by `guard_tools`; code that runs a compiler must use it."""
    return _guard


def own_place(path: Path) -> Path:
    """Return where this process may write the content of `path` in the cache."""
    cache = env.cache_path()
    if _overlay is None or cache not in path.parents or _overlay in path.parents:
        return path
    return _overlay / path.relative_to(cache)


def cache_folder(name: str) -> Path:
    """Return the folder for one builder or purpose in ``FIB_CACHE_PATH``; it may not exist yet."""
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
    """Fill `folder` by calling `produce`, unless it is complete already.

    `produce` works in a temporary sibling folder, which is renamed only at the end. A build that is
    killed or runs out of disk space therefore leaves nothing that looks like a result.

    Parameters
    ----------
    folder : Path
        Where to put the result; name it after a `content_digest`.
    produce : callable
        Called with an empty folder to fill, at most once across all processes; results must not
        contain that folder's path. Exceptions propagate, and the next caller retries.
    sound : callable, optional
        ``sound(folder)`` returns whether the existing content can be used; content that cannot is
        replaced. Default: `is_complete`.

    Returns
    -------
    Path
        The complete `folder`, or its counterpart in the overlay; see `use_overlay`.

    Raises
    ------
    StorageError
        If the folder cannot be created or renamed.
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
    """Return the lock file to hold while `folder` is filled or removed.

    Locks of the shared cache live in one folder, because whoever can open a lock can hold it.
    """
    base = env.cache_path()
    parent = folder.parent
    return (base / LOCKS / parent.name if parent.parent == base else parent) / f"{folder.name}.lock"


def _remove_if_dead(left: Path, mine: Path) -> None:
    """Remove leftovers of killed builds: those of `mine`, and any whose lock is free."""
    folder = left.with_name(left.name.partition(PARTIAL)[0])
    if folder == mine:
        shutil.rmtree(left, ignore_errors=True)
    elif (lock := try_lock(lock_of(folder))) is not None:
        shutil.rmtree(left, ignore_errors=True)
        lock.release()


def _beside(folder: Path) -> Path:
    """Make an empty sibling folder, to be renamed to `folder`, with the default permissions.

    ``tempfile`` would make it private to one user, but caches are shared.
    """
    made = folder.with_name(f"{folder.name}{PARTIAL}{uuid.uuid4().hex[:12]}")
    made.mkdir()
    return made


def _publish(working: Path, folder: Path) -> None:
    try:
        (working / COMPLETE).touch()
        remove_result(folder)  # incomplete or damaged
        os.replace(working, folder)  # noqa: PTH105 - os.replace makes clear that it is a folder
    except OSError as error:
        raise StorageError(f"{folder}: the build cannot be stored: {error}") from error


def remove_result(folder: Path) -> None:
    """Remove `folder` atomically, so that no reader finds half of it. The caller holds its lock.

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
def build_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path` for the duration of a ``with`` block.

    The operating system releases the lock when its holder dies for any reason; a crash leaves an
    empty, unlocked file. The holder may delete the file; waiting processes then compete for a new
    one.

    Parameters
    ----------
    path : Path
        The lock file; missing parent folders are created. Its file system must support locks.

    Raises
    ------
    StorageError
        If the file cannot be created.
    """
    lock = filelock.FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            logger.info("waiting for the build that holds %s", path)
            lock.acquire()
    except OSError as error:
        raise StorageError(f"{path}: cannot be locked: {error}") from error
    try:
        yield
    finally:
        lock.release()


def try_lock(path: Path) -> Optional[filelock.BaseFileLock]:
    """Return an acquired lock on `path`, which the caller must release; None if it is taken.

    Raises
    ------
    OSError
        If the file cannot be opened or created.
    """
    lock = filelock.FileLock(path, timeout=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire()
    except filelock.Timeout:
        return None
    return lock


def scratch_folder(prefix: str) -> Path:
    """Create an empty folder that is removed at the latest when this process ends.

    Each process owns one folder below the cache and holds its lock for its lifetime. The first call
    in a process removes folders whose lock is free.

    Parameters
    ----------
    prefix : str
        Prefix of the folder's name.

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
        with suppress(OSError):  # owned by another user
            # FIB_CACHE_PATH may point to any folder. A held lock means a live owner.
            lock = try_lock(left) if is_scratch_name(left.stem) else None
            if lock is not None:
                _remove_scratch(base / left.stem, lock)
    lock = None
    while lock is None:  # another process may remove it before it is locked
        folder = base / f"{os.getpid()}-{uuid.uuid4().hex}"
        lock = try_lock(lock_of(folder))
    folder.mkdir()
    _claims[owner] = (folder, lock)
    atexit.register(_remove_scratch, folder, lock, os.getpid())
    return folder


def is_scratch_name(name: str) -> bool:
    """Return whether a name in ``scratch`` has a process's form: ``<pid>-<32 hex digits>``."""
    return re.fullmatch(r"\d+-[0-9a-f]{32}", name) is not None


def _remove_scratch(folder: Path, lock: filelock.BaseFileLock, owner: Optional[int] = None) -> None:
    if owner in (None, os.getpid()):
        shutil.rmtree(folder, ignore_errors=True)
        lock_of(folder).unlink(missing_ok=True)
        lock.release()
