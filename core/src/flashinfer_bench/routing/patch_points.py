"""Where calls are sent: the places they go through, what answers them, and what observes them."""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional, Protocol, TypeVar, Union

if TYPE_CHECKING:
    import inspect
    from types import CodeType

    from flashinfer_bench.data import Definition

Args = tuple[Any, ...]
Kwargs = Optional[dict[str, Any]]
Fallback = Optional[Callable[..., Any]]
Call = Callable[[Args, Kwargs, Fallback], Any]
"""Takes the arguments of a call by position and by name (or None), and what to run instead."""
Observer = Callable[[str, "Optional[PatchPoint]", Args, Kwargs], None]
"""Is told of a call: the definition, the point (None for the function form), the arguments."""
Note = Callable[[Args, Kwargs], None]
"""Is told of a call of one definition from one place: its arguments by position and by name."""

_logger = logging.getLogger(__name__)

_ANYTHING = (Exception,)
_MOST_UNKNOWN = 1024
_MOST_KNOWN = 65536

# ------------------------------------------------------------- what compiles and captures calls
#
# ``torch.compiler.disable`` puts a wrapper around a function, which costs over a microsecond in
# each call, compiled or not. Here the function's code itself is marked, so that other callers pay
# nothing. Where a torch has no such mark the function is not made a part of a graph, but may be
# compiled on its own: slower in its first calls, and as right.

_Function = TypeVar("_Function", bound="Callable[..., Any]")


def opaque(function: _Function) -> _Function:
    """Have torch.compile break the graph at calls of `function`, and run what it calls as it is.

    Parameters
    ----------
    function : callable
        A Python function. Others with the same code are marked as well.

    Returns
    -------
    callable
        `function` itself.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    code = getattr(function, "__code__", None)
    torch = sys.modules.get("torch")  # nobody compiles without it
    if torch is not None and code is not None:
        _mark(torch, code)
    return function


def _mark(torch: Any, code: CodeType) -> None:
    try:
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        # The second one is for what is called from there.
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    except _ANYTHING:  # not torch's public face: releases differ, and some builds have no compiler
        _logger.debug("torch.compile will look into %s", code.co_name, exc_info=True)


def is_capturing() -> bool:
    """Return whether the current stream is being captured into a CUDA graph.

    Nothing may be copied to the CPU then: waiting for the device invalidates the capture.
    """
    # Without torch nobody captures; and at exit it must not be imported for the first time. Builds
    # of torch without CUDA raise if they are asked for a capture.
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()


# -------------------------------------------------------------------------------------- points


class Runtime(Protocol):
    """What takes calls while it is active."""

    def names(self) -> Collection[str]:
        """Return the definitions whose calls it takes."""

    def route(self, name: str, point: Optional[PatchPoint]) -> Optional[Call]:
        """Return what is called for a definition.

        Asked when the first such call arrives, from any thread and perhaps twice at once.

        Parameters
        ----------
        name : str
            One of `names`.
        point : PatchPoint, optional
            Where the call came from, whose arguments are those of its own signature; None for the
            function form, whose arguments are those of the definition.

        Returns
        -------
        callable or None
            None if no call from there can be taken.
        """

    def stop(self) -> None:
        """Be active no more."""


class Watcher(Protocol):
    """What is told of calls before they are made, taken by a runtime or not."""

    def names(self) -> Collection[str]:
        """Return the definitions of whose calls it is told; asked when points are filled."""

    def watch(self, name: str, point: Optional[PatchPoint]) -> Optional[Note]:
        """Return what is told of the calls of a definition that come from one place.

        Asked when the first such call arrives, from any thread and perhaps twice at once. What the
        function raises is logged once and goes no further.

        Parameters
        ----------
        name : str
            One of `names`.
        point : PatchPoint, optional
            Where the calls come from; see `Runtime.route`.

        Returns
        -------
        callable or None
            None if calls from there do not matter.
        """


class PatchPoint:
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
        Of a point without a name: ``could_be(name)`` returns whether any call can be one of that
        definition. Default: any.
    lacks : callable, optional
        Of a library's function: ``lacks(name)`` returns why no definition of that name can be made
        of its calls; None if one can.

    Attributes
    ----------
    call : callable or None
        If it has a name: what takes its calls now; None if nothing does.
    routes : dict or None
        If it has none: what takes a call, by definition; None for definitions that nothing takes.
        The attribute is None if there is nothing at all.
    """

    __slots__ = ("__weakref__", "call", "could_be", "label", "lacks", "name", "routes", "signature")

    def __init__(
        self,
        name: Optional[str],
        label: str,
        signature: Optional[inspect.Signature] = None,
        could_be: Optional[Callable[[str], bool]] = None,
        lacks: Optional[Callable[[str], Optional[str]]] = None,
    ) -> None:
        self.name = name
        self.label = label
        self.signature = signature
        self.could_be = could_be
        self.lacks = lacks
        self.call: Optional[Call] = None
        self.routes: Optional[dict[str, Optional[Call]]] = None

    def takes(self, name: str) -> bool:
        """Return whether calls can be of the definition `name`."""
        return name == self.name if self.name else self.could_be is None or self.could_be(name)

    def __repr__(self) -> str:
        return f"<PatchPoint {self.label!r}: {self.name or 'several definitions'}>"


