"""Results of builds on disk: made once, whole or not at all, by whichever process comes first."""

from __future__ import annotations

import os
import shutil
import uuid
from typing import TYPE_CHECKING

from flashinfer_bench import env
from flashinfer_bench.compile.toolkit.locks import build_lock
from flashinfer_bench.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Optional

COMPLETE = ".complete"
"""Name of the empty file that marks a folder whose build went through."""


PARTIAL = ".partial-"
"""What follows a folder's name in those of the folders in which it is being made or removed."""

MARKER = ".fib-builds"
"""Name of the empty file that marks a folder in which builds are: others are never pruned."""


_overlay: Optional[Path] = None


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
    if sound(folder):
        return folder
    with build_lock(lock_of(folder)):
        if sound(folder):
            return folder
        working = _fresh_folder(folder)
        try:
            produce(working)
            _publish(working, folder)
        finally:
            shutil.rmtree(working, ignore_errors=True)
    return folder


def lock_of(folder: Path) -> Path:
    """Return the lock file that is held while `folder` is filled or removed."""
    return folder.with_name(f"{folder.name}.lock")


def _fresh_folder(folder: Path) -> Path:
    """Make an empty working folder; remove those that killed builds of the same thing left."""
    try:
        for left in folder.parent.glob(f"{folder.name}{PARTIAL}*"):
            shutil.rmtree(left, ignore_errors=True)
        (folder.parent / MARKER).touch()
        return _beside(folder)
    except OSError as error:
        raise StorageError(f"{folder.parent}: cannot be written: {error}") from error


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
