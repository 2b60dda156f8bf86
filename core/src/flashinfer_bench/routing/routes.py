"""Routes: the template of an adapter whose library calls are answered by solutions."""

from __future__ import annotations

import functools
import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Optional

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing import binding
from flashinfer_bench.routing.binding import signature_of as signature_of
from flashinfer_bench.routing.patch_manager import Adapter, Kind, Original, PatchSpec
from flashinfer_bench.routing.patch_manager import UnroutableError as UnroutableError
from flashinfer_bench.routing.patch_points import PatchPoint, router

if TYPE_CHECKING:
    from flashinfer_bench.data import Definition

Canonical = binding.Canonical
RouteFactory = Callable[[], "Route"]


@dataclass(slots=True)  # creating a named tuple takes 50 % longer
class Understood:
    """The interpretation of a call.

    Attributes
    ----------
    name : str
        The definition that it corresponds to.
    inputs : tuple
        One value for each of `Route.parameters`, in that order, with defaults filled in.
    rest : Any
        Data that the route needs to deliver the outputs: buffers, flags.
    """

    name: str
    inputs: tuple[Any, ...]
    rest: Any = None


class Made(NamedTuple):
    """A definition that was derived from a call.

    Attributes
    ----------
    definition : Definition
        Its arguments are the inputs that the route provides.
    full : Definition
        The same definition with all arguments, in order, that a library's own solution may take.
    fixed : mapping of str to Any
        The additional arguments, which are the same in all calls.
    """

    definition: Definition
    full: Definition
    fixed: Mapping[str, Any]


_logger = logging.getLogger(__name__)

ARGUMENTS = "arguments"
"""Reason: the arguments do not match the function."""

NOT_WANTED = "definition not enabled"
"""Reason: nothing enabled handles the definition."""

FAILED = "adapter failed"
"""Reason: the adapter itself raised; logged once."""

DELIVERY = "outputs not delivered"
"""Reason: the outputs of a solution cannot be returned in the function's form."""


class _Counters:
    """Counts the outcomes of calls under one label.

    Numbers are incremented without a lock: under the global interpreter lock the increment cannot
    be interrupted.
    """

    __slots__ = ("label", "refused", "routed", "told")

    # No globals: modules lose theirs at interpreter shutdown, when anything may fail. Such calls
    # silently go to the original.
    ending = staticmethod(sys.is_finalizing)

    def __init__(self, label: str) -> None:
        self.label = label
        self.routed = 0
        self.refused: defaultdict[str, int] = defaultdict(int)
        self.told: set[str] = set()

    def refuse(self, reason: str) -> None:
        self.refused[reason] += 1

    def failed(self, reason: str, error: Exception) -> None:
        """Count an error, and log the first of its kind."""
        self.refuse(reason)
        if reason not in self.told:
            self.told.add(reason)
            _logger.warning(
                "%s: %s; such calls go to the original", self.label, reason, exc_info=error
            )

    def not_understood(self, error: Exception, *, began: bool) -> None:
        """Count a call that the adapter did not understand, or could not describe further."""
        if self.ending():
            return
        trace, reason = error.__traceback__, FAILED
        if isinstance(error, UnroutableError):
            reason = error.reason
        elif isinstance(error, TypeError) and not began and trace and trace.tb_next is None:
            reason = ARGUMENTS  # raised by calling `understand`, not inside it
        if reason is FAILED:
            self.failed(FAILED, error)
        else:
            self.refuse(reason)
        if (tell := getattr(router.top(), "refused", None)) is not None:
            tell(self.label, reason)

    def snapshot(self) -> dict[str, Any]:
        refused = dict(self.refused)
        calls = self.routed + sum(refused.values())
        return {"calls": calls, "routed": self.routed, "refused": refused}


_counters: dict[str, _Counters] = {}


def counters_of(label: str) -> _Counters:
    """Return the counters of a label, which persist."""
    return _counters.setdefault(label, _Counters(label))


def route_stats() -> dict[str, dict[str, Any]]:
    """Return the outcome counts of patched functions' calls while anything was enabled.

    Returns
    -------
    dict of str to dict
        By label. ``routed``: calls passed to a runtime, whose own counters say whether a solution
        answered. ``refused``: calls that the route sent to the original, as a number by reason.
        ``calls``: the total.
    """
    return {label: each.snapshot() for label, each in sorted(dict(_counters).items())}


# ---------------------------------------------------------------------------------- routing


