"""For adapters that route a function themselves: by an `Api`, and `routed`.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.apply.wrappers import decorate, label_of
from flashinfer_bench.routing.routes import UnroutableError as UnroutableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flashinfer_bench.data import Definition
    from flashinfer_bench.routing.patch_points import Args

    DefinitionOf = Callable[[Args, dict[str, Any]], Optional[str]]
    Bind = Callable[[Args, dict[str, Any], Optional[Definition]], "Bound"]


class Bound(NamedTuple):
    """The arguments of one call, told apart.

    Attributes
    ----------
    inputs : dict of str to Any
        By the names that a solution knows them by, in the order of the definition if there is one.
    buffers : mapping of int to tensor
        Where outputs go, by position among the definition's outputs: passed in to be written to,
        or inputs that are worked on in place.
    returned : tuple of int, optional
        Which outputs the call returns; None: however many there are.
    """

    inputs: dict[str, Any]
    buffers: Mapping[int, Any] = MappingProxyType({})
    returned: Optional[tuple[int, ...]] = None


@dataclass(frozen=True, eq=False)
class Api:
    """A function whose calls can be answered by something else.

    Parameters
    ----------
    name : str
        What people call it: ``"flashinfer.norm.rmsnorm"``. Calls are counted under it.
    definition_of : callable
        ``definition_of(args, kwargs)`` returns the name of the definition that a call is one of, or
        None. Whatever it raises counts as None.
    bind : callable, optional
        ``bind(args, kwargs, definition)`` tells the arguments of a call apart, or raises
        `UnroutableError`. The definition is None where it is not known. Default: by the signature.

    Both get parameters that may be given by position as a tuple, with defaults filled in.
    """

    name: str
    definition_of: DefinitionOf
    bind: Optional[Bind] = None

    @classmethod
    def of_function(
        cls,
        function: Callable[..., Any],
        name: str = "",
        *,
        definition_of: DefinitionOf,
        bind: Optional[Bind] = None,
    ) -> Api:
        """Describe a function, by default called by its module and qualified name."""
        return cls(name or label_of(function), definition_of, bind)


def routed(api: Api, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper that offers each call of `original` to what is enabled.

    While nothing is, it calls the original.

    Parameters
    ----------
    api : Api
        Describes the original.
    original : callable
        What is wrapped. A `staticmethod` or `classmethod` stays one.

    Raises
    ------
    ConfigError
        If `original` cannot be called, or returns no result but a coroutine or a generator.
    """

    def definition_of(*args: Any, **kwargs: Any) -> Optional[str]:
        return api.definition_of(args, kwargs)

    return decorate(definition_of, original, label=api.name, bind=api.bind)
