"""Where calls are sent: the places they go through, who may take them, and who is told of them.

Each decorated function, and each function of a library that an adapter has patched, looks into a
`Slot` of its own; the function form of apply looks into `Board.calls`. Both hold what the innermost
active runtime gives them, behind what the watchers want to be told, or nothing: while nobody is
active a slot costs one attribute. A runtime that starts, stops or is rebuilt is published, and so
is a watcher: all slots are filled anew, one after the other, each in one step. What a call found it
keeps until it returns.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Optional, Protocol

from flashinfer_bench.integration.opaque import opaque as opaque

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable

    from flashinfer_bench.data import Definition

    Args = tuple[Any, ...]
    Kwargs = Optional[dict[str, Any]]
    Fallback = Optional[Callable[..., Any]]
    Call = Callable[[Args, Kwargs, Fallback], Any]
    """Takes the arguments of a call by position and by name (or None), and what to run instead."""

    Observer = Callable[[str, "Optional[Slot]", Args, Kwargs], None]
    """Is told of a call: the definition, the slot (None for the function form), the arguments."""

    Note = Callable[[Args, Kwargs], None]
    """Is told of a call of one definition from one place: its arguments by position and by name."""

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


class Watcher(Protocol):
    """What is told of calls before they are made, taken by a runtime or not."""

    def names(self) -> Collection[str]:
        """Return the definitions of whose calls it is told; asked when slots are filled."""
        ...

    def watch(self, name: str, slot: Optional[Slot]) -> Optional[Note]:
        """Return what is told of the calls of a definition that come from one place.

        Asked when the first such call arrives, from any thread and perhaps twice at once. What the
        function raises is logged once and goes no further.

        Parameters
        ----------
        name : str
            One of `names`.
        slot : Slot, optional
            Where the calls come from; see `Runtime.route`.

        Returns
        -------
        callable or None
            None if calls from there do not matter.
        """
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
    could_be : callable, optional
        Of a slot without a name: ``could_be(name)`` returns whether any call can be one of that
        definition. Default: any.

    Attributes
    ----------
    call : callable or None
        If it has a name: what takes its calls now; None if nothing does.
    routes : dict or None
        If it has none: what takes a call, by definition; None for definitions that nothing takes.
        The attribute is None if there is nothing at all.
    """

    __slots__ = ("__weakref__", "call", "could_be", "label", "name", "routes", "signature")

    def __init__(
        self,
        name: Optional[str],
        label: str,
        signature: Optional[inspect.Signature] = None,
        could_be: Optional[Callable[[str], bool]] = None,
    ) -> None:
        self.name = name
        self.label = label
        self.signature = signature
        self.could_be = could_be
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
        self._watchers: tuple[Watcher, ...] = ()
        self._used: Callable[[], None] = _nothing

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
        with self._lock:
            self._watchers = (*self._watchers, watcher)
            self._fill()

        def end() -> None:
            with self._lock:
                self._watchers = tuple(each for each in self._watchers if each is not watcher)
                self._fill()

        return end

    def observe(self, observer: Observer, name: Optional[str] = None) -> Callable[[], None]:
        """Have a function told of each call of one definition, or of all; see `watch`."""
        return self.watch(_Observing(observer, name))

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

        Called under the board's lock, once at first. It must not raise.
        """
        with self._lock:
            self._used = changed
            changed()

    def wanted(self) -> list[str]:
        """Return the definitions of which calls matter to the innermost runtime, or a watcher."""
        everyone = [*([] if self.top() is None else [self.top()]), *self._watchers]
        return list(dict.fromkeys(name for each in everyone if each for name in each.names()))

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
        self._used()

    def _calls(self, top: Optional[Runtime], names: Collection[str]) -> dict[str, Call]:
        calls: dict[str, Call] = {}

        def keep(name: str, first: Call, call: Optional[Call]) -> None:
            if calls.get(name) is first:
                calls[name] = call or _untaken(name)

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
            return (call or _untaken(name))(args, kwargs, fallback)

        return first

    def _compose(self, top: Optional[Runtime], name: str, slot: Optional[Slot]) -> Optional[Call]:
        """Return what takes a call: the runtime's part, behind those who want to be told."""
        call = _route(top, name, slot) if top is not None and name in top.names() else None
        notes = [note for each in self.watchers_of(name) if (note := _note(each, name, slot))]
        return _watched(notes, name, call or _untaken(name)) if notes else call

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


def _nothing() -> None:
    """Is called where nobody asked to be."""


class _Observing:
    """Has a function told of calls.

    Parameters
    ----------
    observer : callable
        The function.
    name : str, optional
        The only definition that matters.
    """

    def __init__(self, observer: Observer, name: Optional[str]) -> None:
        self._observer = observer
        self._names: Collection[str] = Everything() if name is None else (name,)

    def names(self) -> Collection[str]:
        return self._names

    def watch(self, name: str, slot: Optional[Slot]) -> Note:
        observer = self._observer
        return lambda args, kwargs: observer(name, slot, args, kwargs)


class Everything(Collection[str]):
    """Some names, and any other if asked for it.

    Parameters
    ----------
    names : collection of str
        Those that it lists.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _note(watcher: Watcher, name: str, slot: Optional[Slot]) -> Optional[Note]:
    try:
        return watcher.watch(name, slot)
    except _ANYTHING:  # a watcher only watches
        logger.warning("calls of '%s' are not watched", name, exc_info=True)
        return None


def _watched(notes: list[Note], name: str, call: Call) -> Call:
    told = False

    def failed(error: Exception) -> None:
        nonlocal told
        if not told:
            told = True
            logger.warning("watching a call of '%s' failed; told once", name, exc_info=error)

    if len(notes) > 1:

        @opaque
        def watched(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
            for note in notes:
                try:
                    note(args, kwargs)
                except _ANYTHING as error:  # a watcher only watches
                    failed(error)
            return call(args, kwargs, fallback)

        return watched
    (only,) = notes

    @opaque
    def watched_by_one(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
        try:
            only(args, kwargs)
        except _ANYTHING as error:
            failed(error)
        return call(args, kwargs, fallback)

    return watched_by_one


board = Board()
"""The board of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=board.after_fork)
