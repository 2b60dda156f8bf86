"""Durable writing: locked appends, atomic replacement, fsync.

Lines are appended to a data file with one ``write``, while its lock (a hidden file next to it) is
held. If that fails, the file is truncated to its previous size. If the process is killed in the
middle, the next append moves the unfinished line to another file; readers skip it.

The lock is a ``flock``, which ends with its process. On file systems without it, or where other
machines do not see it, ``FIB_DATASET_LOCK=soft`` uses the existence of a lock file instead. The
file names its owner, so that locks of dead processes can be recognised.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
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
"""Seconds to wait for another process; locks of dead processes are released."""

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
    """Hold the lock of a data file; its folder is created if necessary.

    Raises
    ------
    StorageError
        If the lock cannot be created, or is not acquired within `timeout_s` seconds.
    """
    soft = env.soft_dataset_locks()
    file = soft_lock_path(path) if soft else lock_path(path)
    lock = (SoftFileLock if soft else FileLock)(file, timeout=timeout_s)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        hint = f"find the process that has {file} open, for example with lsof"
        if soft:
            hint = f"{file} names the owner; if it has ended, run 'fib doctor --repair'"
        message = f"{path}: locked by another process for more than {timeout_s:g} s"
        raise StorageError(message, hint=hint) from error
    except OSError as error:
        raise storage_error(path.parent, error) from error
    try:
        yield
    finally:
        lock.release()


def append_lines(path: Path, lines: Sequence[bytes]) -> None:
    """Append whole lines to a file, durably and all at once.

    Parameters
    ----------
    path : Path
        The file; it is created if it does not exist.
    lines : sequence of bytes
        The lines, each with its newline.

    Raises
    ------
    StorageError
        If writing fails; the file is then unchanged.
    """
    if not lines:
        return
    with locked(path):
        existed = path.exists()
        try:
            if path.is_file():  # devices may be endless
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
    """Rewrite a file that is one JSON document as lines, so that lines can be appended."""
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
        except BaseException:  # also Ctrl-C: never leave half a line
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
    """Wait until written data is on disk, unless ``FIB_FSYNC`` is never."""
    if env.fsync_wanted():
        os.fsync(descriptor)


def _unfinished_line(descriptor: int) -> bytes:
    """Return the bytes after the last newline."""
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
    """Write a file durably and atomically: readers see either the old or the new content.

    Raises
    ------
    StorageError
        If writing fails; an existing file is then unchanged.
    """
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a hidden file that durably replaces a file if the block does not raise.

    Raises
    ------
    StorageError
        As for `replace_file`.
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
    """Make a new name in a folder durable, where the system supports it."""
    if not env.fsync_wanted():
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def storage_error(path: Path, error: OSError) -> StorageError:
    """Return the error for a file that cannot be written, with a hint for its cause."""
    hint = "free some space or check the permissions, then retry"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        hint = "change the permissions, or write elsewhere or to a copy"
    elif error.errno in MISNAMED:
        hint = "name another path"
    elif error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        hint = "another process has created it in the meantime; retry"
    elif error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
        hint = "this file system has no locks; set FIB_DATASET_LOCK=soft for all processes"
    made = StorageError(f"{path}: cannot write: {error.strerror or error}", hint=hint)
    made.errno = error.errno
    return made
