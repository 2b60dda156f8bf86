"""Route calls: the points they pass through, the runtimes that answer, and the observers."""

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
"""Takes the arguments of a call by position and by name (or None), and the fallback."""
Observer = Callable[[str, "Optional[PatchPoint]", Args, Kwargs], None]
"""Called with the definition, the point (None for the function form), and the arguments."""
Note = Callable[[Args, Kwargs], None]
"""Called with the positional and keyword arguments of a call of one definition from one point."""

_logger = logging.getLogger(__name__)
_MOST_UNKNOWN = 1024
_MOST_KNOWN = 65536

# ----------------------------------------------------------- torch.compile and CUDA graph capture
#
# ``torch.compiler.disable`` wraps a function, which costs over a microsecond per call, compiled or
# not. Here the function's code itself is marked, which costs callers nothing. In torch releases
# without such a mark the function still causes a graph break, but may itself be compiled: its first
# calls are slower, and results are the same.

_Function = TypeVar("_Function", bound="Callable[..., Any]")


def opaque(function: _Function) -> _Function:
    """Make torch.compile break the graph at calls of `function`, and run its callees uncompiled.

    Parameters
    ----------
    function : callable
        A Python function. Other functions with the same code object are marked as well.

    Returns
    -------
    callable
        `function` itself.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    code = getattr(function, "__code__", None)
    torch = sys.modules.get("torch")  # no compilation without torch
    if torch is not None and code is not None:
        _mark(torch, code)
    return function


def _mark(torch: Any, code: CodeType) -> None:
    try:
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        # The second flag covers its callees.
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    except Exception:  # private API: releases differ, and some builds have no compiler
        _logger.debug("torch.compile will look into %s", code.co_name, exc_info=True)


def is_capturing() -> bool:
    """Return whether the current stream is being captured into a CUDA graph.

    If so, nothing may be copied to the CPU: waiting for the device invalidates the capture.
    """
    # Without torch there is no capture; and torch must not be imported for the first time at exit.
    # Builds of torch without CUDA raise when queried.
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()


# -------------------------------------------------------------------------------------- points


class Runtime(Protocol):
    """An object that answers calls while it is active."""

    def names(self) -> Collection[str]:
        """Return the definitions whose calls it answers."""

    def route(self, name: str, point: Optional[PatchPoint]) -> Optional[Call]:
        """Return the callable that answers calls of a definition.

        Called on the first such call, from any thread, and possibly twice concurrently.

        Parameters
        ----------
        name : str
            An element of `names`.
        point : PatchPoint, optional
            The origin of the call, whose arguments follow its own signature; None for the function
            form, whose arguments follow the definition.

        Returns
        -------
        callable or None
            None if calls from there cannot be answered.
        """

    def stop(self) -> None:
        """Become inactive."""


class Watcher(Protocol):
    """An object that is notified of calls before they run, answered by a runtime or not."""

    def names(self) -> Collection[str]:
        """Return the definitions that it watches; called when points are filled."""

    def watch(self, name: str, point: Optional[PatchPoint]) -> Optional[Note]:
        """Return the function to notify of a definition's calls from one point.

        Called on the first such call, from any thread, and possibly twice concurrently. The first
        exception of the function is logged; none propagates.

        Parameters
        ----------
        name : str
            An element of `names`.
        point : PatchPoint, optional
            The origin of the calls; see `Runtime.route`.

        Returns
        -------
        callable or None
            None if calls from there are not watched.
        """


class PatchPoint:
    """A location that calls pass through: a decorated function, or a patched one.

    Parameters
    ----------
    name : str, optional
        The definition of all its calls; None if that varies from call to call.
    label : str
        Display name: ``"package.module.function"``.
    signature : inspect.Signature, optional
        Signature of the function, None if unknown. With a signature, a call's arguments are passed
        on as a tuple of all positional parameters, with defaults filled in, and a dict of
        keyword-only ones. Without it, they are passed on as the caller gave them.
    could_be : callable, optional
        For a point without a name: ``could_be(name)`` returns whether any call can match that
        definition. Default: always True.
    lacks : callable, optional
        For a library's function: ``lacks(name)`` returns why no definition of that name can be
        derived from its calls, or None if one can.

    Attributes
    ----------
    call : callable or None
        If the point has a name: the callable that answers its calls now, or None.
    routes : dict or None
        If it has none: the callable for each definition, or None if nothing answers it. The
        attribute is None if nothing is active.
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
        """Return whether calls can match the definition `name`."""
        return name == self.name if self.name else self.could_be is None or self.could_be(name)

    def __repr__(self) -> str:
        return f"<PatchPoint {self.label!r}: {self.name or 'several definitions'}>"


