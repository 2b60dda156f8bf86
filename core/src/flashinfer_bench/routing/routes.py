"""Library functions whose calls are answered by something else: the template of an adapter."""

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


@dataclass(slots=True)  # no named tuple: making one takes half as long again
class Understood:
    """What a call means.

    Attributes
    ----------
    name : str
        The definition that it is one of.
    inputs : tuple
        One value for each of `Route.parameters`, in their order, defaults filled in.
    rest : Any
        Whatever the route needs to hand the outputs over: buffers, flags.
    """

    name: str
    inputs: tuple[Any, ...]
    rest: Any = None


class Made(NamedTuple):
    """A definition that was made of a call.

    Attributes
    ----------
    definition : Definition
        Has the inputs that the route gives.
    full : Definition
        The same with all arguments that a solution of the library's own may take, in order.
    fixed : mapping of str to Any
        The others of these, the same in all calls.
    """

    definition: Definition
    full: Definition
    fixed: Mapping[str, Any]


_logger = logging.getLogger(__name__)

ARGUMENTS = "arguments"
"""Reason: the arguments are not those of the function."""

NOT_WANTED = "definition not enabled"
"""Reason: nothing that is enabled has the definition."""

FAILED = "adapter failed"
"""Reason: the adapter itself raised, which is logged once."""

DELIVERY = "outputs not delivered"
"""Reason: what a solution computed cannot be returned as the function would."""

_ANYTHING = (Exception,)


class _Counters:
    """What became of the calls of one label.

    Numbers are added to without a lock: under the global interpreter lock nothing can come between
    reading and writing them.
    """

    __slots__ = ("label", "refused", "routed", "told")

    # No global: while the interpreter is torn down modules lose theirs, and anything may fail. Such
    # calls go to the original without a word.
    ending = staticmethod(sys.is_finalizing)

    def __init__(self, label: str) -> None:
        self.label = label
        self.routed = 0
        self.refused: defaultdict[str, int] = defaultdict(int)
        self.told: set[str] = set()

    def refuse(self, reason: str) -> None:
        self.refused[reason] += 1

    def failed(self, reason: str, error: Exception) -> None:
        """Count, and log the first of its kind."""
        self.refuse(reason)
        if reason not in self.told:
            self.told.add(reason)
            _logger.warning(
                "%s: %s; such calls go to the original", self.label, reason, exc_info=error
            )

    def not_understood(self, error: Exception, *, began: bool) -> None:
        """Count a call that the adapter did not understand, or could not tell more about."""
        if self.ending():
            return
        trace, reason = error.__traceback__, FAILED
        if isinstance(error, UnroutableError):
            reason = error.reason
        elif isinstance(error, TypeError) and not began and trace and trace.tb_next is None:
            reason = ARGUMENTS  # nothing in `understand` raised, but the call of it
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
    """Return the counters of a label, which are never forgotten."""
    return _counters.setdefault(label, _Counters(label))


def route_stats() -> dict[str, dict[str, Any]]:
    """Return what became of the calls of patched functions while anything was enabled.

    Returns
    -------
    dict of str to dict
        By label. ``routed``: calls that were handed to what is enabled; its own counters say
        whether a solution answered. ``refused``: calls that the original answered for reasons of
        the route, as a number by reason. ``calls``: all of them.
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
    strict : Counters
        Of a runtime for which it is an error that outputs cannot be delivered. Not there if not.
    unseen : bool
        Whether that is the solution's error, whatever the reason: nobody has looked at its outputs.
        Not there if somebody has.
    """

    # Made by the wrapper: a constructor would be a good part of what a routed call costs. What few
    # calls need is not set at all.
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
        strict: Any = getattr(self, "strict", None)
        if hasattr(self, "unseen"):
            strict.error_after_all()
            raise RuntimeError(
                f"the outputs of the solution of {self.understood.name!r} cannot be returned as "
                f"{self.counters.label} would return them: {error}"
            ) from error
        self.counters.routed -= 1
        if isinstance(error, UnroutableError):
            self.counters.refuse(error.reason)
            if strict is not None:
                strict.miss_after_all(error.reason)
        elif strict is not None:
            strict.error_after_all()
            raise error
        else:
            self.counters.failed(DELIVERY, error)

    def define(self) -> Made:
        """Return the definition that the call is of; see `Route.define`."""
        return self.route.define(self.understood)

    def understand_anew(self) -> tuple[Any, ...]:
        """Return the inputs of the call as they are understood now.

        Raises
        ------
        UnroutableError
            If it is of no definition any more.
        """
        self.understood = self.route.understand(*self.args, **self.kwargs)
        return self.understood.inputs

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
    point = PatchPoint(None, route.label, route.parameters, route.could_be, route.lacks)
    counters, once = counters_of(route.label), Again.of(route, original)
    understand, deliver = route.understand, route.deliver
    thread, nothing, compiling = _thread, _NOTHING, _compiling()
    anything = _ANYTHING  # a module that is torn down loses its globals

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
    """Return what says whether torch.compile is tracing."""
    torch: Any = sys.modules.get("torch")
    asked = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    return (lambda: False) if asked is None else asked


