"""The files of a dataset folder and their digests, without reading again what has not changed.

A file's digest is remembered together with its size, its times of change, its inode and its device.
All of these equal means: the same content. The one exception is a file that was changed just before
it was read: a file system may give two changes within the same tick of its clock the same time. So
what is younger than two seconds when it is read, or from the future, is read again the next time.
The time of the last change of the inode counts as well, which no program can set back.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

import msgspec

from flashinfer_bench.apply import disk
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# As in flashinfer_bench.data.layout, which is not imported for it: with it would come pydantic and
# all records, and nothing of that is needed where a kept table is found.
DEFINITIONS, SOLUTIONS, WORKLOADS, TRACES = "definitions", "solutions", "workloads", "traces"
FOLDERS = {
    DEFINITIONS: (".json",),
    SOLUTIONS: (".json",),
    WORKLOADS: (".jsonl", ".json"),
    TRACES: (".jsonl", ".json"),
}
_YOUNG_NS = 2_000_000_000
_KEPT_BYTES = 256 << 20  # what is beyond this may be read twice, but is not held in memory
_SMALL_BYTES = 1 << 16  # not worth handing over to another thread
_FILES_AHEAD = 6
_THREADS = 3  # reading and hashing work without the interpreter's lock


class Stamp(NamedTuple):
    """What tells that a file has not changed."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int

    @classmethod
    def of(cls, info: os.stat_result) -> Stamp:
        """Return the stamp in what the system tells about a file."""
        return cls(info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_dev)

    def is_settled(self, now_ns: int) -> bool:
        """Return whether any later change would give another stamp."""
        return max(self.mtime_ns, self.ctime_ns) < now_ns - _YOUNG_NS


class _Known(msgspec.Struct, array_like=True, gc=False):
    stamp: Stamp
    digest: bytes


_Read = Union[tuple[bytes, Optional[Stamp], bytes], OSError]


def _walk(top: str, suffixes: tuple[str, ...]) -> Iterator[tuple[str, Stamp]]:
    """Yield files as `flashinfer_bench.data.layout.files` does, with their stamps.

    What goes while this looks is not there. Neither is a link that leads to itself.
    """
    seen: set[tuple[int, int]] = set()
    folders = [_entries(top, seen)]  # no recursion: there may be more levels than Python has
    while folders:
        entry = next(folders[-1], None)
        if entry is None:
            folders.pop()
            continue
        try:
            if entry.is_dir():
                folders.append(_entries(entry.path, seen))
            elif entry.name.endswith(suffixes) and entry.is_file():
                # Not entry.stat(): of a link that leaves it open, and elsewhere it may lack fields.
                yield entry.path, Stamp.of(os.stat(entry.path))  # noqa: PTH116
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise


def _entries(folder: str, seen: set[tuple[int, int]]) -> Iterator[os.DirEntry[str]]:
    """Return what is in a folder and not hidden; nothing if the folder has been seen."""
    info = os.stat(folder)  # noqa: PTH116
    if (info.st_dev, info.st_ino) in seen:
        return iter(())
    seen.add((info.st_dev, info.st_ino))
    with os.scandir(folder) as entries:
        return iter([entry for entry in entries if not entry.name.startswith(".")])


def digest_of(data: Union[bytes, memoryview]) -> bytes:
    """Return the digest of a file's content: SHA-256."""
    return hashlib.sha256(data).digest()