class _Observing:
    """Notifies a function of calls: of all, or only of one definition."""

    def __init__(self, observer: Observer, name: Optional[str]) -> None:
        self._observer = observer
        self._names: Collection[str] = Everything() if name is None else (name,)

    def names(self) -> Collection[str]:
        return self._names

    def watch(self, name: str, point: Optional[PatchPoint]) -> Note:
        return lambda args, kwargs: self._observer(name, point, args, kwargs)


class Everything(Collection[str]):
    """A collection of names that can also contain every other name.

    Parameters
    ----------
    names : collection of str, optional
        The names that it lists; if omitted, every name is considered a member.
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
    """Return `call` preceded by notifications; only the first exception of each is logged."""
    told = False
    # No globals: modules lose theirs at interpreter shutdown, when anything may fail.
    anything, ending = (Exception,), sys.is_finalizing

    @opaque
    def watched(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
        nonlocal told
        for note in notes:
            try:
                note(args, kwargs)
            except anything as error:  # a watcher must not affect the call
                if not (told or ending()):
                    told = True
                    message = "watching a call of '%s' failed; reported once"
                    _logger.warning(message, name, exc_info=error)
        return call(args, kwargs, fallback)

    return watched


class _Routes(dict[str, "Optional[Call]"]):
    """The callables of a point without a name, filled in as definitions are seen.

    Names may be derived from shapes without limit while every name is watched, so only a limited
    number is kept. Beyond it each call is resolved again.
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
    """Type of `Router.calls`: supports weak references, so that callers detect a replacement."""

    __slots__ = ("__weakref__",)


