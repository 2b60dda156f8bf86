"""The board: every slot, every active runtime, every watcher, and what connects them.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

import logging
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.integration.opaque import opaque
from flashinfer_bench.integration.watchers import Observing, note_of, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from flashinfer_bench.data import Definition
    from flashinfer_bench.integration.places import (
        Args,
        Call,
        Fallback,
        Kwargs,
        Observer,
        Runtime,
        Slot,
        Watcher,
    )

logger = logging.getLogger(__name__)

_MOST_UNKNOWN = 1024
_MOST_KNOWN = 65536
_ANYTHING = (Exception,)


class _Routes(dict[str, "Optional[Call]"]):
    """What takes the calls of a slot without a name, filled in as definitions are seen.

    Names may be made up from shapes without end, and somebody may watch them all: only so many are
    kept. Beyond that each call is worked out anew.
    """

    def __init__(self, find: Callable[[str], Optional[Call]]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, name: str) -> Optional[Call]:
        call = self._find(name) if type(name) is str else None
        if len(self) < (_MOST_UNKNOWN if call is None else _MOST_KNOWN):
            self[name] = call
        return call


class _Calls(dict[str, "Call"]):
    """What `Board.calls` is: who remembers which one there was can do so by a weak reference."""

    __slots__ = ("__weakref__",)


class Board:
    """Knows every slot and every active runtime, and connects the two.

    Of several active runtimes the one that started last decides, alone: what it does not know is
    not taken, even if an outer one knows it.

    Attributes
    ----------
    calls : dict
        For the function form: what takes a call, by definition. Replaced as a whole.
    quiet : bool
        Whether a definition that is not in `calls` is nobody's business: nobody observes, and the
        environment has been asked what to enable.
    deferred : callable, optional
        Enables what the environment asks for, where that waits for the first call that could
        matter; then nothing is enabled before, whatever is imported.
    """

    def __init__(self) -> None:
        self.calls: dict[str, Call] = _Calls()
        self.quiet = False
        self.deferred: Optional[Callable[[], object]] = None
        self._asked = False
        self._lock = threading.RLock()
        # No WeakSet: a slot that goes while another thread lists them breaks its iteration.
        self._slots: dict[int, weakref.ref[Slot]] = {}
        self._active: tuple[Runtime, ...] = ()
        self._watchers: tuple[Watcher, ...] = ()
        self._used: Callable[[], None] = _nothing

    # ------------------------------------------------------------------------------ runtimes

    @property
    def active(self) -> tuple[Runtime, ...]:
        """The active runtimes, the outermost first."""
        return self._active

    def settle(self) -> None:
        """Enable what was deferred: somebody asks what is enabled."""
        if self.deferred is not None:
            self.deferred()

    def top(self) -> Optional[Runtime]:
        """Return the runtime that takes calls now, or None."""
        active = self._active
        return active[-1] if active else None

    def push(self, runtime: Runtime) -> None:
        """Make `runtime` the innermost; one that is active already becomes it."""
        with self._changing():
            others = tuple(each for each in self._active if each is not runtime)
            self._set((*others, runtime))

    def remove(self, runtime: Runtime) -> bool:
        """Take `runtime` out, wherever it is; return whether it was active."""
        with self._changing():
            left = tuple(each for each in self._active if each is not runtime)
            if len(left) == len(self._active):
                return False
            self._set(left)
            return True

    def replace(self, old: Runtime, new: Runtime) -> bool:
        """Put `new` in the place of `old`; return whether that was active."""
        with self._changing():
            if not any(each is old for each in self._active):
                return False
            self._set(tuple(new if each is old else each for each in self._active))
            return True

    def clear(self) -> None:
        """Take all runtimes out."""
        self.deferred = None
        with self._changing():
            self._set(())

    def publish(self, runtime: Runtime) -> None:
        """Have every slot ask `runtime` anew, if it is the innermost: it has changed."""
        with self._changing():
            if self.top() is runtime:
                self._fill()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock while something changes, and tell of it afterwards.

        Who is told may import, and so wait for a thread that waits for the lock.
        """
        with self._lock:
            yield
        self._used()

    def _set(self, active: tuple[Runtime, ...]) -> None:
        before, self._active = self.top(), active
        if self.top() is not before:
            self._fill()

    # --------------------------------------------------------------------------------- slots

    def connect(self, slot: Slot) -> None:
        """Have `slot` filled, now and from now on, as long as anything else holds it."""
        with self._lock:
            key, slots = id(slot), self._slots
            slots[key] = weakref.ref(slot, lambda _gone: slots.pop(key, None))
            self._fill_slot(slot, self.top(), self._names())

    def slots(self) -> list[Slot]:
        """Return the slots that are in use, in no particular order."""
        found = [reference() for reference in list(self._slots.values())]
        return [slot for slot in found if slot is not None]

    # ------------------------------------------------------------------------------ watchers

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Have a watcher told of calls.

        Parameters
        ----------
        watcher : Watcher
            Is asked for its names now, and whenever slots are filled.

        Returns
        -------
        callable
            Ends it.
        """
        with self._changing():
            self._watchers = (*self._watchers, watcher)
            self._fill()

        def end() -> None:
            with self._changing():
                self._watchers = tuple(each for each in self._watchers if each is not watcher)
                self._fill()

        return end

    def observe(self, observer: Observer, name: Optional[str] = None) -> Callable[[], None]:
        """Have a function told of each call of one definition, or of all; see `watch`."""
        return self.watch(Observing(observer, name))

    def watchers_of(self, name: str) -> list[Watcher]:
        """Return who is told of the calls of a definition."""
        return [each for each in self._watchers if name in each.names()]

    @property
    def watchers(self) -> tuple[Watcher, ...]:
        """Who is told of calls."""
        return self._watchers

    # ----------------------------------------------------------------------------------- use

    def on_use(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after each change of who is active, or watches.

        And once at first; now and then without need. It is called without the board's lock, so
        what is in use may be something else by then: it must look itself, and must not raise.
        """
        self._used = changed
        changed()

    def wanted(self) -> list[str]:
        """Return the definitions of which calls matter to the innermost runtime, or a watcher."""
        everyone: tuple[Union[Runtime, Watcher], ...] = (*self._active[-1:], *self._watchers)
        return list(dict.fromkeys(name for each in everyone for name in each.names()))

    @property
    def in_use(self) -> bool:
        """Whether anybody is active, or watches."""
        return bool(self._active or self._watchers)

    def definition(self, name: str) -> Optional[Definition]:
        """Return a definition, if the innermost runtime or a watcher knows it."""
        for each in (self.top(), *self._watchers):
            find = getattr(each, "definition", None)
            try:
                found: Optional[Definition] = find(name) if find is not None else None
            except _ANYTHING:  # its file cannot be read any more, say
                logger.debug("definition '%s' cannot be had", name, exc_info=True)
                continue
            if found is not None:
                return found
        return None

    def asked(self) -> bool:
        """Note that the environment is asked now; return whether it had been before."""
        with self._lock:
            before, self._asked = self._asked, True
            self.quiet = not self._watchers
        return before

    def call_of(self, name: str) -> Optional[Call]:
        """Return what takes a call in the function form; None if nothing does."""
        call = self.calls.get(name)
        return self._compose(None, name, None) if call is None and self._watchers else call

    def _names(self) -> Collection[str]:
        top = self.top()
        return top.names() if top is not None else ()

    def _fill(self) -> None:
        top, names = self.top(), self._names()
        self.calls = self._calls(top, names)
        self.quiet = self._asked and not self._watchers
        for slot in self.slots():
            self._fill_slot(slot, top, names)

    def _calls(self, top: Optional[Runtime], names: Collection[str]) -> dict[str, Call]:
        calls: dict[str, Call] = _Calls()

        def keep(name: str, first: Call, call: Optional[Call]) -> None:
            if calls.get(name) is first:
                calls[name] = call or self._untaken(name)

        watched = [name for each in self._watchers for name in each.names()]
        calls.update((name, self._first(top, name, None, keep)) for name in (*names, *watched))
        return calls

    def _fill_slot(self, slot: Slot, top: Optional[Runtime], names: Collection[str]) -> None:
        def keep(name: str, first: Call, call: Optional[Call]) -> None:
            if slot.call is first:
                slot.call = call

        if slot.name is not None:
            wanted = slot.name in names or self.watchers_of(slot.name)
            slot.call = self._first(top, slot.name, slot, keep) if wanted else None
        elif names or self._watchers:
            slot.routes = _Routes(opaque(lambda name: self._compose(top, name, slot)))
        else:
            slot.routes = None

    def _first(
        self,
        top: Optional[Runtime],
        name: str,
        slot: Optional[Slot],
        keep: Callable[[str, Call, Optional[Call]], None],
    ) -> Call:
        """Return what asks the runtime when it is first called, and has itself replaced."""

        @opaque
        def first(
            args: tuple[Any, ...], kwargs: Optional[dict[str, Any]], fallback: Fallback
        ) -> Any:
            call = self._compose(top, name, slot)
            with self._lock:
                keep(name, first, call)
            return (call or self._untaken(name))(args, kwargs, fallback)

        return first

    def _compose(self, top: Optional[Runtime], name: str, slot: Optional[Slot]) -> Optional[Call]:
        """Return what takes a call: the runtime's part, behind those who want to be told."""
        call = _route(top, name, slot) if top is not None and name in top.names() else None
        notes = [note for each in self.watchers_of(name) if (note := note_of(each, name, slot))]
        return watched(notes, name, call or self._untaken(name)) if notes else call

    def _untaken(self, name: str) -> Call:
        """Return what runs the fallback."""

        @opaque
        def untaken(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
            if fallback is None:
                raise RuntimeError(self.no_fallback(name))
            return fallback(*args, **kwargs) if kwargs else fallback(*args)

        return untaken

    def no_fallback(self, name: str, reason: str = "") -> str:
        """Return the message for a call that nothing takes and that has no fallback."""
        top = self.top()
        if top is None:
            reason = "apply is not enabled"
        known = getattr(top, "problems", {}).get(name)
        reason = reason or known or f"{top!r} does not take it"
        return f"definition '{name}': {reason}, and no fallback is given"

    def after_fork(self) -> None:
        """Work in a forked child: another thread may have held the lock, or been filling slots."""
        self._lock = threading.RLock()
        self._fill()


def _route(runtime: Runtime, name: str, slot: Optional[Slot]) -> Optional[Call]:
    try:
        return runtime.route(name, slot)
    except _ANYTHING:  # the program that is running must not notice
        logger.warning("calls of definition '%s' are not taken", name, exc_info=True)
        return None


def _nothing() -> None:
    """Is called where nobody asked to be."""
