"""Process relations that Python does not offer: which processes die together or adopt orphans."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import warnings
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Union

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MOST_BYTES = 4096  # of a file that tells a group's state

IS_LINUX = sys.platform == "linux"


@lru_cache(maxsize=1)
def libc() -> ctypes.CDLL:
    """Return the C library of this process."""
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> bool:
    return IS_LINUX and libc().prctl(option, value, 0, 0, 0) == 0


def die_with_parent(parent: int) -> None:
    """Have this process killed when `parent`, its parent, ends (Linux; nothing elsewhere).

    The system binds this to the *thread* of the parent that forked, so it is only for parents with
    a single one.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def adopt_orphans() -> bool:
    """Become the parent of descendants whose own parent ends (Linux).

    Returns
    -------
    bool
        Whether the system does that.
    """
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_idle_threads() -> int:
    """End the idle threads of libraries such as numpy, which start new ones on demand.

    Returns
    -------
    int
        Number of other threads that remain, as the system sees it; 0 if it does not say.
    """
    if len(tasks_of(os.getpid())) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # expected: there are threads
            pid = os.fork()  # for which they end
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return max(0, len(tasks_of(os.getpid())) - 1)


def kill_group(pid: int) -> None:
    """Kill `pid` and the process group that it leads; nothing if they are gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    kill(pid)
    freezer = freezer_of(pid)
    if freezer is not None:  # of the older kind: what is frozen does not end
        freezer.thaw()


def kill(pid: int) -> None:
    """Kill one process; nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


CONTROL_GROUP = "fib-candidate-{pid}"
"""Name of the control groups that a candidate may be in, alone with what it has started."""

_CONTROL_GROUPS = Path("/sys/fs/cgroup")


def control_groups(pid: Union[int, str] = "self") -> dict[str, Path]:
    """Return the folders of the control groups that a process is in, by controller.

    That of the newer hierarchy, which has all controllers, is under the empty name.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return {}
    found: dict[str, Path] = {}
    for _, controllers, path in (line.split(":", 2) for line in lines):
        mounts = controllers.split(",") if controllers else ("", "unified")
        places = [_CONTROL_GROUPS / name / path.lstrip("/") for name in mounts]
        # Another file system may be mounted there.
        there = [place for place in places if (place / "cgroup.procs").exists()]
        if there:
            found |= dict.fromkeys(controllers.split(","), there[0])
    return found


class Freezer:
    """Stops all processes of a control group at once, in a way that they cannot hold open.

    See https://docs.kernel.org/admin-guide/cgroup-v2.html and, for the older kind,
    https://docs.kernel.org/admin-guide/cgroup-v1/freezer-subsystem.html. Its files stay open, as
    opening them takes longer than all else.

    Parameters
    ----------
    state : Path
        The group's file for that: ``cgroup.freeze``, or ``freezer.state`` of the older kind.
    """

    def __init__(self, state: Path) -> None:
        self._older = state.name == "freezer.state"
        told = state if self._older else state.with_name("cgroup.events")
        self._files: list[int] = []
        for path, mode in ((state, os.O_WRONLY), (told, os.O_RDONLY)):
            self._files.append(os.open(path, mode | os.O_CLOEXEC))

    @classmethod
    def of_group(cls, group: Path) -> Optional[Freezer]:
        """Return that of a group, by its folder; None if it has none."""
        for name in ("cgroup.freeze", "freezer.state"):
            with contextlib.suppress(OSError):
                return cls(group / name)
        return None

    def freeze(self) -> None:
        """Begin to stop everything: none of it runs code of its own any more.

        Raises
        ------
        FileNotFoundError
            If the group is gone.
        """
        self._write(b"FROZEN" if self._older else b"1")

    def is_frozen(self) -> bool:
        """Return whether everything stands still; raises as `freeze` does."""
        with _ended_group():
            text = os.pread(self._files[1], _MOST_BYTES, 0)
        return text.startswith(b"FROZEN") if self._older else b"frozen 1" in text

    def thaw(self) -> None:
        """Let everything go on; never raises."""
        with contextlib.suppress(OSError):
            self._write(b"THAWED" if self._older else b"0")

    def __del__(self) -> None:
        for file in self._files:
            os.close(file)

    def _write(self, text: bytes) -> None:
        with _ended_group():
            os.pwrite(self._files[0], text, 0)


@contextlib.contextmanager
def _ended_group() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENODEV:  # of an open file
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
        raise


def freezer_of(pid: int) -> Optional[Freezer]:
    """Return what stops a candidate with all that it has started, if it is in a group for that."""
    groups, name = control_groups(pid), CONTROL_GROUP.format(pid=pid)
    own = (groups[key] for key in ("", "freezer") if key in groups and groups[key].name == name)
    return next(filter(None, map(Freezer.of_group, own)), None)


def tasks_of(pid: int) -> list[Path]:
    """Return the folders of a process's threads (Linux; empty elsewhere, and if it is gone)."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def children_of(pid: int) -> list[int]:
    """Return the children of a process, zombies included (Linux; empty elsewhere)."""
    found: list[int] = []
    for task in tasks_of(pid):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found += map(int, (task / "children").read_text().split())
    return found


def tree_of(pid: int) -> Iterator[int]:
    """Yield a process, and then its descendants (Linux; none elsewhere)."""
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += children_of(current)
