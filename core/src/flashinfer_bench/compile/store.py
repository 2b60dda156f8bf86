"""What is in the cache folder: listed, and pruned without disturbing those who use it."""

from __future__ import annotations

import calendar
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from flashinfer_bench import env
from flashinfer_bench.compile.builder import SOURCES
from flashinfer_bench.compile.cache import (
    BUILD_INFO,
    COMPLETE,
    MARKER,
    PARTIAL,
    BuildInfo,
    is_complete,
    is_scratch_name,
    lock_of,
    remove_result,
    try_lock,
)
from flashinfer_bench.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Only what is called like this has been made by us; the cache folder may be set to any folder.
_BUILD = re.compile(r".+_[0-9a-f]{64}")


@dataclass(frozen=True)
class CacheEntry:
    """One thing in the cache.

    Parameters
    ----------
    builder : str
        Name of the builder's folder, or of another one in the cache.
    solution, language : str
        What was built first with this content; empty if that is not known.
    path : Path
        The folder or file.
    bytes : int
        Size of all files in it.
    created, last_used : float
        Seconds since 1970.
    state : str
        ``complete``; ``partial``: being built, or left by a build that was killed; ``damaged``: not
        as it was made, and built anew when it is next wanted; ``lock``: the lock file of something
        that is not there; ``scratch``: the files of one process; ``other``: not made by builders,
        and never removed.
    """

    builder: str
    solution: str
    language: str
    path: Path
    bytes: int
    created: float
    last_used: float
    state: str


@dataclass(frozen=True)
class PruneResult:
    """What was, or would be, removed from the cache.

    Parameters
    ----------
    removed : tuple of CacheEntry
        In the order in which they went.
    busy : tuple of CacheEntry
        What would have gone, had not a living process been at work on it or used it just then.
    bytes_freed : int
        Size of what was removed.
    bytes_left : int
        Size of all that is left.
    """

    removed: tuple[CacheEntry, ...]
    busy: tuple[CacheEntry, ...]
    bytes_freed: int
    bytes_left: int


def list_entries(root: Optional[Path] = None, *, verify: bool = False) -> list[CacheEntry]:
    """Return what is in the cache, least recently used first.

    Parameters
    ----------
    root : Path, optional
        The cache folder. Default: ``FIB_CACHE_PATH``.
    verify : bool
        Whether to read each library to see that it is as it was made; otherwise its size is enough.

    Returns
    -------
    list of CacheEntry
        Nothing where there is no folder.

    Raises
    ------
    StorageError
        If the folder cannot be read.
    """
    base = env.cache_path() if root is None else root
    try:
        folders = [path for path in base.iterdir() if path.is_dir() and not path.is_symlink()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{base}: cannot be read: {error}") from error
    entries = [entry for folder in folders for entry in _entries_in(folder, verify)]
    return sorted(entries, key=lambda entry: (entry.last_used, str(entry.path)))


def prune(
    *,
    older_than: Optional[float] = None,
    max_bytes: Optional[int] = None,
    everything: bool = False,
    dry_run: bool = False,
    root: Optional[Path] = None,
) -> PruneResult:
    """Remove builds from the cache, least recently used first, and always what nobody can use.

    Without any limit, only the latter goes: what killed builds and processes have left, what is
    damaged, lock files without a build. What a living process is building is never touched; one
    that is about to load a build that goes away builds it anew.

    Parameters
    ----------
    older_than : float, optional
        Remove builds that nobody has used for that many seconds.
    max_bytes : int, optional
        Remove builds until all of them together are no larger.
    everything : bool
        Remove all builds.
    dry_run : bool
        Remove nothing, and say what would be.
    root : Path, optional
        The cache folder. Default: ``FIB_CACHE_PATH``.

    Returns
    -------
    PruneResult
        What happened.

    Raises
    ------
    StorageError
        If the folder cannot be read, or something in it cannot be removed.
    """
    entries = list_entries(root)
    doomed = [entry for entry in entries if entry.state not in ("complete", "other")]
    builds = [entry for entry in entries if entry.state == "complete"]
    doomed += builds if everything else _outdated(builds, older_than, max_bytes)
    removed: list[CacheEntry] = []
    busy: list[CacheEntry] = []
    failed: list[StorageError] = []
    for entry in doomed:
        try:
            gone = _remove(entry, dry_run=dry_run, whatever=everything)
        except OSError as error:
            failed.append(StorageError(f"{entry.path}: cannot be removed: {error}"))
        else:
            (removed if gone else busy).append(entry)
    if failed:
        raise failed[0]
    freed = sum(entry.bytes for entry in removed)
    left = sum(entry.bytes for entry in entries) - freed
    return PruneResult(tuple(removed), tuple(busy), freed, left)


def _outdated(
    builds: list[CacheEntry], older_than: Optional[float], max_bytes: Optional[int]
) -> Iterator[CacheEntry]:
    oldest = time.time() - older_than if older_than is not None else float("-inf")
    total = sum(entry.bytes for entry in builds)
    for entry in builds:
        too_much = max_bytes is not None and total > max_bytes
        if too_much or entry.last_used < oldest:
            total -= entry.bytes
            yield entry


def _remove(entry: CacheEntry, *, dry_run: bool, whatever: bool) -> bool:
    """Remove an entry unless it is in use; return whether it went (or would go)."""
    path = entry.path
    guard = path if entry.state == "lock" else lock_of(_final(path))
    if dry_run and not guard.exists():
        return True
    lock = try_lock(guard)
    if lock is None:
        return False
    try:
        is_build = entry.state in ("complete", "damaged")
        # Somebody may have used a build, or made it anew, after it was listed.
        wanted = whatever or not is_build or _last_used(path) <= entry.last_used
        if wanted and not dry_run:
            if is_build:
                remove_result(path)
            elif entry.state != "lock":
                shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):  # another system than Unix keeps files that are open
                guard.unlink()
        return wanted
    finally:
        lock.release()


