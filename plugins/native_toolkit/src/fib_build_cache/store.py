"""List and prune the files that builds and processes have left in the cache."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Optional

from fib_build_cache.info import BUILD_INFO, LibraryInfo
from flashinfer_bench import env
from flashinfer_bench.compile import cache
from flashinfer_bench.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Only files with these names are ours; the cache folder may be set to any folder.
_BUILD = re.compile(r".+_[0-9a-f]{64}")


@dataclass(frozen=True)
class CacheEntry:
    """A file or folder in the cache.

    Parameters
    ----------
    builder : str
        Name of the builder's folder, or of another folder in the cache.
    solution, language : str
        The first solution built with this content; empty if unknown.
    path : Path
        The folder or file.
    bytes : int
        Total size of its files.
    created : str
        Creation time in UTC: ``2025-01-31T12:00:00Z``.
    last_used : float
        Time in seconds since 1970.
    state : str
        ``complete``; ``partial``: being built, or left by a killed build; ``damaged``: changed, to
        be rebuilt on next use; ``scratch``: files of one process; ``other``: not created by
        builders, and never removed.
    """

    builder: str
    solution: str
    language: str
    path: Path
    bytes: int
    created: str
    last_used: float
    state: str


class PruneResult(NamedTuple):
    """What was, or would be, removed from the cache.

    Attributes
    ----------
    removed : list of CacheEntry
        In the order of removal.
    busy : list of CacheEntry
        Entries that were kept because a running process was building or had just used them.
    bytes_freed : int
        Size of the removed entries.
    bytes_left : int
        Size of the remaining entries.
    """

    removed: list[CacheEntry]
    busy: list[CacheEntry]
    bytes_freed: int
    bytes_left: int


def list_entries(*, verify: bool = False) -> list[CacheEntry]:
    """Return the contents of ``FIB_CACHE_PATH``, least recently used first.

    Parameters
    ----------
    verify : bool
        Whether to read each library to check that it is unchanged; otherwise only its size is
        checked.

    Returns
    -------
    list of CacheEntry
        Empty if the folder does not exist. Lock files are not listed.

    Raises
    ------
    StorageError
        If the folder is not readable.
    """
    base = env.cache_path()
    try:
        folders = [path for path in base.iterdir() if path.is_dir() and not path.is_symlink()]
        folders = [path for path in folders if path.name != cache.LOCKS]
    except FileNotFoundError:
        return []
    except OSError as error:
        hint = "set FIB_CACHE_PATH to a folder that can be read"
        raise StorageError(f"{base}: cannot be read: {error.strerror}", hint=hint) from error
    entries = [entry for folder in folders for entry in _entries_in(folder, verify)]
    return sorted(entries, key=lambda entry: (entry.last_used, str(entry.path)))


def prune(
    *,
    older_than: Optional[float] = None,
    max_bytes: Optional[int] = None,
    everything: bool = False,
    dry_run: bool = False,
) -> PruneResult:
    """Remove unusable entries from the cache, and builds by age or size.

    Builds are removed least recently used first. Without any limit, only unusable entries are
    removed: leftovers of killed builds and processes, damaged builds, and lock files without a
    build. A build in progress is never touched; a process that is about to load a removed build
    builds it again.

    Parameters
    ----------
    older_than : float, optional
        Remove builds that have not been used for this many seconds.
    max_bytes : int, optional
        Remove builds until their total size is at most this.
    everything : bool
        Remove all builds.
    dry_run : bool
        Remove nothing, and return what would be removed.

    Returns
    -------
    PruneResult
        The removed and remaining entries.

    Raises
    ------
    StorageError
        If the folder is not readable, or an entry cannot be removed.
    """
    entries = list_entries()
    oldest = time.time() - older_than if older_than is not None else float("-inf")
    size = sum(entry.bytes for entry in entries if entry.state == "complete")
    doomed = [entry for entry in entries if entry.state not in ("complete", "other")]
    for entry in entries:
        too_much = max_bytes is not None and size > max_bytes
        if entry.state == "complete" and (everything or too_much or entry.last_used < oldest):
            size -= entry.bytes
            doomed.append(entry)
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
    for lock in [] if dry_run else (env.cache_path() / cache.LOCKS).glob("*/*.lock"):
        with suppress(OSError):
            _remove_orphan(lock)
    freed = sum(entry.bytes for entry in removed)
    return PruneResult(removed, busy, freed, sum(entry.bytes for entry in entries) - freed)


def _remove(entry: CacheEntry, *, dry_run: bool, whatever: bool) -> bool:
    """Remove an entry unless it is in use; return whether it was (or would be) removed."""
    # A partial folder is guarded by the lock of its final folder.
    guard = cache.lock_of(entry.path.with_name(entry.path.name.partition(cache.PARTIAL)[0]))
    if dry_run and not guard.exists():
        return True
    lock = cache.try_lock(guard)
    if lock is None:
        return False
    try:
        # The build may have been used or rebuilt after it was listed.
        is_build = entry.state in ("complete", "damaged")
        wanted = whatever or not is_build or _last_used(entry.path) <= entry.last_used
        if wanted and not dry_run:
            cache.remove_result(entry.path)
            with suppress(OSError):  # systems other than Unix do not remove open files
                guard.unlink()
        return wanted
    finally:
        lock.release()


def _remove_orphan(path: Path) -> None:
    """Remove one of our lock files if it is free and locks nothing that exists."""
    name = path.stem.removesuffix(".building")
    ours = cache.is_scratch_name(name) if path.parent.name == "scratch" else _BUILD.fullmatch(name)
    folder = env.cache_path() / path.parent.name / name
    if not ours or folder.exists() or path.stat().st_size:
        return
    lock = cache.try_lock(path)
    if lock is not None:
        path.unlink()
        lock.release()


def _entries_in(folder: Path, verify: bool) -> Iterator[CacheEntry]:
    """Yield the entries of one cache folder; the folder itself if it contains nothing of ours."""
    with suppress(OSError):  # removed meanwhile, or owned by another user
        paths = [path for path in folder.iterdir() if path.name != cache.MARKER]
        states = {path: _state_of(path, verify) for path in paths if path.suffix != ".lock"}
        if states and set(states.values()) == {"other"}:
            states = {folder: "other"}
        for path, state in states.items():
            with suppress(FileNotFoundError):  # concurrently removed
                yield _entry(folder, path, state)


def _state_of(path: Path, verify: bool) -> str:
    """Return the state of `path`: ``other`` unless it is certainly one of ours.

    The cache folder may be any folder, so a name alone is no proof.
    """
    name, partial, _ = path.name.partition(cache.PARTIAL)
    if path.is_symlink() or not path.is_dir():
        return "other"
    if path.parent.name == "scratch":
        return (
            "scratch" if cache.is_scratch_name(name) and cache.lock_of(path).is_file() else "other"
        )
    if not _BUILD.fullmatch(name) or not (path.parent / cache.MARKER).is_file():
        return "other"
    if partial:
        return "partial"
    info = LibraryInfo.read(path)
    if info is None:
        # Builders that do not use `CompiledBuilder` have no such file.
        sound = not (path / BUILD_INFO).exists()
    else:
        sound = info.is_library_sound(path) if verify else info.library_in(path) is not None
    return "complete" if sound and cache.is_complete(path) else "damaged"


def _entry(folder: Path, path: Path, state: str) -> CacheEntry:
    info = LibraryInfo.read(path) if state in ("complete", "damaged") else None
    last_used = _last_used(path)
    files = [path, *path.rglob("*")]
    return CacheEntry(
        builder=folder.name,
        solution=info.solution if info else "",
        language=info.language if info else "",
        path=path,
        bytes=sum(file.lstat().st_size for file in files if file.is_symlink() or file.is_file()),
        created=info.created if info else utc(last_used),
        last_used=last_used,
        state=state,
    )


def _last_used(path: Path) -> float:
    return next((p.stat().st_mtime for p in (path / cache.COMPLETE, path) if p.exists()), 0.0)


def utc(seconds: float) -> str:
    """Return a time as text: ``2025-01-31T12:00:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