class _Thread(threading.local):
    """Whether this thread is inside a routed call, in an object that is faster to access."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(inside=False)


_thread = _Thread()
_NOTHING: Any = object()


class Again:
    """The original in the context of one routed call; each wrapper has its own subclass.

    Attributes
    ----------
    args, kwargs : tuple, dict
        The arguments of the call, unchanged.
    understood : Understood
        Their interpretation.
    answer : Any
        The original's result, if it has been called.
    order : tuple of int
        Index of the canonical parameter for each input of the definition. Unset if they are
        identical.
    strict : Counters
        Counters of a runtime that treats undeliverable outputs as errors. Unset for other runtimes.
    unseen : bool
        Whether undeliverable outputs are always the solution's error, because they have not been
        checked. Unset if they have been.
    """

    # Created by the wrapper: a constructor would be a significant part of a routed call's cost.
    # Attributes that few calls need are left unset.
    __slots__ = ("answer", "args", "kwargs", "order", "strict", "understood", "unseen")

    route: ClassVar[Route]
    original: ClassVar[Original]
    counters: ClassVar[_Counters]

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    understood: Understood
    answer: Any
    order: tuple[int, ...]
    strict: Any
    unseen: bool

    @classmethod
    def of(cls, route: Route, original: Original) -> type[Again]:
        """Return the subclass for the calls of one wrapper."""
        own = {"route": route, "original": staticmethod(original)}
        known = {"__slots__": (), "counters": counters_of(route.label)}
        return type("Again", (cls,), {**own, **known})

    def __call__(self, *_inputs: Any, **_named: Any) -> Any:
        """Repeat the call with its own arguments, and return the library function's result."""
        self.answer = answer = self.original(*self.args, **self.kwargs)
        return answer

    def decline(self, reason: str) -> Any:
        """Call the original because the call cannot be routed after all."""
        self.counters.routed -= 1
        self.counters.refuse(reason)
        return self()

    def undelivered(self, error: Exception) -> None:
        """Count outputs that could not be delivered; raise with `strict`."""
        if self.counters.ending():
            return
        strict: Any = getattr(self, "strict", None)
        unseen = hasattr(self, "unseen")
        if strict is not None:  # the call has been counted as a hit
            strict.hits -= 1
            if isinstance(error, UnroutableError) and not unseen:
                strict.fallbacks += 1
                strict.miss(error.reason)
            else:
                strict.errors += 1
        if unseen:
            raise RuntimeError(
                f"the outputs of the solution of {self.understood.name!r} cannot be returned as "
                f"{self.counters.label} would return them: {error}"
            ) from error
        self.counters.routed -= 1
        if isinstance(error, UnroutableError):
            self.counters.refuse(error.reason)
        elif strict is not None:
            raise error
        else:
            self.counters.failed(DELIVERY, error)

    def define(self) -> Made:
        """Return the definition of the call; see `Route.define`."""
        return self.route.define(self.understood)

    def understand_anew(self) -> tuple[Any, ...]:
        """Return the inputs of the call as interpreted now.

        Raises
        ------
        UnroutableError
            If it no longer corresponds to a definition.
        """
        self.understood = self.route.understand(*self.args, **self.kwargs)
        return self.understood.inputs

    def outputs(self, *inputs: Any) -> Any:
        """Return the outputs of the definition, computed by the original from other inputs.

        Raises
        ------
        UnroutableError
            If the route does not support this.
        """
        every = list(self.understood.inputs)
        for position, value in zip(getattr(self, "order", range(len(every))), inputs, strict=True):
            every[position] = value
        return self.route.outputs(self.original, self.understood, tuple(every))


def route_calls(route: Route, original: Original) -> Original:
    """Return a wrapper that offers each call of `original` to the active runtime.

    Parameters
    ----------
    route : Route
        Describes the original.
    original : callable
        The function to wrap; for a method, its first argument is the object.

    Returns
    -------
    callable
        Raises what the original raises, and errors of solutions if these must not be hidden: in
        mapping mode, and with ``strict``.
    """
    point = PatchPoint(None, route.label, route.parameters, route.could_be, route.lacks)
    counters, once = counters_of(route.label), Again.of(route, original)
    understand, deliver = route.understand, route.deliver
    thread, nothing, compiling = _thread, _NOTHING, _compiling()
    anything = (Exception,)  # globals are gone at interpreter shutdown

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        routes = point.routes
        if routes is None or compiling() or (state := thread.state).inside:
            return original(*args, **kwargs)
        call = understood = None
        try:
            understood = understand(*args, **kwargs)
            call = routes[understood.name]
            if call is None:
                counters.refuse(NOT_WANTED)
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

    wrapper.__apply_slot__ = point  # type: ignore[attr-defined]
    router.connect(point)
    return wrapper