class _Observing:
    """Has a function told of calls: of all, or of those of one definition."""

    def __init__(self, observer: Observer, name: Optional[str]) -> None:
        self._observer = observer
        self._names: Collection[str] = Everything() if name is None else (name,)

    def names(self) -> Collection[str]:
        return self._names

    def watch(self, name: str, point: Optional[PatchPoint]) -> Note:
        return lambda args, kwargs: self._observer(name, point, args, kwargs)


class Everything(Collection[str]):
    """Some names, and any other if asked for it.

    Parameters
    ----------
    names : collection of str, optional
        Those that it lists; without it, single calls of any other are taken as well.
    """

    def __init__(self, names: Optional[Collection[str]] = None) -> None:
        self.unlisted = names is None
        self._names = names or ()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _watched(notes: list[Note], name: str, call: Call) -> Call:
    """Return `call` behind those who are told of it: the first thing that one raises is logged."""
    told = False
    # No globals: while the interpreter is torn down modules lose theirs, and anything may fail.
    anything, ending = _ANYTHING, sys.is_finalizing

    @opaque
    def watched(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
        nonlocal told
        for note in notes:
            try:
                note(args, kwargs)
            except anything as error:  # a watcher only watches
                if not (told or ending()):
                    told = True
                    message = "watching a call of '%s' failed; reported once"
                    _logger.warning(message, name, exc_info=error)
        return call(args, kwargs, fallback)

    return watched


class _Routes(dict[str, "Optional[Call]"]):
    """What takes the calls of a point without a name, filled in as definitions are seen.

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
    """What `Router.calls` is: who remembers which one there was can do so by a weak reference."""

    __slots__ = ("__weakref__",)


class _AllCalls(_Calls):
    """Of a runtime that takes whatever there is, without a list of it."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[str], Call]) -> None:
        super().__init__()
        self._find = find

    def __bool__(self) -> bool:
        return True

    def get(self, name: Any, default: Any = None) -> Any:
        """Return what takes the calls of a definition."""
        return self._find(name) if type(name) is str else default


class Router:
    """Knows every point and every active runtime, and connects the two.

    Of several active runtimes the one that started last decides, alone: what it does not know is
    not taken, even if an outer one knows it.

    Attributes
    ----------
    active : tuple of Runtime
        The active runtimes, the outermost first.
    watchers : tuple of Watcher
        Who is told of calls.
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
        # No WeakSet: a point that goes while another thread lists them breaks its iteration.
        self._slots: dict[int, weakref.ref[PatchPoint]] = {}
        self.active: tuple[Runtime, ...] = ()
        self.watchers: tuple[Watcher, ...] = ()
        self._used: Optional[Callable[[], object]] = None

    # ------------------------------------------------------------------------------ runtimes

    def settle(self) -> None:
        """Enable what was deferred: somebody asks what is enabled."""
        if self.deferred is not None:
            self.deferred()

    def top(self) -> Optional[Runtime]:
        """Return the runtime that takes calls now, or None."""
        return next(reversed(self.active), None)

    def push(self, runtime: Runtime) -> None:
        """Make `runtime` the innermost; one that is active already becomes it."""
        with self._changing():
            others = tuple(each for each in self.active if each is not runtime)
            self._set((*others, runtime))

    def remove(self, runtime: Runtime) -> bool:
        """Take `runtime` out, wherever it is; return whether it was active."""
        with self._changing():
            left = tuple(each for each in self.active if each is not runtime)
            if len(left) == len(self.active):
                return False
            self._set(left)
            return True

    def clear(self) -> None:
        """Take all runtimes out."""
        self.deferred = None
        with self._changing():
            self._set(())

    def publish(self, runtime: Runtime) -> None:
        """Have every point ask `runtime` anew, if it is the innermost: it has changed."""
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
        if self._used is not None:
            self._used()

    def _set(self, active: tuple[Runtime, ...]) -> None:
        before, self.active = self.top(), active
        if self.top() is not before:
            self._fill()

    # --------------------------------------------------------------------------------- points

    def connect(self, point: PatchPoint) -> None:
        """Have `point` filled, now and from now on, as long as anything else holds it."""
        with self._lock:
            key, points = id(point), self._slots
            points[key] = weakref.ref(point, lambda _gone: points.pop(key, None))
            self._fill_slot(point, self.top(), self._names())

    def points(self) -> list[PatchPoint]:
        """Return the points that are in use, in no particular order."""
        found = [reference() for reference in list(self._slots.values())]
        return [point for point in found if point is not None]

    # ------------------------------------------------------------------------------ watchers

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Have a watcher told of calls.

        Parameters
        ----------
        watcher : Watcher
            Is asked for its names now, and whenever points are filled.

        Returns
        -------
        callable
            Ends it.
        """
        with self._changing():
            self.watchers = (*self.watchers, watcher)
            self._fill()

        def end() -> None:
            with self._changing():
                self.watchers = tuple(each for each in self.watchers if each is not watcher)
                self._fill()

        return end

    def observe(self, observer: Observer, name: Optional[str] = None) -> Callable[[], None]:
        """Have a function told of each call of one definition, or of all; see `watch`."""
        return self.watch(_Observing(observer, name))

    def _watchers_of(self, name: str) -> list[Watcher]:
        return [each for each in self.watchers if name in each.names()]

    # ----------------------------------------------------------------------------------- use

    def on_use(self, changed: Callable[[], object]) -> None:
        """Have `changed` called after each change of who is active, or watches.

        And once at first; now and then without need. It is called without the router's lock, so
        what is in use may be something else by then: it must look itself, and must not raise.
        """
        self._used = changed
        changed()

    def wanted(self) -> list[str]:
        """Return the definitions of which calls matter to the innermost runtime, or a watcher."""
        everyone: tuple[Union[Runtime, Watcher], ...] = (*self.active[-1:], *self.watchers)
        return list(dict.fromkeys(name for each in everyone for name in each.names()))

    @property
    def in_use(self) -> bool:
        """Whether anybody is active, or watches."""
        return bool(self.active or self.watchers)

    def definition(self, name: str) -> Optional[Definition]:
        """Return a definition, if the innermost runtime or a watcher knows it."""
        for each in (self.top(), *self.watchers):
            find = getattr(each, "definition", None)
            try:
                found: Optional[Definition] = find(name) if find is not None else None
            except _ANYTHING:  # its file cannot be read any more, say
                _logger.debug("definition '%s' cannot be loaded", name, exc_info=True)
                continue
            if found is not None:
                return found
        return None

    def asked(self) -> bool:
        """Note that the environment is asked now; return whether it had been before."""
        with self._lock:
            before, self._asked = self._asked, True
            self.quiet = not self.watchers
        return before

    def call_of(self, name: str) -> Optional[Call]:
        """Return what takes a call in the function form; None if nothing does."""
        call = self.calls.get(name)
        return self.compose(None, name, None) if call is None and self.watchers else call

    def _names(self) -> Collection[str]:
        top = self.top()
        return top.names() if top is not None else ()

    def _fill(self) -> None:
        top, names = self.top(), self._names()
        watched = [name for each in self.watchers for name in each.names()]
        if isinstance(names, Everything) and names.unlisted:
            self.calls = _AllCalls(lambda name: self.compose(top, name, None) or self.untaken(name))
        else:
            self.calls = _Calls((name, self._first(top, name, None)) for name in (*names, *watched))
        self.quiet = self._asked and not self.watchers
        for point in self.points():
            self._fill_slot(point, top, names)

    def _fill_slot(self, point: PatchPoint, top: Optional[Runtime], names: Collection[str]) -> None:
        if point.name is not None:
            wanted = point.name in names or self._watchers_of(point.name)
            point.call = self._first(top, point.name, point) if wanted else None
        elif names or self.watchers:
            point.routes = _Routes(opaque(lambda name: self.compose(top, name, point)))
        else:
            point.routes = None

    def _first(self, top: Optional[Runtime], name: str, point: Optional[PatchPoint]) -> Call:
        """Return what asks the runtime when it is first called, and has itself replaced."""

        @opaque
        def first(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
            call = self.compose(top, name, point)
            taken = call or self.untaken(name)
            with self._lock:
                if point is not None and point.call is first:
                    point.call = call
                elif point is None and self.calls.get(name) is first:
                    self.calls[name] = taken
            return taken(args, kwargs, fallback)

        return first

    def compose(
        self, top: Optional[Runtime], name: str, point: Optional[PatchPoint]
    ) -> Optional[Call]:
        """Return what takes a call: the runtime's part, behind those who want to be told."""
        taken = top is not None and name in top.names()
        call: Optional[Call] = _asked(top.route, name, point) if top is not None and taken else None
        notes = [_asked(each.watch, name, point) for each in self._watchers_of(name)]
        notes = [note for note in notes if note is not None]
        return _watched(notes, name, call or self.untaken(name)) if notes else call

    def untaken(self, name: str) -> Call:
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
        reason = reason or known or f"{top!r} does not handle it"
        return f"definition '{name}': {reason}, and no fallback is given"

    def after_fork(self) -> None:
        """Work in a forked child: another thread may have held the lock, or been filling points."""
        self._lock = threading.RLock()
        self._fill()


def _asked(ask: Callable[..., Any], name: str, point: Optional[PatchPoint]) -> Any:
    """Ask a runtime or a watcher for its part in some calls; None, too, if it raises."""
    try:
        return ask(name, point)
    except _ANYTHING:  # the program that is running must not notice
        _logger.warning("calls of definition '%s' do not reach %r", name, ask, exc_info=True)
        return None


_INSTALLATION = "flashinfer_bench.routing.installation"

router = Router()
"""The router of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=router.after_fork)


no_fallback = router.no_fallback


def _install() -> None:
    """Have the adapters installed that route calls which are wanted, and the others taken off.

    What that takes is imported when something is wanted for the first time.
    """
    # It has nothing to take off before it is imported to its end: it imports this module itself.
    if not router.in_use and not hasattr(sys.modules.get(_INSTALLATION), "default"):
        return
    try:
        from flashinfer_bench.routing import installation

        installation.default().update()
    except _ANYTHING:  # calls of libraries stay what they are; everything else is as it should be
        _logger.warning("adapters could not be brought up to date", exc_info=True)


router.on_use(_install)
