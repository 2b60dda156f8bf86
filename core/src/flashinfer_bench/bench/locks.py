"""One measurement at a time on each device, over all processes and users of this machine."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from flashinfer_bench import env
from flashinfer_bench.bench.lock_folder import COMMON, open_lock_folder
from flashinfer_bench.bench.physical import physical_name
from flashinfer_bench.errors import RunnerFatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_NOTICE_AFTER_S = 5.0
_ATTEMPTS = 20


class DeviceLock:
    """Excludes other measurements on a device.

    The lock is one of the operating system's (``flock``) on a file that all users of the machine
    share, see `open_lock_folder`. The file is named after the device itself and not after its
    number, which may mean another one in another process. The system frees the lock when its
    holder dies; the file stays, empty, and means nothing by itself.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.
    """

    def __init__(self, device: str) -> None:
        self.device = device

    @contextmanager
    def held(self, give_up: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Hold the lock for the body of a ``with`` statement.

        Parameters
        ----------
        give_up : callable
            Asked again and again while waiting; if it returns True, waiting ends.

        Yields
        ------
        bool
            Whether the lock is held; False only after `give_up`.

        Raises
        ------
        RunnerFatalError
            If there can be no lock file.
        """
        name = lock_path(self.device).name
        descriptor = -1
        try:
            with open_lock_folder() as folder:
                descriptor = self._wait(folder, name, give_up)
        except OSError as error:
            raise RunnerFatalError(
                f"cannot lock {self.device}: {name}: {error}",
                hint="set FIB_LOCK_PATH to a folder that can be written",
            ) from error
        try:
            yield descriptor >= 0
        finally:
            if descriptor >= 0:
                os.close(descriptor)  # which frees the lock

    def _wait(self, folder: int, name: str, give_up: Callable[[], bool]) -> int:
        began, noticed = time.monotonic(), False
        while (descriptor := lock_file(folder, name)) < 0 and not give_up():
            time.sleep(_POLL_S)
            if not noticed and time.monotonic() - began > _NOTICE_AFTER_S:
                logger.info("waiting for %s: another process measures there", self.device)
                noticed = True
        return descriptor


def lock_path(device: str) -> Path:
    """Return the lock file of a device, where the folder for all users can be used."""
    return (env.lock_path() or COMMON) / f"device-{physical_name(device)}.lock"


def lock_file(folder: int, name: str) -> int:
    """Try once to lock a file.

    Parameters
    ----------
    folder : int
        Descriptor of its folder.
    name : str
        Its name; it is made if need be.

    Returns
    -------
    int
        A descriptor that holds the lock until it is closed; -1 if somebody else holds it.

    Raises
    ------
    OSError
        If the file can neither be opened nor made, or is not a regular one.
    """
    for _ in range(_ATTEMPTS):
        descriptor = _open(folder, name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(descriptor, folder, name):
                with suppress(OSError):
                    os.utime(descriptor)  # sweepers of temporary folders look at this
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return -1
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the file was removed meanwhile; others lock the new one
    raise OSError(errno.EBUSY, "is removed again and again")


def _is_named(descriptor: int, folder: int, name: str) -> bool:
    try:
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def _open(folder: int, name: str) -> int:
    """Open a file for locking, which asks for no more than that it can be read.

    It is never opened for writing, and a link is not followed: in a folder that all may write to,
    another user decides what the name stands for. ``O_CREAT`` is only used where the file is
    missing, because Linux refuses it for the files of others in such a folder.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for _ in range(_ATTEMPTS):
        try:
            return _regular(os.open(name, flags, dir_fd=folder))
        except FileNotFoundError:
            pass
        except PermissionError:
            time.sleep(_POLL_S / 10)  # just made by another user, who has yet to open it to others
            continue
        try:
            made = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder)
        except FileExistsError:
            continue
        os.fchmod(made, 0o644)  # whatever the umask says
        return made
    return _regular(os.open(name, flags, dir_fd=folder))


def _regular(descriptor: int) -> int:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "is not a regular file")
