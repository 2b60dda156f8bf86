"""One measurement at a time on each device, over all processes and users of this machine.

Devices are the machine's and caches are a user's, so locks in a cache would not exclude another
user. The folder of the locks lies in ``/tmp``, is open to all and has the sticky bit, as ``/tmp``
itself: nobody can remove the files of others. Whoever comes first makes it. Nothing is ever written
to a file in it, and no link is followed.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import stat
import time
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench import env
from flashinfer_bench.errors import RunnerFatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

# Not tempfile's folder: TMPDIR may be another one for each user or job.
COMMON = Path("/tmp/fib-device-locks")

_OPEN_TO_ALL = 0o1777
_POLL_S = 0.05
_NOTICE_AFTER_S = 5.0
_ATTEMPTS, _PAUSE_S = 20, 0.01
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


@contextmanager
def device_lock(device: str, give_up: Callable[[], bool] = lambda: False) -> Iterator[bool]:
    """Exclude other measurements on a device during the body of a ``with`` statement.

    The lock is one of the operating system's (``flock``) on a file that all users of the machine
    share, see `open_lock_folder`. The file is named after the device itself and not after its
    number, which may mean another one in another process. The system frees the lock when its
    holder dies; the file stays, empty, and means nothing by itself.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.
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
    name = f"device-{physical_name(device)}.lock"
    began, noticed = time.monotonic(), False
    try:
        with open_lock_folder() as folder:
            while (descriptor := lock_file(folder, name)) < 0 and not give_up():
                time.sleep(_POLL_S)
                if not noticed and time.monotonic() - began > _NOTICE_AFTER_S:
                    logger.info("waiting for %s: another process is measuring on it", device)
                    noticed = True
    except OSError as error:
        raise RunnerFatalError(
            f"cannot lock {device}: {name}: {error}",
            hint="set FIB_LOCK_PATH to a writable folder",
        ) from error
    try:
        yield descriptor >= 0
    finally:
        if descriptor >= 0:
            os.close(descriptor)  # which frees the lock


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
    problem = OSError(errno.EBUSY, "keeps being removed")
    for _ in range(_ATTEMPTS):
        try:
            descriptor = _open(folder, name)
        except (FileExistsError, PermissionError) as error:
            problem = error  # another user has just made it, and has yet to open it to others
            time.sleep(_PAUSE_S)
            continue
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "is not a regular file")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # If it was removed meanwhile, others lock a new one.
            there = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if os.path.samestat(os.fstat(descriptor), there):
                with suppress(OSError):
                    os.utime(descriptor)  # sweepers of temporary folders look at this
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return -1
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise problem


def _open(folder: int, name: str) -> int:
    """Open a file for locking, which asks for no more than that it can be read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        # Without O_CREAT: Linux refuses that for files of others where all may write.
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        made = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder)
        os.fchmod(made, 0o644)  # whatever the umask says
        return made


@contextmanager
def open_lock_folder() -> Iterator[int]:
    """Open the folder of the locks for the body of a ``with`` statement, and make it if need be.

    It is that of ``FIB_LOCK_PATH`` if this is set. Else it is `COMMON` and, where this cannot be
    used, ``locks`` in the user's own cache, which is told once.

    Yields
    ------
    int
        Its descriptor.

    Raises
    ------
    OSError
        If there is no such folder and it cannot be made.
    """
    own = env.lock_path()
    try:
        descriptor = _open_common(COMMON) if own is None else _open_private(own)
    except OSError as error:
        if own is not None:
            raise
        own = env.cache_path() / "locks"
        _tell(f"{COMMON}: {error.strerror or error}", str(own))
        descriptor = _open_private(own)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_private(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _open_common(folder: Path) -> int:
    """Open the folder that all users share."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    for attempt in range(_ATTEMPTS + 1):
        try:
            descriptor = os.open(folder, flags)
            break
        except PermissionError:  # another user has just made it, and has yet to open it to others
            if attempt == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_S)
    try:
        status = os.fstat(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        if mode != _OPEN_TO_ALL:
            if status.st_uid != os.geteuid():
                raise OSError(errno.EPERM, f"has mode {mode:o} instead of {_OPEN_TO_ALL:o}")
            os.fchmod(descriptor, _OPEN_TO_ALL)  # whatever the umask says
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@cache  # so that it is told once
def _tell(problem: str, instead: str) -> None:
    logger.warning(
        "measurements by other users on the same devices are not locked out: %s; locks are in %s. "
        "Set FIB_LOCK_PATH to a folder that all users share.",
        problem,
        instead,
    )


def physical_name(device: str) -> str:
    """Return a name for a device that does not depend on how this process numbers devices.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.

    Returns
    -------
    str
        Letters, digits and hyphens: ``cpu``, or ``cuda-`` and the device's UUID. Where torch does
        not tell the UUID, the device's entry in ``CUDA_VISIBLE_DEVICES`` or its number stands in.
    """
    kind, _, index = device.partition(":")
    name = device
    if kind == "cuda":
        number, visible = int(index or 0), env.cuda_visible_devices() or ()
        entry = visible[number] if number < len(visible) else str(number)
        told = _told_by_torch(number) or entry
        uuid = _UUID.search(told)
        name = f"cuda-{uuid[0].lower() if uuid else told}"
    return re.sub(r"[^A-Za-z0-9-]", "_", name)


def _told_by_torch(number: int) -> str:
    """Ask torch, whose numbers are those of the devices that solutions work on."""
    with suppress(ImportError, RuntimeError, AssertionError, AttributeError):
        import torch

        if torch.cuda.is_available() and number < torch.cuda.device_count():
            return str(torch.cuda.get_device_properties(number).uuid)
    return ""
