"""Process relations that Python does not offer: who dies with whom, and who inherits orphans."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

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


def thread_count() -> int:
    """Return the number of threads of this process as the system sees it; 1 if it does not say."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 1


def kill_group(pid: int) -> None:
    """Kill `pid` and the process group that it leads; nothing if they are gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    kill(pid)


def kill(pid: int) -> None:
    """Kill one process; nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def own_children() -> list[int]:
    """Return the children that this thread has, zombies included (Linux; empty elsewhere)."""
    me = os.getpid()
    try:
        return [int(child) for child in Path(f"/proc/self/task/{me}/children").read_text().split()]
    except OSError:  # a kernel built without that file
        return [child for child, parent in _processes() if parent == me]


def descendants_of(pid: int) -> list[int]:
    """Return children, grandchildren and so on of `pid`, nearest first (Linux; empty elsewhere)."""
    known = list(_processes())
    found = [pid]
    for ancestor in found:
        found += [child for child, parent in known if parent == ancestor and child not in found]
    return found[1:]


def _processes() -> Iterator[tuple[int, int]]:
    """Yield pid and parent of every process."""
    try:
        names = [entry.name for entry in Path("/proc").iterdir()]
    except OSError:
        return
    for name in names:
        if name.isdigit():
            # It may end at any moment.
            with contextlib.suppress(OSError, ValueError, IndexError):
                yield int(name), _parent_of(name)


def _parent_of(name: str) -> int:
    stat = Path("/proc", name, "stat").read_bytes()
    # The name in parentheses may hold anything, parentheses and newlines included.
    return int(stat[stat.rindex(b")") + 1 :].split()[1])