class Router:
    """Connects all points with all active runtimes.

    If several runtimes are active, only the most recently started one is used: definitions that it
    does not handle are not answered, even if an outer runtime would handle them.

    Attributes
    ----------
    active : tuple of Runtime
        The active runtimes, outermost first.
    watchers : tuple of Watcher
        The objects to notify of calls.
    calls : dict
        For the function form: the callable of each definition. Replaced as a whole.
    quiet : bool
        Whether calls of definitions outside `calls` can be skipped: there are no observers, and the
        environment variables have been applied.
    deferred : callable, optional
        Enables what the environment variables request, if that is deferred to the first relevant
        call; nothing is enabled before, whatever is imported.
    changing : lock
        For runtimes: held while they are replaced, or their content is.
    """

    def __init__(self) -> None:
        self.calls: dict[str, Call] = _Calls()
        self.quiet = False
        self.deferred: Optional[Callable[[], object]] = None
        self.changing = threading.RLock()
        self._asked = False
        self._lock = threading.RLock()
        # Not a WeakSet: garbage collection of a point during iteration in another thread breaks it.
        self._slots: dict[int, weakref.ref[PatchPoint]] = {}
        self.active: tuple[Runtime, ...] = ()
        self.watchers: tuple[Watcher, ...] = ()
        self._used: Optional[Callable[[], object]] = None

    # ------------------------------------------------------------------------------ runtimes

    def settle(self) -> None:
        """Enable what was deferred, because the enabled state is being queried."""
        if self.deferred is not None:
            self.deferred()

    def top(self) -> Optional[Runtime]:
        """Return the runtime that answers calls now, or None."""
        return next(reversed(self.active), None)

    def push(self, runtime: Runtime) -> None:
        """Make `runtime` the innermost one, even if it is active already."""
        with self._changing():
            others = tuple(each for each in self.active if each is not runtime)
            self._set((*others, runtime))

    def remove(self, runtime: Runtime) -> bool:
        """Remove `runtime` from any position; return whether it was active."""
        with self._changing():
            left = tuple(each for each in self.active if each is not runtime)
            if len(left) == len(self.active):
                return False
            self._set(left)
            return True

    def clear(self) -> None:
        """Remove all runtimes."""
        self.deferred = None
        with self._changing():
            self._set(())

    def publish(self, runtime: Runtime) -> None:
        """Refresh all points after a change of `runtime`, if it is the innermost one."""
        with self._changing():
            if self.top() is runtime:
                self._fill()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock during a change, and notify listeners afterwards.

        Listeners may import modules, and thereby wait for a thread that waits for the lock.
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
        """Keep `point` filled from now on, as long as something else references it."""
        with self._lock:
            key, points = id(point), self._slots
            points[key] = weakref.ref(point, lambda _gone: points.pop(key, None))
            self._fill_slot(point, self.top(), self._names())

    def points(self) -> list[PatchPoint]:
        """Return all live points, in no particular order."""
        found = [reference() for reference in list(self._slots.values())]
        return [point for point in found if point is not None]

    # ------------------------------------------------------------------------------ watchers

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Notify a watcher of calls.

        Parameters
        ----------
        watcher : Watcher
            Its `names` is called now, and whenever points are filled.

        Returns
        -------
        callable
            Stops watching.
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
        """Call a function for each call of one definition, or of all; see `watch`."""
        return self.watch(_Observing(observer, name))

    def _watchers_of(self, name: str) -> list[Watcher]:
        return [each for each in self.watchers if name in each.names()]

    # ---------------------------------------------------------------------------------- listeners

    def on_use(self, changed: Callable[[], object]) -> None:
        """Call `changed` now and after each change of runtimes or watchers.

        It may occasionally be called unnecessarily. It is called without the router's lock, so the
        state may have changed again: it must query the state itself, and must not raise.
        """
        self._used = changed
        changed()

    def wanted(self) -> list[str]:
        """Return the definitions whose calls the innermost runtime or a watcher handles."""
        everyone: tuple[Union[Runtime, Watcher], ...] = (*self.active[-1:], *self.watchers)
        return list(dict.fromkeys(name for each in everyone for name in each.names()))

    @property
    def in_use(self) -> bool:
        """Whether any runtime or watcher is active."""
        return bool(self.active or self.watchers)

    def definition(self, name: str) -> Optional[Definition]:
        """Return a definition if the innermost runtime or a watcher has it."""
        for each in (self.top(), *self.watchers):
            find = getattr(each, "definition", None)
            try:
                found: Optional[Definition] = find(name) if find is not None else None
            except Exception:  # for example, its file is no longer readable
                _logger.debug("definition '%s' cannot be loaded", name, exc_info=True)
                continue
            if found is not None:
                return found
        return None

    def asked(self) -> bool:
        """Mark the environment as checked; return whether it was before."""
        with self._lock:
            before, self._asked = self._asked, True
            self._hush()
        return before

    def _hush(self) -> None:
        names = self._names()
        unlisted = isinstance(names, Everything) and names.unlisted
        self.quiet = self._asked and not self.watchers and not unlisted

    def call_of(self, name: str) -> Optional[Call]:
        """Return the callable for the function form; None if there is none."""
        return self.calls.get(name) or self.compose(self.top(), name, None)

    def _names(self) -> Collection[str]:
        top = self.top()
        return top.names() if top is not None else ()

    def _fill(self) -> None:
        top, names = self.top(), self._names()
        watched = [name for each in self.watchers for name in each.names()]
        self.calls = _Calls((name, self._first(top, name, None)) for name in (*names, *watched))
        self._hush()
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
        """Return a callable that queries the runtime on first use and then replaces itself."""

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
        """Return the callable for a call: notifications first, then the runtime's part."""
        taken = top is not None and name in top.names()
        call: Optional[Call] = _asked(top.route, name, point) if top is not None and taken else None
        notes = [_asked(each.watch, name, point) for each in self._watchers_of(name)]
        notes = [note for note in notes if note is not None]
        return _watched(notes, name, call or self.untaken(name)) if notes else call

    def untaken(self, name: str) -> Call:
        """Return a callable that runs the fallback."""

        @opaque
        def untaken(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
            if fallback is None:
                raise RuntimeError(self.no_fallback(name))
            return fallback(*args, **kwargs) if kwargs else fallback(*args)

        return untaken

    def no_fallback(self, name: str, reason: str = "") -> str:
        """Return the message for a call that is not answered and has no fallback."""
        top = self.top()
        if top is None:
            reason = "apply is not enabled"
        known = getattr(top, "problems", {}).get(name)
        reason = reason or known or f"{top!r} does not handle it"
        return f"definition '{name}': {reason}, and no fallback is given"

    def after_fork(self) -> None:
        """Reset in a forked child: another thread may have held a lock or been filling points."""
        self.changing, self._lock = threading.RLock(), threading.RLock()
        self._fill()


def _asked(ask: Callable[..., Any], name: str, point: Optional[PatchPoint]) -> Any:
    """Query a runtime or watcher for its part in some calls; return None if it raises."""
    try:
        return ask(name, point)
    except Exception:  # must not affect the running program
        _logger.warning("calls of definition '%s' do not reach %r", name, ask, exc_info=True)
        return None


_INSTALLATION = "flashinfer_bench.routing.installation"

router = Router()
"""The router of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=router.after_fork)


no_fallback = router.no_fallback


def _install() -> None:
    """Install the adapters whose calls are wanted, and remove the others.

    The required modules are imported when something is first wanted.
    """
    # Until it is fully imported there is nothing to remove: it imports this module itself.
    if not router.in_use and not hasattr(sys.modules.get(_INSTALLATION), "default"):
        return
    try:
        from flashinfer_bench.routing import installation

        installation.default().update()
    except Exception:  # library calls stay unpatched; everything else works
        _logger.warning("adapters could not be brought up to date", exc_info=True)


router.on_use(_install)
