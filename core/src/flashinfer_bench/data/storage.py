"""Writing files so that nothing is lost: locked appends, atomic replacement, fsync.

A data file is only ever appended to while its lock (a hidden file beside it) is held, by one
``write`` of whole lines. If that fails, the file is cut back to what it was. If the process is
killed in the middle, the next append moves the unfinished line aside; readers skip it.

The lock is a ``flock``, which ends with its process. Where the file system has none, or one that
other machines do not see, ``FIB_DATASET_LOCK=soft`` locks by the existence of a file instead, which
names its owner so that the next one can tell that it is dead.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
from typing import TYPE_CHECKING, BinaryIO

from filelock import FileLock, SoftFileLock, Timeout

from flashinfer_bench import env
from flashinfer_bench.data.jsonl import is_torn, read_whole
from flashinfer_bench.errors import MISNAMED, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 60.0
"""Seconds to wait for another process; a dead process holds no lock."""

_BLOCK = 1 << 16


SOFT_LOCK_SUFFIX = ".softlock"


def lock_path(path: Path) -> Path:
    """Return the lock file of a data file."""
    return path.with_name(f".{path.name}.lock")


def soft_lock_path(path: Path) -> Path:
    """Return the file whose existence is the soft lock of a data file."""
    return path.with_name(f".{path.name}{SOFT_LOCK_SUFFIX}")


@contextlib.contextmanager
def locked(path: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock of a data file; its folder is made if need be.

    Raises
    ------
    StorageError
        If the lock cannot be had in `timeout_s` seconds, or not be made at all.
    """
    soft = env.soft_dataset_locks()
    file = soft_lock_path(path) if soft else lock_path(path)
    lock = (SoftFileLock if soft else FileLock)(file, timeout=timeout_s)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        hint = f"see who has {file} open"
        if soft:
            hint = (
                f"{file} names the owner; "
                "if that process is gone, 'fib doctor --repair' takes it away"
            )
        raise StorageError(
            f"{path}: another process has held its lock for {timeout_s:g} s", hint=hint
        ) from error
    except OSError as error:
        raise storage_error(path.parent, error) from error
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
            raise storage_error(path, error) from error
        if not existed:
            sync_folder(path.parent)


def _split_into_lines(path: Path) -> None:
    """Rewrite a file that is one JSON document, which no line could be put behind."""
    with path.open("rb") as file:
        whole = read_whole(file)
    if whole is not None:
        replace_file(path, b"".join(record + b"\n" for record in whole[1]))


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
            _sync(descriptor)
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


def _sync(descriptor: int) -> None:
    """Wait until what was written is on disk, unless ``FIB_FSYNC`` says not to."""
    if env.fsync_wanted():
        os.fsync(descriptor)


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
        _sync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file durably; readers see the old content or the new, never a part.

    Raises
    ------
    StorageError
        If it cannot be done; an existing file is then unchanged.
    """
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a hidden file that replaces a file, durably, if the block ends well.

    Raises
    ------
    StorageError
        As of `replace_file`.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            yield file
            file.flush()
            _sync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder durable, where the system can."""
    if not env.fsync_wanted():
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def storage_error(path: Path, error: OSError) -> StorageError:
    """Make the error about a file that cannot be written, with what to do about it."""
    hint = "free some space or check the permissions, then retry"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        hint = "it is read-only here: change its permissions, or write elsewhere or to a copy"
    elif error.errno in MISNAMED:
        hint = "name another path"
    elif error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        hint = "another process has made it meanwhile; retry"
    elif error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
        hint = "this file system has no locks; set FIB_DATASET_LOCK=soft wherever it is written to"
    made = StorageError(f"{path}: cannot write: {error.strerror or error}", hint=hint)
    made.errno = error.errno
    return made
