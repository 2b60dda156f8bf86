"""Tells those who wait what happened to tasks, reading the database once for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Optional

from fib_serve.records import Event, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fib_serve.store import Store

_logger = logging.getLogger(__name__)
_POLL_S = 1.0
_UNREAD = 1_000
_BATCH = 500
_FINAL = frozenset(status.value for status in TaskStatus if status.final)


def is_final(event: Event) -> bool:
    """Return whether a task ends with this event, unless someone asks for another try."""
    return event.kind in _FINAL


class Subscription:
    """Events that one client waits for."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Optional[Event]] = asyncio.Queue()
        self.closed = False

    def put(self, event: Event) -> None:
        """Add an event; a client that reads too slowly is left behind."""
        if self._queue.qsize() >= _UNREAD:
            self.close()
        elif not self.closed:
            self._queue.put_nowait(event)

    def close(self) -> None:
        """Let it end after what has been added."""
        if not self.closed:
            self.closed = True
            self._queue.put_nowait(None)

    async def next(self, timeout: float) -> Optional[Event]:
        """Return the next event; None if there is none in time, or no more."""
        if self.closed and self._queue.empty():
            return None
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(self._queue.get(), timeout)
        return None


class Notifier:
    """Hands new events of a store to subscriptions.

    Parameters
    ----------
    store : Store
        The events.
    on_final : callable
        Called in a thread after tasks have ended.

    Attributes
    ----------
    evaluations : Counter
        Evaluations since the start, by status.
    waits, waited_s
        How many tasks were begun since the start, and how long they had waited altogether.
    """

    def __init__(self, store: Store, on_final: Callable[[], None] = lambda: None) -> None:
        self._store, self._on_final = store, on_final
        self._subscribed: dict[Optional[str], set[Subscription]] = {}
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._changed = asyncio.Event()
        self._feeder: Optional[asyncio.Task[None]] = None
        self.evaluations: Counter[str] = Counter()
        self.waits, self.waited_s = 0, 0.0

    async def start(self) -> None:
        """Begin with the events from now on."""
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        last = await asyncio.to_thread(self._store.last_event)
        self._feeder = asyncio.create_task(self._feed(last), name="fib-serve-events")

    async def stop(self) -> None:
        """Read no more events."""
        self.close()
        self._loop = None
        if self._feeder is not None:
            self._feeder.cancel()
            await asyncio.gather(self._feeder, return_exceptions=True)

    def close(self) -> None:
        """End what all clients wait for."""
        for some in list(self._subscribed.values()):
            for one in list(some):
                one.close()

    def wake(self) -> None:
        """Have new events read at once; from any thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._changed.set)

    @contextlib.contextmanager
    def subscribed(self, *tasks: Optional[str]) -> Iterator[Subscription]:
        """Lend the events of some tasks, or, for None, of all."""
        mine = Subscription()
        for task in tasks:
            self._subscribed.setdefault(task, set()).add(mine)
        try:
            yield mine
        finally:
            for task in tasks:
                others = self._subscribed.get(task, set())
                others.discard(mine)
                if not others:
                    self._subscribed.pop(task, None)

    async def _feed(self, last: int) -> None:
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _POLL_S)
            self._changed.clear()
            try:
                found = await asyncio.to_thread(self._read, last)
            except Exception:  # a database that is locked or full for a while
                _logger.exception("events cannot be read; trying again")
                await asyncio.sleep(_POLL_S)
                continue
            for event in found:
                last = event.id
                for one in (*self._subscribed.get(event.task, ()), *self._subscribed.get(None, ())):
                    one.put(event)
            if len(found) == _BATCH:
                self._changed.set()

    def _read(self, last: int) -> list[Event]:
        found = self._store.events(last, limit=_BATCH)
        for event in found:
            if event.kind == "evaluated":
                self.evaluations[str(event.data.get("status"))] += 1
            elif event.kind == "started":
                task = self._store.task(event.task)
                self.waits += 1
                self.waited_s += max(0.0, event.at - task.created) if task else 0.0
        if any(map(is_final, found)):
            self._on_final()
        return found
