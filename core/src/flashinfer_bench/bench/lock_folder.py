"""Where the locks of devices are: in one folder for all users of a machine.

Devices are the machine's and caches are a user's, so locks in a cache would not exclude another
user. The folder lies in ``/tmp``, is open to all and has the sticky bit, as ``/tmp`` itself: nobody
can remove the files of others. Whoever comes first makes it. Nothing is ever written to a file in
it, and no link is followed.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench import env

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

# Not tempfile's folder: TMPDIR may be another one for each user or job.
COMMON = Path("/tmp/fib-device-locks")

_OPEN_TO_ALL = 0o1777
_ATTEMPTS, _PAUSE_S = 20, 0.01


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
    descriptor = _open_first()
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def lock_places() -> list[Path]:
    """Return what a process must not reach that must hold no lock of a device.

    The folder for all users is made if need be, so that it cannot appear later. A folder that holds
    more than locks stays within reach, but for the locks that are there now.
    """
    with suppress(OSError), open_lock_folder():
        pass
    folders = (env.lock_path(), COMMON, env.cache_path() / "locks")
    return [place for folder in folders if folder is not None for place in _places_in(folder)]


def _places_in(folder: Path) -> list[Path]:
    try:
        locks = sorted(folder.glob("device-*.lock"))
        return locks if len(locks) < len(list(folder.iterdir())) else [folder]
    except OSError:
        return []


def _open_first() -> int:
    own = env.lock_path()
    if own is not None:
        return _open_private(own)
    try:
        return _open_common(COMMON)
    except OSError as error:
        folder = env.cache_path() / "locks"
        _tell(f"{COMMON}: {error.strerror or error}", str(folder))
        return _open_private(folder)


@cache  # so that it is told once
def _tell(problem: str, instead: str) -> None:
    logger.warning(
        "other users' measurements on the same devices are not excluded: %s; locks are in %s. "
        "Set FIB_LOCK_PATH to a folder that all of them use.",
        problem,
        instead,
    )


def _open_private(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _open_common(folder: Path) -> int:
    """Open the folder that all users share.

    Raises
    ------
    OSError
        If it is a link, or not open to all with the sticky bit, so that some could not lock there
        or could remove the locks of others.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        made = False
    else:
        made = True
    descriptor = _open_as_made(folder)
    try:
        status = os.fstat(descriptor)
        if made or (status.st_uid == os.geteuid() and _mode(status) != _OPEN_TO_ALL):
            os.fchmod(descriptor, _OPEN_TO_ALL)  # whatever the umask says
        elif _mode(status) != _OPEN_TO_ALL:
            raise OSError(errno.EPERM, f"has mode {_mode(status):o} instead of {_OPEN_TO_ALL:o}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_as_made(folder: Path) -> int:
    """Open a folder; wait a moment for another user who has just made it to open it to others."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(_ATTEMPTS):
        with suppress(PermissionError):
            return os.open(folder, flags)
        time.sleep(_PAUSE_S)
    return os.open(folder, flags)


def _mode(status: os.stat_result) -> int:
    return stat.S_IMODE(status.st_mode)