def _final(path: Path) -> Path:
    """Return the folder that a partial one becomes, and that others are anyway."""
    return path.with_name(path.name.partition(PARTIAL)[0])


def _entries_in(folder: Path, verify: bool) -> Iterator[CacheEntry]:
    """Yield what is in one folder of the cache."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.name != MARKER)
    except OSError:  # it went away meanwhile, or is somebody else's
        return
    states = {path: _state_of(path, verify) for path in paths}
    if paths and set(states.values()) == {"other"}:
        yield _entry(folder, folder, "other")
        return
    things = {_final(path).name for path, state in states.items() if state != "lock"}
    for path, state in states.items():
        if state != "lock" or _locked_by(path) not in things:
            with suppress(FileNotFoundError):  # somebody else removes it just now
                yield _entry(folder, path, state)


def _state_of(path: Path, verify: bool) -> str:
    """Return the state of `path`: ``other`` for all that is not surely one of ours.

    The cache folder may be any folder, so a name alone proves nothing.
    """
    in_scratch = path.parent.name == "scratch"
    try:
        if path.is_symlink():
            return "other"
        if _is_empty_file(path):
            name = _locked_by(path)
            ours = is_scratch_name(name) if in_scratch else _BUILD.fullmatch(name)
            return "lock" if ours and path.suffix == ".lock" else "other"
        if in_scratch:
            owned = is_scratch_name(path.name) and _is_empty_file(lock_of(path))
            return "scratch" if owned and path.is_dir() else "other"
        ours = _BUILD.fullmatch(_final(path).name) and (path.parent / MARKER).is_file()
        if not ours or not path.is_dir():
            return "other"
        return "partial" if PARTIAL in path.name else _state_of_build(path, verify)
    except OSError:  # nobody can tell what it is
        return "other"


def _state_of_build(path: Path, verify: bool) -> str:
    signs = (path / COMPLETE, path / BUILD_INFO, path / SOURCES, lock_of(path))
    if not any(sign.exists() for sign in signs):
        return "other"
    info = BuildInfo.read(path)
    if info is None:
        # A builder that keeps its results in another way than `CompiledBuilder` has no such file.
        sound = not (path / BUILD_INFO).exists()
    else:
        sound = info.is_library_sound(path) if verify else info.library_in(path) is not None
    return "complete" if sound and is_complete(path) else "damaged"


def _is_empty_file(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == 0


def _locked_by(lock: Path) -> str:
    """Return the name of the folder that a lock file is for."""
    return lock.name.removesuffix(".lock").removesuffix(".building")


def _entry(folder: Path, path: Path, state: str) -> CacheEntry:
    info = BuildInfo.read(path) if state in ("complete", "damaged") else None
    last_used = created = _last_used(path)
    if info is not None:
        with suppress(ValueError):
            created = calendar.timegm(time.strptime(info.created, "%Y-%m-%dT%H:%M:%SZ"))
    return CacheEntry(
        builder=folder.name,
        solution=info.solution if info else "",
        language=info.language if info else "",
        path=path,
        bytes=sum(_sizes(path)),
        created=float(created),
        last_used=last_used,
        state=state,
    )


def _last_used(path: Path) -> float:
    for candidate in (path / COMPLETE, path):
        with suppress(OSError):
            return candidate.stat().st_mtime
    return 0.0


def _sizes(path: Path) -> Iterator[int]:
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    for file in files:
        with suppress(OSError):
            if file.is_symlink() or not file.is_dir():
                yield file.lstat().st_size
