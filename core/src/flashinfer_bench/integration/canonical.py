"""The form in which calls of a library's functions are handed on.

A library calls its arguments what it likes. An adapter puts them in a canonical form: inputs of
definitions, under their names, in one order for each function. Which of them the definition of a
call has, and in which order, is worked out once (`reordered`).

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter, Signature
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.integration.binding import match, same_value
from flashinfer_bench.integration.opaque import opaque

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.integration.binding import Binding
    from flashinfer_bench.integration.slots import Args, Call, Kwargs

EXTRAS = "argument unknown to the definition"
"""Reason: a parameter that the definition lacks has not its default."""


class UnroutableError(Exception):
    """A call is not what a definition describes; it goes to the original.

    Parameters
    ----------
    reason : str
        Why: what such calls are counted as. The same words for the same cause, without values.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


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


class Canonical(Signature):
    """The parameters of a route: inputs of definitions under their names, and nothing else.

    No parameter takes an output, and a call with these returns the outputs of the definition.
    """

    __slots__ = ()

    def match(self, inputs: Sequence[str]) -> Binding:
        """Find the inputs of a definition among the parameters, by name alone.

        An adapter says what each value is. An input that it does not know is none of them, whatever
        the position.

        Raises
        ------
        ConfigError
            If an input has no parameter, or a parameter without a default is no input.
        """
        return match(self, inputs, (), by_position=False)


def signature_of(*names: str, **defaults: Any) -> Canonical:
    """Return the canonical signature of a route.

    Parameters
    ----------
    *names : str
        Inputs that every definition has, as definitions call them.
    **defaults
        Inputs that some definitions lack, and what calls of these must have in their place.
    """
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Canonical(
        [Parameter(name, kind) for name in names]
        + [Parameter(name, kind, default=default) for name, default in defaults.items()]
    )


class Order(NamedTuple):
    """Which canonical parameters a definition has.

    Attributes
    ----------
    inputs : tuple of int, optional
        The parameter, by position, of each input; None if all are inputs, in this order.
    extras : tuple of (int, Any)
        Parameters that it lacks, by position, and their defaults.
    """

    inputs: Optional[tuple[int, ...]]
    extras: tuple[tuple[int, Any], ...] = ()

    @classmethod
    def of(cls, signature: Canonical, inputs: Sequence[str]) -> Order:
        """Match the names of parameters with those of inputs.

        Raises
        ------
        ConfigError
            If an input has no parameter, or a parameter without a default is no input.
        """
        parameters = list(signature.parameters)
        binding = signature.match(inputs)
        chosen = tuple(parameters.index(name) for name in binding.inputs)
        extras = tuple(
            (parameters.index(name), signature.parameters[name].default) for name in binding.extras
        )
        return cls(None if chosen == tuple(range(len(parameters))) else chosen, extras)


def reordered(call: Call, signature: Canonical, inputs: Sequence[str]) -> Call:
    """Return `call` for canonical arguments instead of the inputs of a definition.

    Parameters
    ----------
    call : callable
        Takes inputs by position.
    signature : Canonical
        Names the canonical arguments.
    inputs : sequence of str
        Names of the inputs.

    Returns
    -------
    callable
        Its fallback has to be that of a routed call: it is told the order, and asked to decline
        calls that have more to them than the definition says.

    Raises
    ------
    ConfigError
        If no call with such arguments can be one of the definition.
    """
    order, extras = Order.of(signature, inputs)
    if order is None:
        return call
    pick = _picker(order)

    @opaque
    def bound(args: Args, _kwargs: Kwargs, fallback: Any) -> Any:
        for position, default in extras:
            value = args[position]
            if value is not default and not same_value(value, default):
                return fallback.decline(EXTRAS)
        fallback.order = order
        return call(pick(args), None, fallback)

    return bound


def _picker(order: tuple[int, ...]) -> Callable[[Args], Args]:
    if not order:
        return lambda _args: ()
    pick = itemgetter(*order)
    return pick if len(order) > 1 else lambda args: (pick(args),)
