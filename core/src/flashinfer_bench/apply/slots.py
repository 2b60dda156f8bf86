"""Where calls are sent: the places they go through, and the runtimes that may take them.

Each decorated function, and each function of a library that an adapter has patched, looks into a
`Slot` of its own; the function form of apply looks into `Board.calls`. Both hold what the innermost
active runtime gives them, or nothing: with apply disabled a slot costs one attribute. A runtime
that starts, stops or is rebuilt is published: all slots are filled anew, one after the other, each
in one step. What a call found it keeps until it returns.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Optional, Protocol

from flashinfer_bench.apply.opaque import opaque as opaque

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Collection

    Args = tuple[Any, ...]
    Kwargs = Optional[dict[str, Any]]
    Fallback = Optional[Callable[..., Any]]
    Call = Callable[[Args, Kwargs, Fallback], Any]
    """Takes the arguments of a call by position and by name (or None), and what to run instead."""

    Observer = Callable[[str, "Optional[Slot]", Args, Kwargs], None]
    """Is told of a call: the definition, the slot (None for the function form), the arguments."""

logger = logging.getLogger(__name__)

_MOST_UNKNOWN = 1024
_ANYTHING = (Exception,)


class Runtime(Protocol):
    """What takes calls while it is active."""

    def names(self) -> Collection[str]:
        """Return the definitions whose calls it takes."""
        ...

    def route(self, name: str, slot: Optional[Slot]) -> Optional[Call]:
        """Return what is called for a definition.

        Asked when the first such call arrives, from any thread and perhaps twice at once.

        Parameters
        ----------
        name : str
            One of `names`.
        slot : Slot, optional
            Where the call came from, whose arguments are those of its own signature; None for the
            function form, whose arguments are those of the definition.

        Returns
        -------
        callable or None
            None if no call from there can be taken.
        """
        ...

    def stop(self) -> None:
        """Be active no more."""
        ...


class Slot:
    """A place that calls go through: a decorated function, or a patched one.

    Parameters
    ----------
    name : str, optional
        The definition that all its calls are of; None if that differs from call to call.
    label : str
        What people call the place: ``"package.module.function"``.
    signature : inspect.Signature, optional
        Of the function, None if it cannot be known. A call's arguments come with it: the parameters
        that may be given by position as a tuple, defaults filled in, those by keyword alone as a
        dict. Without it, as the caller gave them.

    Attributes
    ----------
    call : callable or None
        If it has a name: what takes its calls now; None if nothing does.
    routes : dict or None
        If it has none: what takes a call, by definition; None for definitions that nothing takes.
        The attribute is None if there is nothing at all.
    """

    __slots__ = ("__weakref__", "call", "label", "name", "routes", "signature")

    def __init__(
        self,
        name: Optional[str],
        label: str,
        signature: Optional[inspect.Signature] = None,
    ) -> None:
        self.name = name
        self.label = label
        self.signature = signature
        self.call: Optional[Call] = None
        self.routes: Optional[dict[str, Optional[Call]]] = None

    def __repr__(self) -> str:
        return f"<Slot {self.label!r}: {self.name or 'several definitions'}>"


class _Routes(dict[str, "Optional[Call]"]):
    """What takes the calls of a slot without a name, filled in as definitions are seen."""

    def __init__(self, find: Callable[[str], Optional[Call]]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, name: str) -> Optional[Call]:
        call = self._find(name) if type(name) is str else None
        # Names may be made up from shapes without end: only so many that are not known are kept.
        if call is not None or len(self) < _MOST_UNKNOWN:
            self[name] = call
        return call


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
    """

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self.quiet = False
        self._asked = False
        self._lock = threading.RLock()
        # No WeakSet: a slot that goes while another thread lists them breaks its iteration.
        self._slots: dict[int, weakref.ref[Slot]] = {}
        self._active: tuple[Runtime, ...] = ()
        self._observers: tuple[tuple[Optional[str], Observer], ...] = ()

    # ------------------------------------------------------------------------------ runtimes

    @property
    def active(self) -> tuple[Runtime, ...]:
        """The active runtimes, the outermost first."""
        return self._active

    def top(self) -> Optional[Runtime]:
        """Return the runtime that takes calls now, or None."""
        active = self._active
        return active[-1] if active else None

    def push(self, runtime: Runtime) -> None:
        """Make `runtime` the innermost; one that is active already becomes it."""
        with self._lock:
            others = tuple(each for each in self._active if each is not runtime)
            self._set((*others, runtime))

    def remove(self, runtime: Runtime) -> bool:
        """Take `runtime` out, wherever it is; return whether it was active."""
        with self._lock:
            left = tuple(each for each in self._active if each is not runtime)
            if len(left) == len(self._active):
                return False
            self._set(left)
            return True

    def replace(self, old: Runtime, new: Runtime) -> bool:
        """Put `new` in the place of `old`; return whether that was active."""
        with self._lock:
            if not any(each is old for each in self._active):
                return False
            self._set(tuple(new if each is old else each for each in self._active))
            return True

    def clear(self) -> None:
        """Take all runtimes out."""
        with self._lock:
            self._set(())

    def publish(self, runtime: Runtime) -> None:
        """Have every slot ask `runtime` anew, if it is the innermost: it has changed."""
        with self._lock:
            if self.top() is runtime:
                self._fill()

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

    def observe(self, observer: Observer, name: Optional[str] = None) -> Callable[[], None]:
        """Have an observer told of each call before it is made, taken by a runtime or not.

        What an observer raises is logged and goes no further.

        Parameters
        ----------
        observer : callable
            See `Observer`.
        name : str, optional
            Only calls of this definition.

        Returns
        -------
        callable
            Ends it.
        """
        entry = (name, observer)
        with self._lock:
            self._observers = (*self._observers, entry)
            self._fill()

        def end() -> None:
            with self._lock:
                self._observers = tuple(each for each in self._observers if each is not entry)
                self._fill()

        return end

    def observers_of(self, name: str) -> tuple[Observer, ...]:
        """Return who is told of the calls of a definition."""
        return tuple(observer for wanted, observer in self._observers if wanted in (None, name))

    def asked(self) -> bool:
        """Note that the environment is asked now; return whether it had been before."""
        with self._lock:
            before, self._asked = self._asked, True
            self.quiet = not self._observers
        return before

    def call_of(self, name: str) -> Optional[Call]:
        """Return what takes a call in the function form; None if nothing does."""
        call = self.calls.get(name)
        return self._compose(None, name, None) if call is None and self._observers else call

    def _names(self) -> Collection[str]:
        top = self.top()
        return top.names() if top is not None else ()

    def _fill(self) -> None:
        top, names = self.top(), self._names()
        self.calls = self._calls(top, names)
        self.quiet = self._asked and not self._observers
        for slot in self.slots():
            self._fill_slot(slot, top, names)

    def _calls(self, top: Optional[Runtime], names: Collection[str]) -> dict[str, Call]:
        calls: dict[str, Call] = {}

        def keep(name: str, first: Call, call: Optional[Call]) -> None:
            if calls.get(name) is first:
                calls[name] = call or _untaken(name)

        watched = [name for name, _ in self._observers if name is not None]
        calls.update((name, self._first(top, name, None, keep)) for name in (*names, *watched))
        return calls

    def _fill_slot(self, slot: Slot, top: Optional[Runtime], names: Collection[str]) -> None:
        def keep(name: str, first: Call, call: Optional[Call]) -> None:
            if slot.call is first:
                slot.call = call

        if slot.name is not None:
            wanted = slot.name in names or self.observers_of(slot.name)
            slot.call = self._first(top, slot.name, slot, keep) if wanted else None
        elif names or self._observers:
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
            return (call or _untaken(name))(args, kwargs, fallback)

        return first

    def _compose(self, top: Optional[Runtime], name: str, slot: Optional[Slot]) -> Optional[Call]:
        """Return what takes a call: the runtime's part, behind those who want to be told."""
        call = _route(top, name, slot) if top is not None and name in top.names() else None
        observers = self.observers_of(name)
        if not observers:
            return call
        return _observed(observers, name, slot, call or _untaken(name))

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


def _untaken(name: str) -> Call:
    """Return what runs the fallback."""

    @opaque
    def untaken(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
        if fallback is None:
            raise RuntimeError(no_fallback(name))
        return fallback(*args, **kwargs) if kwargs else fallback(*args)

    return untaken


def no_fallback(name: str, reason: str = "") -> str:
    """Return the message for a call that nothing takes and that has no fallback."""
    top = board.top()
    if top is None:
        reason = "apply is not enabled"
    known = getattr(top, "problems", {}).get(name)
    reason = reason or known or f"{top!r} does not take it"
    return f"definition '{name}': {reason}, and no fallback is given"


def _observed(observers: tuple[Observer, ...], name: str, slot: Optional[Slot], call: Call) -> Call:
    @opaque
    def observed(
        args: tuple[Any, ...], kwargs: Optional[dict[str, Any]], fallback: Fallback
    ) -> Any:
        for observer in observers:
            try:
                observer(name, slot, args, kwargs)
            except _ANYTHING:  # an observer only watches
                logger.warning("observing a call of '%s' failed", name, exc_info=True)
        return call(args, kwargs, fallback)

    return observed


board = Board()
"""The board of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=board.after_fork)
