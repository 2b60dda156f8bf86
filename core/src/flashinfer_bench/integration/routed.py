"""What a patched function of a library becomes."""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from flashinfer_bench.integration.canonical import UnroutableError
from flashinfer_bench.integration.slots import Slot, board

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.integration.canonical import Understood
    from flashinfer_bench.integration.routing import Original, Route

logger = logging.getLogger(__name__)

ARGUMENTS = "arguments"
"""Reason: the arguments are not those of the function."""

NOT_WANTED = "definition not enabled"
"""Reason: nothing that is enabled has the definition."""

FAILED = "adapter failed"
"""Reason: the adapter itself raised, which is logged once."""

DELIVERY = "outputs not delivered"
"""Reason: what a solution computed cannot be returned as the function would."""

_ANYTHING = (Exception,)
_MOST_VERDICTS = 1024


class _Counters:
    """What became of the calls of one label.

    `routed` is added to without a lock: under the global interpreter lock nothing can come between
    reading and writing it.
    """

    __slots__ = ("_lock", "_refused", "_told", "label", "routed")

    # No global: while the interpreter is torn down modules lose theirs, and anything may fail. Such
    # calls go to the original without a word.
    ending = staticmethod(sys.is_finalizing)

    def __init__(self, label: str) -> None:
        self.label = label
        self.routed = 0
        self._refused: dict[str, int] = {}
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def refuse(self, reason: str) -> None:
        with self._lock:
            self._refused[reason] = self._refused.get(reason, 0) + 1

    def failed(self, reason: str, error: Exception) -> None:
        """Count, and log the first of its kind."""
        self.refuse(reason)
        if reason not in self._told:
            self._told.add(reason)
            logger.warning(
                "%s: %s; such calls go to the original", self.label, reason, exc_info=error
            )

    def not_understood(self, error: Exception, *, began: bool) -> None:
        """Count a call that the adapter did not understand, or could not tell more about."""
        if self.ending():
            return
        trace = error.__traceback__
        if isinstance(error, UnroutableError):
            self.refuse(error.reason)
        elif isinstance(error, TypeError) and not began and trace and trace.tb_next is None:
            self.refuse(ARGUMENTS)  # nothing in `understand` raised, but the call of it
        else:
            self.failed(FAILED, error)

    def snapshot(self) -> dict[str, Any]:
        with self._lock:
            refused = dict(self._refused)
        calls = self.routed + sum(refused.values())
        return {"calls": calls, "routed": self.routed, "refused": refused}


_counters: dict[str, _Counters] = {}


def _renew_locks() -> None:
    for each in _counters.values():
        each._lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # a thread of the parent may hold one, and is not in the child
    os.register_at_fork(after_in_child=_renew_locks)


def counters_of(label: str) -> _Counters:
    """Return the counters of a label, which are never forgotten."""
    return _counters.setdefault(label, _Counters(label))


def route_stats() -> dict[str, dict[str, Any]]:
    """Return what became of the calls of patched functions while anything was enabled.

    Returns
    -------
    dict of str to dict
        By label. ``routed``: calls that were handed to what is enabled; its own counters say
        whether a solution answered. ``refused``: calls that went to the original at once, as a
        number by reason. ``calls``: all of them.
    """
    return {label: each.snapshot() for label, each in sorted(dict(_counters).items())}


# ---------------------------------------------------------------------------------- routing


class _State:
    """Whether a thread is in a routed call."""

    __slots__ = ("inside",)

    def __init__(self) -> None:
        self.inside = False


class _Thread(threading.local):
    """Has the state of the thread that asks: what is kept in it is quicker to read and to set."""

    def __init__(self) -> None:
        self.state = _State()


_thread = _Thread()
_NOTHING: Any = object()


