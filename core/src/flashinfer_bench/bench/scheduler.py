"""Spreading work over devices: one thread for each, all fed from one queue."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.errors import RunnerFatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from flashinfer_bench.bench.plan import WorkItem
    from flashinfer_bench.bench.runner import Runner

logger = logging.getLogger(__name__)

_LOOK_S = 0.5  # how often the main thread looks up from waiting
_LAST_WORDS_S = 10.0  # how long threads may take to end once their processes are killed


class WorkQueue:
    """Work items that threads take and may put back.

    Parameters
    ----------
    items : iterable of WorkItem
        The work, in the preferred order.
    """

    def __init__(self, items: Iterable[WorkItem]) -> None:
        self._lock = threading.Lock()
        self._by_definition: dict[str, deque[WorkItem]] = {}
        for item in items:
            self._by_definition.setdefault(item.definition.name, deque()).append(item)

    def __len__(self) -> int:
        return sum(len(group) for group in self._by_definition.values())

    def take(self, definition: Optional[str] = None) -> Optional[WorkItem]:
        """Return the next item, or None when there is none left.

        Parameters
        ----------
        definition : str, optional
            What the taker has worked on so far. It goes on with that: what it has built stays of
            use. Else it begins with the definition that has most left; the first among equals.
        """
        with self._lock:
            group = self._by_definition.get(definition or "")
            if not group:
                groups = list(self._by_definition.values())
                group = max(groups, key=len, default=None)
            return group.popleft() if group else None

    def put_back(self, item: WorkItem) -> None:
        """Return an item that could not be worked on."""
        with self._lock:
            self._by_definition.setdefault(item.definition.name, deque()).appendleft(item)


class Scheduler:
    """Works off a queue with several runners at once.

    Each runner gets a thread of its own; the calling thread only waits. So Ctrl-C, which Python
    delivers to the main thread, never breaks into an evaluation or into writing a trace: the
    processes of the candidates are killed, the threads notice and end, and what was finished
    before is stored.

    Parameters
    ----------
    queue : WorkQueue
        The work.
    runners : sequence of Runner
        One for each device.
    work : callable
        ``work(runner, item)`` does one item. If it raises `RunnerFatalError` the device is given up
        and the others go on; whatever else it raises ends the run.
    """

    def __init__(
        self,
        queue: WorkQueue,
        runners: Sequence[Runner],
        work: Callable[[Runner, WorkItem], None],
    ) -> None:
        self._queue = queue
        self._runners = runners
        self._work = work
        self._stopping = threading.Event()
        self._error: Optional[BaseException] = None
        self._lost: list[RunnerFatalError] = []
        self._lock = threading.Lock()
        self._at_work = len(runners)
        self._in_hand = 0  # items that are being worked on, and may yet be put back
        self._returned = threading.Condition()
        # Not Thread.join and is_alive: up to Python 3.12 a thread whose join is broken off by
        # Ctrl-C counts as ended although it is not.
        self._all_ended = threading.Event()
        if not runners:
            self._all_ended.set()

    def run(self) -> None:
        """Work until the queue is empty.

        Raises
        ------
        RunnerFatalError
            If every device was lost and work is left.
        KeyboardInterrupt
            If the user asked to stop.
        Exception
            What `work` raised.
        """
        try:
            for runner in self._runners:
                threading.Thread(
                    target=self._serve, args=(runner,), name=f"fib-{runner.device}", daemon=True
                ).start()
            self._wait()
        finally:
            if not self._all_ended.is_set():
                self._stop()
        if self._error is not None:
            raise self._error
        if self._lost and len(self._queue):
            raise self._lost[-1]

    def _wait(self) -> None:
        while not self._all_ended.wait(_LOOK_S):
            pass  # looking up now and then lets signals through on every platform

    def _stop(self) -> None:
        self._stopping.set()
        for runner in self._runners:
            runner.interrupt()
        self._all_ended.wait(_LAST_WORDS_S)

    def _serve(self, runner: Runner) -> None:
        definition: Optional[str] = None
        try:
            while (item := self._next(definition)) is not None:
                definition = item.definition.name
                try:
                    self._work(runner, item)
                finally:
                    self._let_go()
        except RunInterrupted:
            logger.debug("%s: broken off", runner.device)
        except RunnerFatalError as error:
            logger.error("%s is given up: %s", runner.device, error)
            self._lost.append(error)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._error = self._error or error
            self._stopping.set()
            for other in self._runners:
                if other is not runner:
                    other.interrupt()
        finally:
            self._end(runner)

    def _next(self, definition: Optional[str]) -> Optional[WorkItem]:
        """Take an item; None once there is none and none can come back from a lost device."""
        with self._returned:
            while not self._stopping.is_set():
                item = self._queue.take(definition)
                if item is not None:
                    self._in_hand += 1
                    return item
                if not self._in_hand:
                    return None
                self._returned.wait(_LOOK_S)
        return None

    def _let_go(self) -> None:
        with self._returned:
            self._in_hand -= 1
            self._returned.notify_all()

    def _end(self, runner: Runner) -> None:
        try:
            runner.close()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._error = self._error or error
        finally:
            with self._lock:
                self._at_work -= 1
                if not self._at_work:
                    self._all_ended.set()
