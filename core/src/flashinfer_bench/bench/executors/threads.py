"""The threads of a worker, seen from outside (Linux): how busy they are, and on which cores.

Times are the scheduler's own (``/proc/PID/task/TID/schedstat``).
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench.bench.candidate.processes import tasks_of, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

ENDED = 0
"""No thread has this number: here it stands for all that have ended."""

_PROCESS_CLOCK = 2  # CPUCLOCK_SCHED of include/linux/posix-timers.h: that of a whole process
_CHILDREN_TIME = slice(13, 15)  # cutime and cstime of man 5 proc, after the name
_RAN = 0  # field of schedstat
_LISTINGS = 20  # of threads, until no new one has been started between two of them


def thread_times(pid: int) -> dict[int, int]:
    """Return the processor time of each thread of a process, and of its descendants.

    Returns
    -------
    dict
        Nanoseconds by the number of the thread; what those have done that are gone is under
        `ENDED`. Nothing where the system does not tell.
    """
    found: dict[int, int] = {}
    ended = 0
    for process in tree_of(pid):
        running = _running_times(process)
        found.update(running)
        with suppress(OSError, ValueError, IndexError):
            ended += max(0, _process_time(process) - sum(running.values()))
            ended += _children_time(process)
    if found:
        found[ENDED] = ended
    return found


def _running_times(pid: int) -> dict[int, int]:
    found = {}
    for task in tasks_of(pid):
        with suppress(OSError, ValueError, IndexError):
            found[int(task.name)] = int((task / "schedstat").read_text().split()[_RAN])
    return found


def _process_time(pid: int) -> int:
    """Return the processor time of a process, with threads that have ended."""
    return time.clock_gettime_ns((~pid << 3) | _PROCESS_CLOCK)


def _children_time(pid: int) -> int:
    """Return the processor time of children that have ended, in steps of 10 ms mostly."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    # The name of the program, in parentheses, may hold anything.
    fields = text.rpartition(")")[2].split()
    ticks = sum(map(int, fields[_CHILDREN_TIME]))
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def keep_on(cores: Set[int], pid: int) -> bool:
    """Keep all threads of a process on some cores, and those that they start later.

    A thread may start another while it is looked for, and end. So it is over only when nothing new
    is found.

    Returns
    -------
    bool
        Whether that is done; False if the system refuses it, or new threads come without end.
    """
    if not hasattr(os, "sched_setaffinity"):
        return False
    done: set[int] = set()
    for _ in range(_LISTINGS):
        new = {int(task.name) for task in tasks_of(pid)} - done
        if not new:
            return bool(done)
        for thread in new:
            try:
                os.sched_setaffinity(thread, cores)
            except ProcessLookupError:  # it has ended meanwhile
                pass
            except (OSError, ValueError):
                return False
        done |= new
    return False


@contextmanager
def staying_on(core: int) -> Iterator[None]:
    """Keep the calling thread on a core during the body of a ``with`` statement.

    It computes alone then: threads that torch started meanwhile would stay there for good, and
    those that it has spin on other cores for a while after each operation.
    """
    import torch

    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    try:
        os.sched_setaffinity(0, {core})
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, before)


def cores_of(pid: int) -> frozenset[int]:
    """Return the cores that any thread of a process may be on; none if that is not known."""
    found: set[int] = set()
    if hasattr(os, "sched_getaffinity"):
        for task in tasks_of(pid):
            with suppress(OSError, ValueError):
                found |= os.sched_getaffinity(int(task.name))
    return frozenset(found)