class Route(ABC):
    """What there is to know about one function of a library.

    An instance belongs to one patched function. Its methods are called from any thread.

    Attributes
    ----------
    label : str
        What people call the function, ``"flashinfer.norm.rmsnorm"``: its calls are counted under
        it.
    parameters : inspect.Signature
        Names of `Understood.inputs`; made by `signature_of`.
    definitions : tuple of str
        Patterns of the definitions that calls may be of, as in file names: ``"rmsnorm_h*"``.
    kind : str, optional
        ``"function"`` or ``"method"``; default: a method if the path leads through a name that
        begins with a capital.
    """

    label: str
    parameters: binding.Canonical
    definitions: tuple[str, ...]
    kind: Optional[Kind] = None

    @abstractmethod
    def understand(self, *args: Any, **kwargs: Any) -> Understood:
        """Say what a call means.

        Written with the parameters of the library's own function; a method has its object first,
        after `self`.

        Raises
        ------
        UnroutableError
            If the call is not one of any definition.
        """

    @abstractmethod
    def deliver(self, understood: Understood, result: Any) -> Any:
        """Return what the library's function would return.

        All outputs are to be checked before the first tensor is written to that the call reads.

        Parameters
        ----------
        understood : Understood
            What `understand` returned.
        result : tensor or tuple
            The outputs of the definition: one as itself, several as a tuple.

        Raises
        ------
        UnroutableError
            If that cannot be; the original is then called instead. Nothing of what the call reads
            may have been written to.
        """

    def outputs(self, original: Original, understood: Understood, inputs: tuple[Any, ...]) -> Any:
        """Return the outputs of the definition, computed by the original.

        For comparing a solution with it. Nothing outside of `inputs` may be written to.

        Parameters
        ----------
        original : callable
            The function itself.
        understood : Understood
            The call.
        inputs : tuple
            What to compute with, like `Understood.inputs`: copies of them.

        Raises
        ------
        UnroutableError
            If it cannot be computed; the default. Solutions are then never compared.
        """
        raise UnroutableError("no outputs to compare with")

    def expects(self, original: Original) -> Optional[str]:
        """Return why this release of the library is not supported; None if it is."""
        return None

    def could_be(self, name: str) -> bool:
        """Return whether any call can be one of the definition `name`."""
        return any(fnmatchcase(name, pattern) for pattern in self.definitions)

    def lacks(self, name: str) -> Optional[str]:
        """Return why no definition of that name can be made of calls; None if one can."""
        return "its adapter makes no definitions"

    def define(self, understood: Understood) -> Made:
        """Return the definition that a call is of, made by what the library says of its function.

        Asked where somebody has a solution of that name, and nobody the definition.

        Raises
        ------
        ConfigError
            If it cannot be made; the message says why.
        """
        raise ConfigError(str(self.lacks(understood.name)))


class RouteAdapter(Adapter):
    """An adapter that is a table of routes.

    Attributes
    ----------
    routes : mapping of str to callable
        What makes the route of each function, by the path of the function: a `Route` class, or
        anything else that returns a route when called without arguments.
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
