"""The threads of a candidate, seen from outside (Linux): how busy they are, and on which cores."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def thread_times(pid: int, proc: Path = _PROC) -> dict[int, int]:
    """Return the processor time of each thread of a process, in nanoseconds."""
    found = {}
    with suppress(OSError):
        for task in (proc / str(pid) / "task").iterdir():
            with suppress(OSError, ValueError, IndexError):
                found[int(task.name)] = int((task / "schedstat").read_text().split()[0])
    return found


def keep_on(core: int, pid: int, proc: Path = _PROC) -> bool:
    """Keep all threads of a process on a core, and those that they start later.

    Returns
    -------
    bool
        Whether that is done; False if the system refuses it.
    """
    try:
        for task in (proc / str(pid) / "task").iterdir():
            os.sched_setaffinity(int(task.name), {core})
    except (OSError, ValueError, AttributeError):  # another system has no such function
        return False
    return True
