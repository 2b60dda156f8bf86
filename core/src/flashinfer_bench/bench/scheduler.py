"""Spreading work over devices: one thread for each, all fed from one queue."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.pool import RunInterrupted, await_ends
from flashinfer_bench.errors import RunnerFatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from flashinfer_bench.bench.plan import WorkItem
    from flashinfer_bench.bench.session import Runner

logger = logging.getLogger(__name__)

_LOOK_S = 0.5  # how often threads look up from waiting: Ctrl-C gets through on every platform


class Scheduler:
    """Works off items with several runners at once.

    Each runner gets a thread of its own; the calling thread only waits. So Ctrl-C, which Python
    delivers to the main thread, never breaks into an evaluation or into writing a trace: the
    processes of the candidates are killed, the threads notice and end, and what was finished
    before is stored.

    A runner goes on with the definition that it has worked on, since what it has built stays of
    use; else it begins with the one that has most left, the first among equals.

    Parameters
    ----------
    items : iterable of WorkItem
        The work, in the preferred order.
    runners : sequence of Runner
        One for each device.
    work : callable
        ``work(runner, item)`` does one item. If it raises `RunnerFatalError` the device is given up
        and the others go on; whatever else it raises ends the run.
    """

    def __init__(
        self,
        items: Iterable[WorkItem],
        runners: Sequence[Runner],
        work: Callable[[Runner, WorkItem], None],
    ) -> None:
        self._runners = runners
        self._work = work
        self._waiting: dict[str, deque[WorkItem]] = {}
        for item in items:
            self._waiting.setdefault(item.definition.name, deque()).append(item)
        self._serving = len(runners)
        self._in_hand = 0  # items that are being worked on, and may yet be put back
        self._changed = threading.Condition()
        self._stopping = False
        self._error: Optional[BaseException] = None
        self._lost: Optional[RunnerFatalError] = None

    def run(self) -> None:
        """Work until nothing is left.

        Raises
        ------
        RunnerFatalError
            If work is left, but no device to do it on.
        Exception
            What `work` has raised otherwise.
        """
        threads: list[threading.Thread] = []
        try:
            for runner in self._runners:
                name = f"fib-device-{runner.device}"
                # No executor: the end of the process would wait for its threads.
                threads.append(threading.Thread(None, self._serve, name, (runner,), daemon=True))
                threads[-1].start()
            # No `join`: Python 3.11 takes a thread for ended whose join is broken off by Ctrl-C.
            with self._changed:
                while self._serving:
                    self._changed.wait(_LOOK_S)
        finally:
            if self._serving:
                self._stop(self._runners)
                await_ends(threads)
        if self._error is not None:
            raise self._error
        if self._lost is not None and any(self._waiting.values()):
            raise self._lost

    def put_back(self, item: WorkItem) -> None:
        """Take an item back that could not be worked on."""
        with self._changed:
            self._waiting.setdefault(item.definition.name, deque()).appendleft(item)

    def _stop(self, runners: Iterable[Runner]) -> None:
        self._stopping = True
        for runner in runners:
            runner.interrupt()

    def _serve(self, runner: Runner) -> None:
        definition = ""
        try:
            while (item := self._take(definition)) is not None:
                definition = item.definition.name
                try:
                    self._work(runner, item)
                finally:
                    with self._changed:
                        self._in_hand -= 1
                        self._changed.notify_all()
        except RunInterrupted:
            logger.debug("%s: broken off", runner.device)
        except RunnerFatalError as error:
            logger.error("%s is given up: %s", runner.device, error)
            self._lost = error
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._error = self._error or error
            self._stop(other for other in self._runners if other is not runner)
        try:
            runner.close()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._error = self._error or error
        with self._changed:
            self._serving -= 1
            self._changed.notify_all()

    def _take(self, definition: str) -> Optional[WorkItem]:
        """Take an item; None once there is none and none can come back from a lost device."""
        with self._changed:
            while not self._stopping:
                group = self._waiting.get(definition) or max(
                    self._waiting.values(), key=len, default=None
                )
                if group:
                    self._in_hand += 1
                    return group.popleft()
                if not self._in_hand:
                    return None
                self._changed.wait(_LOOK_S)
        return None