class Snapshot:
    """What was in the files of a dataset at one time.

    Files that are not known yet are read ahead by other threads.

    Parameters
    ----------
    root : Path
        The dataset.

    Attributes
    ----------
    root : Path
        As given.
    is_new : bool
        Whether nothing is remembered of this dataset.
    is_complete : bool
        Whether all files and folders could be read, as far as that was tried.
    problems : list of DataError
        Files and folders that could not be read.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.is_complete = True
        self.problems: list[DataError] = []
        self._memory = _memory_of(root)
        self._remembered = _remembered(self._memory)
        self._known = dict(self._remembered or {})
        self.is_new = self._remembered is None
        self._stamps = self._find()
        # In the order in which files are read, which decides between two of one name.
        self._digests = dict.fromkeys(self._stamps, b"")
        self._contents: dict[str, bytes] = {}
        self._kept = 0
        self._pending: dict[str, Optional[Future[_Read]]] = {}
        self._pool: Optional[ThreadPoolExecutor] = None
        self._ahead: Iterator[str] = iter(())
        self._begin()

    def paths(self, folder: str) -> list[str]:
        """Return the files below one of the dataset's folders, sorted, relative to the root."""
        return [name for name in self._digests if name.startswith(f"{folder}/")]

    def digest(self, name: str) -> bytes:
        """Return the digest of a file that has been read."""
        return self._digests[name]

    def read(self, name: str) -> Optional[bytes]:
        """Return the content of a file; None, and a problem, if it cannot be read.

        It is handed out once and then forgotten. What is read anew may have changed meanwhile; its
        digest is then that of what is returned.
        """
        if name in self._pending:
            return self._settle(name, keep=False)
        data = self._contents.pop(name, None)
        if data is None and name in self._digests:
            data = self._take(name, self._read_file(name))
        return data

    def identity(self) -> bytes:
        """Return a digest of the names and contents of all files, reading those not known yet."""
        for name in list(self._pending):
            self._settle(name, keep=True)
        known = {name: self._known[name] for name in self._stamps if name in self._known}
        if known != self._remembered:
            disk.write(self._memory, b"", msgspec.msgpack.encode(known))
            self._remembered = known
        whole = hashlib.sha256()
        for name, digest in self._digests.items():
            whole.update(f"{len(os.fsencode(name))}:".encode() + os.fsencode(name) + digest)
        return whole.digest()

    # ----------------------------------------------------------------------------------- finding

    def _find(self) -> dict[str, Stamp]:
        """Return the stamps of all files: folder by folder, sorted in each."""
        found: dict[str, Stamp] = {}
        start = len(os.fspath(self.root / "x")) - 1
        for folder, suffixes in FOLDERS.items():
            top = self.root / folder
            if not top.is_dir():
                continue
            try:
                files = sorted(_walk(os.fspath(top), suffixes))
            except OSError as error:  # to go on would silently lose what is in a folder
                self._cannot_read(top, error)
                continue
            found.update((path[start:].replace(os.sep, "/"), stamp) for path, stamp in files)
        return found

    def _begin(self) -> None:
        """Take over the digests that are known, and have the other files read ahead."""
        for name, stamp in self._stamps.items():
            known = self._known.get(name)
            if known is not None and known.stamp == stamp:
                self._digests[name] = known.digest
            else:
                self._pending[name] = None
        large = [name for name in self._pending if self._stamps[name].size > _SMALL_BYTES]
        if large:
            self._pool = ThreadPoolExecutor(_THREADS)
            self._ahead = iter(large)
            for _ in range(_FILES_AHEAD):
                self._read_ahead()

    def _read_ahead(self) -> None:
        """Have one more file read; few at a time, so that their memory is used again."""
        name = next(self._ahead, None)
        if name is not None and self._pool is not None:
            self._pending[name] = self._pool.submit(self._read_file, name)
        elif self._pool is not None:
            self._pool.shutdown(wait=False)  # what was submitted is still done
            self._pool = None

    # ----------------------------------------------------------------------------------- reading

    def _settle(self, name: str, *, keep: bool) -> Optional[bytes]:
        """Return the content of a pending file, whose digest is then known; maybe keep it."""
        future = self._pending.pop(name)
        if future is None:
            data = self._take(name, self._read_file(name))
        else:
            data = self._take(name, future.result())
            self._read_ahead()
        if data is not None and keep and self._kept + len(data) <= _KEPT_BYTES:
            self._contents[name] = data
            self._kept += len(data)
        return data

    def _take(self, name: str, result: _Read) -> Optional[bytes]:
        self._known.pop(name, None)
        if isinstance(result, OSError):
            del self._digests[name]
            self._cannot_read(self.root / name, result)
            return None
        data, stamp, self._digests[name] = result
        if stamp is not None and _is_text(name):
            self._known[name] = _Known(stamp, self._digests[name])
        return data

    def _read_file(self, name: str) -> _Read:
        """Return content, stamp (None if it cannot be relied on) and digest of a file."""
        try:
            with (self.root / name).open("rb") as file:
                before = Stamp.of(os.fstat(file.fileno()))
                now_ns = time.time_ns()
                data = file.read()
                after = Stamp.of(os.fstat(file.fileno()))
        except OSError as error:
            return error
        sure = before == after and before.size == len(data) and before.is_settled(now_ns)
        return data, before if sure else None, digest_of(data)

    def _cannot_read(self, path: Path, error: OSError) -> None:
        self.is_complete = False
        self.problems.append(DataError(f"cannot be read: {error.strerror or error}", path=path))


def _is_text(name: str) -> bool:
    """Return whether a file name is UTF-8; others are not remembered, as they cannot be written."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _memory_of(root: Path) -> Path:
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
    return disk.folder() / f"{name}.files"


_decoder = msgspec.msgpack.Decoder(dict[str, _Known])


def _remembered(path: Path) -> Optional[dict[str, _Known]]:
    payload = disk.read(path, b"")
    if payload is not None:
        with contextlib.suppress(msgspec.MsgspecError):
            return _decoder.decode(payload)
    return None


def changed_since(path: Path) -> DataError:
    """Make the error for a file that is not any more what a table was made from."""
    return DataError(
        "the file has changed since the table of solutions was made",
        path=path,
        hint="rebuild the runtime to take up the changes",
    )
