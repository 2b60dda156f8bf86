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
from flashinfer_bench.compile.toolkit.cache import (
    COMPLETE,
    MARKER,
    PARTIAL,
    is_complete,
    lock_of,
    remove_result,
)
from flashinfer_bench.compile.toolkit.info import (
    BUILD_INFO,
    BuildInfo,
    library_file,
    library_sound,
)
from flashinfer_bench.compile.toolkit.locks import try_lock
from flashinfer_bench.compile.toolkit.options import SOURCES
from flashinfer_bench.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_SCRATCH = "scratch"
# Only what is called like this has been made by us; the cache folder may be set to any folder.
_BUILD = re.compile(r".+_[0-9a-f]{64}")
_TOKEN = re.compile(r"\d+-[0-9a-f]{32}")

STATES = ("complete", "partial", "damaged", "lock", "scratch", "other")


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
        except StorageError as error:
            failed.append(error)  # the others go all the same
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
    path = _lock_path(entry)
    existed = path.exists()
    if dry_run and not existed:
        return True
    try:
        lock = try_lock(path)
        if lock is None:
            return False
        try:
            wanted = whatever or not _used_since(entry)
            if wanted and not dry_run:
                _take_away(entry)
                with suppress(OSError):  # another system than Unix keeps files that are open
                    path.unlink()
            return wanted
        finally:
            lock.release()
    except OSError as error:
        raise StorageError(f"{entry.path}: cannot be removed: {error}") from error


def _take_away(entry: CacheEntry) -> None:
    if entry.state in ("complete", "damaged"):
        remove_result(entry.path)
    elif entry.state in ("partial", "scratch"):
        shutil.rmtree(entry.path, ignore_errors=True)


def _used_since(entry: CacheEntry) -> bool:
    """Return whether a build was used, or made anew, after it was listed."""
    if entry.state not in ("complete", "damaged"):
        return False
    return _last_used(entry.path) > entry.last_used


def _lock_path(entry: CacheEntry) -> Path:
    if entry.state == "lock":
        return entry.path
    if entry.state == "partial":
        name = entry.path.name.partition(PARTIAL)[0]
        return lock_of(entry.path.with_name(name))
    return lock_of(entry.path)


def _entries_in(folder: Path, verify: bool) -> Iterator[CacheEntry]:
    """Yield what is in one folder of the cache."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.name != MARKER)
    except OSError:  # it went away meanwhile, or is somebody else's
        return
    kinds = {path: _kind_of(path) for path in paths}
    if not any(kinds.values()):
        if paths:
            yield _entry(folder, folder, "other")
        return
    things = {path.name.partition(PARTIAL)[0] for path, kind in kinds.items() if kind != "lock"}
    for path, kind in kinds.items():
        if kind == "lock" and _locked_by(path) in things:
            continue
        try:
            yield _describe(folder, path, kind or "other", verify)
        except FileNotFoundError:
            continue
        except OSError:  # nobody can tell what it is
            yield _entry(folder, path, "other")


def _kind_of(path: Path) -> str:
    """Return what `path` seems to be; empty if it is none of ours.

    The cache folder may be any folder, so a name alone proves nothing.
    """
    try:
        if path.is_symlink():
            return ""
        if _is_empty_file(path):
            ours = _TOKEN if path.parent.name == _SCRATCH else _BUILD
            return "lock" if ours.fullmatch(_locked_by(path)) and path.suffix == ".lock" else ""
        if not path.is_dir():
            return ""
        if path.parent.name == _SCRATCH:
            owned = _TOKEN.fullmatch(path.name) and _is_empty_file(lock_of(path))
            return "scratch" if owned else ""
        return _kind_of_build(path)
    except OSError:
        return ""


def _kind_of_build(path: Path) -> str:
    name, separator, _ = path.name.partition(PARTIAL)
    if not _BUILD.fullmatch(name) or not (path.parent / MARKER).is_file():
        return ""
    traces = (path / COMPLETE, path / BUILD_INFO, path / SOURCES, lock_of(path))
    if separator:
        return "partial"
    return "complete" if any(trace.exists() for trace in traces) else ""


def _is_empty_file(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == 0


def _locked_by(lock: Path) -> str:
    """Return the name of the folder that a lock file is for."""
    return lock.name.removesuffix(".lock").removesuffix(".building")


def _describe(folder: Path, path: Path, kind: str, verify: bool) -> CacheEntry:
    if kind != "complete":
        return _entry(folder, path, kind)
    info = BuildInfo.read(path)
    if not is_complete(path) or not _seems_sound(path, info, verify):
        return _entry(folder, path, "damaged", info)
    return _entry(folder, path, "complete", info)


def _seems_sound(path: Path, info: Optional[BuildInfo], verify: bool) -> bool:
    if info is None:
        # A builder that keeps its results in another way than `CompiledBuilder` has no such file.
        return not (path / BUILD_INFO).exists()
    if verify:
        return library_sound(path, info)
    return library_file(path, info) is not None


def _entry(folder: Path, path: Path, state: str, info: Optional[BuildInfo] = None) -> CacheEntry:
    last_used = _last_used(path)
    return CacheEntry(
        builder=folder.name,
        solution=info.solution if info else "",
        language=info.language if info else "",
        path=path,
        bytes=sum(_sizes(path)),
        created=_seconds(info.created, last_used) if info else last_used,
        last_used=last_used,
        state=state,
    )


def _seconds(created: str, otherwise: float) -> float:
    try:
        return float(calendar.timegm(time.strptime(created, "%Y-%m-%dT%H:%M:%SZ")))
    except ValueError:
        return otherwise


def _last_used(path: Path) -> float:
    for candidate in (path / COMPLETE, path):
        with suppress(OSError):
            return candidate.stat().st_mtime
    return 0.0


def _sizes(path: Path) -> Iterable[int]:
    if not path.is_dir() or path.is_symlink():
        with suppress(OSError):
            yield path.lstat().st_size
        return
    for inner in path.rglob("*"):
        with suppress(OSError):
            if inner.is_symlink() or not inner.is_dir():
                yield inner.lstat().st_size
