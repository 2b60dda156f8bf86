"""Library functions whose calls are answered by something else.

An adapter describes each function that it patches by a `Route`, and has it wrapped by
`route_calls`. A call of the wrapper takes three steps:

- `Route.understand` says which definition the call is one of, and what its inputs are;
- what is enabled, for applying or for tracing, gets these inputs, as it does from decorated
  functions;
- `Route.deliver` makes of the definition's outputs what the library's function returns.

A call that is not understood goes to the original, and is counted by the reason. While nothing is
enabled, all calls do. So do calls that are made inside a routed one, and those that torch.compile
traces.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from flashinfer_bench.integration.adapter import Adapter, PatchSpec
from flashinfer_bench.integration.canonical import (
    Canonical,
    Understood,
    UnroutableError,
    signature_of,
)
from flashinfer_bench.integration.routed import Again, route_calls, route_stats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from inspect import Signature

    from flashinfer_bench.data import Definition
    from flashinfer_bench.integration.adapter import Kind

    Original = Callable[..., Any]
    RouteFactory = Callable[[], "Route"]

__all__ = [
    "Again",
    "Canonical",
    "Route",
    "RouteAdapter",
    "Understood",
    "UnroutableError",
    "route_calls",
    "route_stats",
    "signature_of",
]


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
    returns_inplace : bool
        Whether `deliver` writes to tensors that the call also reads. It must then have checked all
        outputs before it writes to any.
    kind : str, optional
        ``"function"`` or ``"method"``; default: a method if the path leads through a name that
        begins with a capital.
    """

    label: str
    parameters: Signature
    definitions: tuple[str, ...]
    returns_inplace: bool = False
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

    def accepts(self, definition: Definition, understood: Understood) -> Optional[str]:
        """Return why a call is none of a definition; None if it is one.

        For what only the definition itself tells, such as a constant in its reference. Asked once
        for each definition and `facts`, and not at all for a definition that nobody has.
        """
        return None

    def facts(self, understood: Understood) -> Any:
        """Return what `accepts` looks at in a call: something that can be a key of a dict."""
        return None

    def expects(self, original: Original) -> Optional[str]:
        """Return why this release of the library is not supported; None if it is."""
        return None

    def could_be(self, name: str) -> bool:
        """Return whether any call can be one of the definition `name`."""
        return any(fnmatchcase(name, pattern) for pattern in self.definitions)


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
        return [_target(path, make()) for path, make in self.routes.items()]

    def make_wrapper(self, spec: PatchSpec, orig: Original) -> Original:
        """Return a function that routes the calls of `orig`."""
        return route_calls(self.routes[spec.path](), orig)


def _target(path: str, route: Route) -> PatchSpec:
    owner, name = path.split(".")[-2:]
    kind: Kind = route.kind or ("method" if owner.lstrip("_")[:1].isupper() else "function")
    return PatchSpec(path, kind, name, expects=route.expects, definitions=route.definitions)
