"""A few threads that work off a list whose order may change."""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Optional, TypeVar

from flashinfer_bench.bench.pool import RunInterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TaskT = TypeVar("TaskT")

_LOOK_S = 0.5  # how often those who wait look up: Ctrl-C gets through then on every platform
# What compiling a large source takes at its peak; torch's headers with nvcc take 3 GB.
_MEMORY_OF_A_COMPILER = 2 * 2**30


def default_jobs(*, spare: int = 1) -> int:
    """Return how many compilers may run at once: one for each core, as far as memory goes.

    Parameters
    ----------
    spare : int
        Number of cores to leave to others.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = _available_memory()
    room = memory // _MEMORY_OF_A_COMPILER if memory is not None else cores or 1
    return max(1, min((cores or 1) - spare, room))


def _available_memory() -> Optional[int]:
    """Return the bytes that processes can still get, or None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    return int(found[0][1]) * 1024 if found else None


class Crew(Generic[TaskT]):
    """Does tasks in a number of threads, which are started as they are needed.

    Parameters
    ----------
    work : callable
        Does one task. What it raises is raised by `wait`, and ends everything.
    size : int
        How many tasks are worked on at the same time.
    """

    def __init__(self, work: Callable[[TaskT], None], *, size: int) -> None:
        self._work = work
        self._size = size
        self._tasks: deque[TaskT] = deque()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._stopping = False
        self._error: Optional[BaseException] = None
        self._changed = threading.Condition()

    def add(self, tasks: Iterable[TaskT]) -> None:
        """Put tasks at the end of the list."""
        with self._changed:
            if self._stopping:
                return
            self._tasks.extend(tasks)
            while len(self._threads) < min(self._size, self._busy + len(self._tasks)):
                name = f"fib-build-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._serve, name=name, daemon=True))
                self._threads[-1].start()
            self._changed.notify_all()

    def hurry(self, urgent: Callable[[TaskT], bool]) -> None:
        """Move the tasks that `urgent` returns True for to the front; else the order stays."""
        with self._changed:
            self._tasks = deque(sorted(self._tasks, key=lambda task: not urgent(task)))

    def wait(self, until: Optional[Callable[[], bool]] = None) -> None:
        """Wait until a condition holds, which is looked at whenever a task has been done.

        Parameters
        ----------
        until : callable
            The condition. By default, that everything is done.

        Raises
        ------
        RunInterrupted
            If the crew is stopped before that.
        Exception
            What a task raised.
        """
        with self._changed:
            while True:
                self.check()
                if until() if until is not None else not (self._tasks or self._busy):
                    return
                if self._stopping:
                    raise RunInterrupted("the run ended while solutions were built")
                self._changed.wait(_LOOK_S)

    def check(self) -> None:
        """Raise what a task has raised, if one has."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Begin no further task; those who wait are told. Ending the current ones is up to you."""
        with self._changed:
            self._stopping = True
            self._tasks.clear()
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait until the threads have ended after `stop`, for `timeout_s` each at most."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _serve(self) -> None:
        while self._next():
            pass

    def _next(self) -> bool:
        """Do one task; return False if there will be none any more."""
        with self._changed:
            while not self._tasks:
                if self._stopping:
                    return False
                self._changed.wait()  # without looking up: something may just be timed
            task = self._tasks.popleft()
            self._busy += 1
        failure: Optional[BaseException] = None
        try:
            self._work(task)
        except BaseException as error:  # noqa: BLE001 - handed to the threads that wait
            failure = error
        with self._changed:
            self._busy -= 1
            self._error = self._error or failure
            self._changed.notify_all()
        if failure is not None:
            self.stop()
        return True
