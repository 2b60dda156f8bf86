"""Builds on disk: made once over all processes, whole or not at all; and folders of one process."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Optional

import filelock
import msgspec

from flashinfer_bench import env
from flashinfer_bench.errors import BuildError, StorageError

logger = logging.getLogger(__name__)

COMPLETE = ".complete"
"""Name of the empty file that marks a folder whose build went through."""

PARTIAL = ".partial-"
"""What follows a folder's name in those of the folders in which it is being made or removed."""

MARKER = ".fib-builds"
"""Name of the empty file that marks a folder in which builds are: others are never pruned."""

BUILD_INFO = "build.json"
"""Name of the file in which a build says what it is, see `BuildInfo`."""

FORMAT = 2
# Only what is called like this has been made by us; the cache folder may be set to any folder.
_BUILD = re.compile(r".+_[0-9a-f]{64}")
_CHUNK = 1 << 20

ToolGuard = Callable[[Path], AbstractContextManager[Optional[Callable[[], None]]]]
"""Called with the current folder of a tool; lends what is called in its process before it."""

_overlay: Optional[Path] = None
_scratch: Optional[Path] = None
_guard: ToolGuard = lambda cwd: nullcontext()  # noqa: E731 - of that type
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
            for left in folder.parent.glob(f"{folder.name}{PARTIAL}*"):
                shutil.rmtree(left, ignore_errors=True)  # of builds that were killed
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
    """Return the lock file that is held while `folder` is filled or removed."""
    return folder.with_name(f"{folder.name}.lock")


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
        If the file cannot be opened.
    """
    lock = filelock.FileLock(path, timeout=0)
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
    for left in base.glob("*.lock"):
        with suppress(OSError):  # somebody else's
            # The cache folder may be set to any folder. Who holds a lock lives, or is at it.
            lock = try_lock(left) if is_scratch_name(left.stem) else None
            if lock is not None:
                _remove_scratch(left.with_suffix(""), lock)
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


class BuildInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What ``build.json`` in a build's folder says about a finished build.

    Parameters
    ----------
    builder : str
        Class of the builder, ``module:name``.
    build_type : str
        The kind of build, as in `RunnableMetadata`.
    solution, author, definition : str
        What it was built from. Solutions with the same content share a build, which has the name
        and author of the first.
    language : str
        The solution's.
    binding : str, optional
        The solution's, as it declares it.
    key : dict
        All that the result depends on besides solution and definition.
    created : str
        When, in UTC: ``2025-01-31T12:00:00Z``.
    seconds : float
        How long it took.
    library : str
        The file to load, relative to the folder.
    library_bytes : int
        Its size.
    library_sha256 : str
        Its digest.
    headers : dict
        Files outside of the folder that were read: path to size, time of the last change in
        nanoseconds, and SHA-256.
    format : int
        Version of this list of fields.
    """

    builder: str
    build_type: str
    solution: str
    author: str
    definition: str
    language: str
    binding: Optional[str]
    key: dict[str, str]
    created: str
    seconds: float
    library: str
    library_bytes: int
    library_sha256: str
    headers: dict[str, tuple[int, int, str]]
    format: int

    def write(self, folder: Path) -> None:
        """Write it into a build's folder."""
        text = msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=2)
        (folder / BUILD_INFO).write_bytes(text + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Optional[BuildInfo]:
        """Return what a folder says, or None if it says nothing that can be understood."""
        try:
            if not (folder / BUILD_INFO).is_file():  # reading a pipe would wait for ever
                return None
            info = msgspec.json.decode((folder / BUILD_INFO).read_bytes(), type=cls)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
            return None
        return info if info.format == FORMAT else None

    def library_in(self, folder: Path) -> Optional[Path]:
        """Return the library in the build's folder; None if no file of its size is there.

        What this says need not be true: a path that leaves the folder, or goes through a link, is
        not followed.
        """
        try:
            root = folder.resolve()
            path = root / self.library
            inside = root in path.parents and path.resolve() == path
            right = inside and path.is_file() and path.stat().st_size == self.library_bytes
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links that go in a circle
            return None
        return folder / self.library if right else None

    def is_library_sound(self, folder: Path) -> bool:
        """Return whether the library is there, byte for byte as it was made."""
        library = self.library_in(folder)
        try:
            return library is not None and sha256_of(library) == self.library_sha256
        except OSError:
            return False


def sha256_of(path: Path) -> str:
    """Return the digest of a file.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


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
    created : str
        When, in UTC: ``2025-01-31T12:00:00Z``.
    last_used : float
        Seconds since 1970.
    state : str
        ``complete``; ``partial``: being built, or left by a build that was killed; ``damaged``: not
        as it was made, and built anew when it is next wanted; ``scratch``: the files of one
        process; ``other``: not made by builders, and never removed.
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
        In the order in which they went.
    busy : list of CacheEntry
        What would have gone, had not a living process been at work on it or used it just then.
    bytes_freed : int
        Size of what was removed.
    bytes_left : int
        Size of all that is left.
    """

    removed: list[CacheEntry]
    busy: list[CacheEntry]
    bytes_freed: int
    bytes_left: int


def list_entries(*, verify: bool = False) -> list[CacheEntry]:
    """Return what is in ``FIB_CACHE_PATH``, least recently used first.

    Parameters
    ----------
    verify : bool
        Whether to read each library to see that it is as it was made; otherwise its size is enough.

    Returns
    -------
    list of CacheEntry
        Nothing where there is no folder. Lock files are not among them.

    Raises
    ------
    StorageError
        If the folder cannot be read.
    """
    base = env.cache_path()
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

    Returns
    -------
    PruneResult
        What happened.

    Raises
    ------
    StorageError
        If the folder cannot be read, or something in it cannot be removed.
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
    for lock in [] if dry_run else env.cache_path().glob("*/*.lock"):
        with suppress(OSError):
            _remove_orphan(lock)
    freed = sum(entry.bytes for entry in removed)
    return PruneResult(removed, busy, freed, sum(entry.bytes for entry in entries) - freed)


def _remove(entry: CacheEntry, *, dry_run: bool, whatever: bool) -> bool:
    """Remove an entry unless it is in use; return whether it went (or would go)."""
    # A partial folder is guarded by the lock of the one that it is to become.
    guard = lock_of(entry.path.with_name(entry.path.name.partition(PARTIAL)[0]))
    if dry_run and not guard.exists():
        return True
    lock = try_lock(guard)
    if lock is None:
        return False
    try:
        # Somebody may have used a build, or made it anew, after it was listed.
        is_build = entry.state in ("complete", "damaged")
        wanted = whatever or not is_build or _last_used(entry.path) <= entry.last_used
        if wanted and not dry_run:
            remove_result(entry.path)
            with suppress(OSError):  # another system than Unix keeps files that are open
                guard.unlink()
        return wanted
    finally:
        lock.release()


def _remove_orphan(path: Path) -> None:
    """Remove a lock file of ours if there is nothing that it locks, and nobody holds it."""
    name = path.stem.removesuffix(".building")
    ours = is_scratch_name(name) if path.parent.name == "scratch" else _BUILD.fullmatch(name)
    if not ours or path.with_name(name).exists() or path.stat().st_size:
        return
    lock = try_lock(path)
    if lock is not None:
        path.unlink()
        lock.release()


def _entries_in(folder: Path, verify: bool) -> Iterator[CacheEntry]:
    """Yield what is in one folder of the cache; it alone if nothing there is ours."""
    with suppress(OSError):  # it went away meanwhile, or is somebody else's
        paths = [path for path in folder.iterdir() if path.name != MARKER]
        states = {path: _state_of(path, verify) for path in paths if path.suffix != ".lock"}
        if states and set(states.values()) == {"other"}:
            states = {folder: "other"}
        for path, state in states.items():
            with suppress(FileNotFoundError):  # somebody else removes it just now
                yield _entry(folder, path, state)


def _state_of(path: Path, verify: bool) -> str:
    """Return the state of `path`: ``other`` for all that is not surely one of ours.

    The cache folder may be any folder, so a name alone proves nothing.
    """
    name, partial, _ = path.name.partition(PARTIAL)
    if path.is_symlink() or not path.is_dir():
        return "other"
    if path.parent.name == "scratch":
        return "scratch" if is_scratch_name(name) and lock_of(path).is_file() else "other"
    if not _BUILD.fullmatch(name) or not (path.parent / MARKER).is_file():
        return "other"
    if partial:
        return "partial"
    info = BuildInfo.read(path)
    if info is None:
        # A builder that keeps its results in another way than `CompiledBuilder` has no such file.
        sound = not (path / BUILD_INFO).exists()
    else:
        sound = info.is_library_sound(path) if verify else info.library_in(path) is not None
    return "complete" if sound and is_complete(path) else "damaged"


def _entry(folder: Path, path: Path, state: str) -> CacheEntry:
    info = BuildInfo.read(path) if state in ("complete", "damaged") else None
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
    return next((p.stat().st_mtime for p in (path / COMPLETE, path) if p.exists()), 0.0)


def utc(seconds: float) -> str:
    """Return a time as text: ``2025-01-31T12:00:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
