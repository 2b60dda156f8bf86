"""Writing files so that nothing is lost: locked appends, atomic replacement, fsync.

A data file is only ever appended to while its lock (a hidden file beside it) is held, by one
``write`` of whole lines. If that fails, the file is cut back to what it was. If the process is
killed in the middle, the next append moves the unfinished line aside; readers skip it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from flashinfer_bench.data.jsonl import is_torn, read_whole
from flashinfer_bench.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 60.0
"""Seconds to wait for another process; a dead process holds no lock."""

_BLOCK = 1 << 16


def lock_path(path: Path) -> Path:
    """Return the lock file of a data file."""
    return path.with_name(f".{path.name}.lock")


@contextlib.contextmanager
def locked(path: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock of a data file; its folder is made if need be.

    Raises
    ------
    StorageError
        If the lock cannot be had in `timeout_s` seconds, or not be made at all.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(lock_path(path), timeout=timeout_s)
        lock.acquire()
    except Timeout as error:
        raise StorageError(
            f"{path}: another process has held its lock for {timeout_s:g} s",
            hint=f"see who has {lock_path(path)} open",
        ) from error
    except OSError as error:
        raise _storage_error(path, error) from error
    try:
        yield
    finally:
        lock.release()


def append_lines(path: Path, lines: Sequence[bytes]) -> None:
    """Append whole lines to a file, durably, in one piece.

    Parameters
    ----------
    path : Path
        The file; it is made if it does not exist.
    lines : sequence of bytes
        The lines, each with its newline.

    Raises
    ------
    StorageError
        If it cannot be done; the file is then as it was before.
    """
    if not lines:
        return
    with locked(path):
        existed = path.exists()
        try:
            if path.is_file():  # a device may have no end
                _split_into_lines(path)
            _append(path, b"".join(lines))
        except OSError as error:
            if not existed:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise _storage_error(path, error) from error
        if not existed:
            sync_folder(path.parent)


def _split_into_lines(path: Path) -> None:
    """Rewrite a file that is one JSON document, which no line could be put behind."""
    records = read_whole(path)
    if records is not None:
        replace_file(path, b"".join(record + b"\n" for record in records))


def _append(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        tail = _unfinished_line(descriptor)
        if is_torn(tail):
            _move_aside(path, tail)
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - len(tail))
            tail = b""
        size = os.fstat(descriptor).st_size
        try:
            _write_all(descriptor, b"\n" + data if tail else data)
            os.fsync(descriptor)
        except BaseException:  # also Ctrl-C: never leave half a line behind
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _unfinished_line(descriptor: int) -> bytes:
    """Return what follows the last newline."""
    end = os.fstat(descriptor).st_size
    blocks: list[bytes] = []
    while end > 0 and not (blocks and b"\n" in blocks[-1]):
        start = max(0, end - _BLOCK)
        blocks.append(os.pread(descriptor, end - start, start))
        end = start
    return b"".join(reversed(blocks)).rpartition(b"\n")[2]


def _move_aside(path: Path, tail: bytes) -> None:
    aside = path.with_name(f"{path.name}.torn")
    _logger.warning("%s: moved an unfinished last line of %d bytes to %s", path, len(tail), aside)
    with aside.open("ab") as file:
        file.write(tail + b"\n")
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file durably; readers see the old content or the new, never a part.

    Raises
    ------
    StorageError
        If it cannot be done; an existing file is then unchanged.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
            os.fchmod(descriptor, _default_mode())
        finally:
            os.close(descriptor)
        Path(temporary).replace(path)
        temporary = None
        sync_folder(path.parent)
    except OSError as error:
        raise _storage_error(path, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()


def _default_mode() -> int:
    """Return the mode that a newly made file would have; `mkstemp` makes private ones."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder durable, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _storage_error(path: Path, error: OSError) -> StorageError:
    reason = error.strerror or str(error)
    made = StorageError(
        f"{path}: cannot write: {reason}",
        hint="free some space or check the permissions, then retry",
    )
    made.errno = error.errno
    return made