def _compiling() -> Callable[[], bool]:
    """Return the function that tells whether torch.compile is tracing."""
    torch: Any = sys.modules.get("torch")
    asked = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    return (lambda: False) if asked is None else asked


class Route(ABC):
    """The description of one library function.

    Each instance belongs to one patched function. Its methods may be called from any thread.

    Attributes
    ----------
    label : str
        Display name of the function, such as ``"flashinfer.norm.rmsnorm"``; calls are counted under
        it.
    parameters : inspect.Signature
        Names of `Understood.inputs`; created by `signature_of`.
    definitions : tuple of str
        File-name patterns of the definitions that calls may match: ``"rmsnorm_h*"``.
    kind : str, optional
        ``"function"`` or ``"method"``. Default: a method if the path contains a capitalised name.
    """

    label: str
    parameters: binding.Canonical
    definitions: tuple[str, ...]
    kind: Optional[Kind] = None

    @abstractmethod
    def understand(self, *args: Any, **kwargs: Any) -> Understood:
        """Interpret a call.

        Subclasses declare the parameters of the library function; for a method, the object comes
        first after `self`.

        Raises
        ------
        UnroutableError
            If the call does not correspond to any definition.
        """

    @abstractmethod
    def deliver(self, understood: Understood, result: Any) -> Any:
        """Return what the library's function would return.

        Check all outputs before writing to the first tensor that the call reads.

        Parameters
        ----------
        understood : Understood
            What `understand` returned.
        result : tensor or tuple
            The outputs of the definition: a single one unwrapped, several as a tuple.

        Raises
        ------
        UnroutableError
            If the outputs cannot be delivered; the original is then called instead. Tensors that
            the call reads must not have been modified.
        """

    def outputs(self, original: Original, understood: Understood, inputs: tuple[Any, ...]) -> Any:
        """Return the outputs of the definition, computed by the original.

        Used to compare a solution with the original. Must not write to anything outside `inputs`.

        Parameters
        ----------
        original : callable
            The original function.
        understood : Understood
            The call.
        inputs : tuple
            The values to compute with, like `Understood.inputs`: copies of them.

        Raises
        ------
        UnroutableError
            If they cannot be computed, as by default. Solutions are then never compared.
        """
        raise UnroutableError("no outputs to compare with")

    def expects(self, original: Original) -> Optional[str]:
        """Return why this release of the library is not supported, or None if it is."""
        return None

    def could_be(self, name: str) -> bool:
        """Return whether any call can correspond to the definition `name`."""
        return any(fnmatchcase(name, pattern) for pattern in self.definitions)

    def lacks(self, name: str) -> Optional[str]:
        """Return why no definition of that name can be derived from calls, or None if one can."""
        return "its adapter makes no definitions"

    def define(self, understood: Understood) -> Made:
        """Return the definition of a call, derived from the library's description of the function.

        Called if a solution of that name exists, but not the definition.

        Raises
        ------
        ConfigError
            If it cannot be derived; the message says why.
        """
        raise ConfigError(str(self.lacks(understood.name)))


class RouteAdapter(Adapter):
    """An adapter defined by a table of routes.

    Attributes
    ----------
    routes : mapping of str to callable
        Factory of the route of each function, by the function's path: a `Route` class, or another
        callable that takes no arguments and returns a route.
    """

    routes: ClassVar[Mapping[str, RouteFactory]] = {}

    def targets(self) -> Sequence[PatchSpec]:
        """Return one target for each route."""
        found = []
        for path, make in self.routes.items():
            route, owner = make(), path.split(".")[-2]
            kind: Kind = "method" if owner.lstrip("_")[:1].isupper() else "function"
            spec = PatchSpec(
                path,
                route.kind or kind,
                path.rpartition(".")[2],
                expects=route.expects,
                definitions=route.definitions,
            )
            found.append(spec)
        return found

    def make_wrapper(self, spec: PatchSpec, orig: Original) -> Original:
        """Return a function that routes the calls of `orig`."""
        return route_calls(self.routes[spec.path](), orig)