class Again:
    """Stands for the original in one routed call; each wrapper has a subclass of its own.

    Attributes
    ----------
    args, kwargs : tuple, dict
        The arguments of the call, as they came.
    understood : Understood
        What they mean.
    answer : Any
        What the original returned, if it has been called.
    order : tuple of int
        Which canonical parameter each input of the definition is. Not there if they are the same.
    strict : bool
        Whether it is an error that outputs cannot be delivered. Not there if not.
    """

    # What no call needs is not set: making these is a good part of what a routed call costs.
    # Made by the wrapper: a constructor would be a good part of what a routed call costs. What few
    # calls need is not set at all.
    __slots__ = ("answer", "args", "kwargs", "order", "strict", "understood")

    route: ClassVar[Route]
    original: ClassVar[Original]
    counters: ClassVar[_Counters]

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    understood: Understood
    answer: Any
    order: tuple[int, ...]
    strict: bool

    @classmethod
    def of(cls, route: Route, original: Original) -> type[Again]:
        """Return the subclass for the calls of one wrapper."""
        own = {"route": route, "original": staticmethod(original)}
        known = {"__slots__": (), "counters": counters_of(route.label)}
        return type("Again", (cls,), {**own, **known})

    def __call__(self, *_inputs: Any, **_named: Any) -> Any:
        """Make the call as it came, and return what the library's function returns."""
        self.answer = answer = self.original(*self.args, **self.kwargs)
        return answer

    def decline(self, reason: str) -> Any:
        """Make the call as it came, as it is not one that has been routed."""
        self.counters.routed -= 1
        self.counters.refuse(reason)
        return self()

    def undelivered(self, error: Exception) -> None:
        """Count that outputs could not be delivered; with `strict`, raise why."""
        if self.counters.ending():
            return
        if isinstance(error, UnroutableError):
            self.counters.refuse(error.reason)
        elif getattr(self, "strict", False):
            raise error
        else:
            self.counters.failed(DELIVERY, error)

    def outputs(self, *inputs: Any) -> Any:
        """Return the outputs of the definition, computed by the original from other inputs.

        Raises
        ------
        UnroutableError
            If the route cannot do that.
        """
        every = list(self.understood.inputs)
        for position, value in zip(getattr(self, "order", range(len(every))), inputs, strict=True):
            every[position] = value
        return self.route.outputs(self.original, self.understood, tuple(every))


def route_calls(route: Route, original: Original) -> Original:
    """Return a wrapper that offers each call of `original` to what is enabled.

    Parameters
    ----------
    route : Route
        Describes the original.
    original : callable
        What is wrapped; a method takes its object first.

    Returns
    -------
    callable
        It raises what the original raises, and what a solution raises where errors are not to be
        hidden: in mapping mode, and with ``strict``.
    """
    slot = Slot(None, route.label, route.parameters, route.could_be)
    counters, once = counters_of(route.label), Again.of(route, original)
    understand, accepted, deliver = route.understand, _acceptance(route), route.deliver
    thread, nothing, compiling = _thread, _NOTHING, _compiling()
    anything = _ANYTHING  # a module that is torn down loses its globals

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        routes = slot.routes
        if routes is None or compiling() or (state := thread.state).inside:
            return original(*args, **kwargs)
        call = understood = None
        try:
            understood = understand(*args, **kwargs)
            call = routes[understood.name]
            if call is None:
                counters.refuse(NOT_WANTED)
            elif accepted is not None and (why := accepted(routes, understood)) is not None:
                call = None
                counters.refuse(why)
        except anything as error:
            call = None
            counters.not_understood(error, began=understood is not None)
        if call is None or understood is None:
            return original(*args, **kwargs)
        counters.routed += 1
        again = once()
        again.args, again.kwargs, again.understood, again.answer = args, kwargs, understood, nothing
        state.inside = True
        try:
            result = call(understood.inputs, None, again)
        finally:
            state.inside = False
        if again.answer is not nothing:
            return again.answer
        try:
            return deliver(understood, result)
        except anything as error:
            again.undelivered(error)
        return again()

    wrapper.__apply_slot__ = slot  # type: ignore[attr-defined]
    board.connect(slot)
    return wrapper


def _acceptance(route: Route) -> Optional[Callable[[Any, Understood], Optional[str]]]:
    """Return what says why a definition does not accept a call; None if all are accepted."""
    from flashinfer_bench.integration.routing import Route as Base

    if type(route).accepts is Base.accepts:
        return None
    seen: tuple[Any, dict[Any, Optional[str]]] = (None, {})

    def accepted(routes: Any, understood: Understood) -> Optional[str]:
        nonlocal seen
        # Routes are made anew when anything is enabled: a definition may be another one then.
        known_for, verdicts = seen
        if known_for is not routes:
            seen = routes, (verdicts := {})
        key = (understood.name, route.facts(understood))
        why = verdicts.get(key, _NOTHING)
        return _verdict(route, understood, key, verdicts) if why is _NOTHING else why

    return accepted


def _verdict(
    route: Route, understood: Understood, key: Any, verdicts: dict[Any, Optional[str]]
) -> Optional[str]:
    definition = board.definition(understood.name)
    why = None if definition is None else route.accepts(definition, understood)
    if len(verdicts) < _MOST_VERDICTS:
        verdicts[key] = why
    return why


def _compiling() -> Callable[[], bool]:
    """Return what says whether torch.compile is tracing."""
    torch: Any = sys.modules.get("torch")
    asked = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    return (lambda: False) if asked is None else asked
