"""What can be said about a Python function before it is called with real tensors."""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.compile.toolkit.naming import declared_style
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.data import Definition, Solution

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Arity(NamedTuple):
    """How many positional arguments a function takes.

    Attributes
    ----------
    least : int
        Number of parameters without a default.
    most : int or None
        Number of parameters; None for any number (``*args``).
    """

    least: int
    most: Optional[int]

    def accepts(self, count: int) -> bool:
        """Return whether a call with `count` positional arguments can bind."""
        return self.least <= count and (self.most is None or count <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"{self.least} or more"
        return str(self.least) if self.most == self.least else f"{self.least} to {self.most}"


def read_arity(function: Callable[..., Any]) -> Optional[Arity]:
    """Return how many positional arguments `function` takes, or None where it cannot be told.

    Raises
    ------
    BuildError
        If it has a keyword-only parameter without a default: it cannot be called by position.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # compiled functions and some callable objects do not tell
        return None
    empty = inspect.Parameter.empty
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is empty:
            raise BuildError(
                f"parameter {parameter.name!r} is keyword-only and has no default, "
                "but arguments are passed by position"
            )
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return Arity(
        sum(p.default is empty for p in positional), None if any_number else len(positional)
    )


def choose_style(function: Callable[..., Any], definition: Definition, solution: Solution) -> bool:
    """Decide whether a Python function takes its outputs as arguments, and check that it can.

    A solution that states `destination_passing_style` is held to it. For one that does not, the
    signature decides: a function that can be called with the inputs alone returns its outputs,
    one that needs inputs and outputs is destination-passing. Where both numbers fit, as with
    ``*args``, it returns them, unless it is annotated to return None.

    Parameters
    ----------
    function : callable
        What the solution's entry point names.
    definition : Definition
        Says how many inputs and outputs there are.
    solution : Solution
        May state the calling convention.

    Returns
    -------
    bool
        True for destination-passing.

    Raises
    ------
    BuildError
        If the function cannot be called that way, or returns a tuple of another length.
    """
    try:
        style = declared_style(solution.spec)
        arity = read_arity(function)
        if style is None:
            style = _infer_style(function, definition, arity)
        _check_count(definition, arity, style)
        if not style:
            _check_returned(function, definition)
    except BuildError as error:
        symbol = solution.get_entry_symbol()
        raise BuildError(
            f"solution {solution.name!r}: {symbol}: {error.message}", hint=error.hint
        ) from None
    return style


def _infer_style(
    function: Callable[..., Any], definition: Definition, arity: Optional[Arity]
) -> bool:
    inputs = len(definition.inputs)
    both = inputs + len(definition.outputs)
    if arity is None:
        return True  # the default of the format
    if arity.accepts(inputs) and arity.accepts(both):
        return bool(definition.outputs) and _returned_type(function) is type(None)
    return arity.accepts(both)


def _check_count(definition: Definition, arity: Optional[Arity], style: bool) -> None:
    inputs, outputs = len(definition.inputs), len(definition.outputs)
    wanted, other = (inputs + outputs, inputs) if style else (inputs, inputs + outputs)
    if arity is None or arity.accepts(wanted):
        return
    names = ", ".join([*definition.inputs, *(definition.outputs if style else ())])
    convention = "destination-passing" if style else "value-returning"
    fix = (
        f"It fits the other convention: set destination_passing_style to {str(not style).lower()}."
        if arity.accepts(other)
        else f"Value-returning takes {inputs} arguments, destination-passing {inputs + outputs}."
    )
    raise BuildError(
        f"takes {arity} positional arguments, but a {convention} solution of "
        f"{definition.name!r} gets {wanted}: {names}",
        hint=fix,
    )


def _check_returned(function: Callable[..., Any], definition: Definition) -> None:
    length = annotated_length(function)
    outputs = len(definition.outputs)
    if length is not None and length != outputs:
        names = ", ".join(definition.outputs) or "none"
        raise BuildError(
            f"is annotated to return a tuple of {length}, "
            f"but {definition.name!r} has {outputs} outputs: {names}"
        )


def annotated_length(function: Callable[..., Any]) -> Optional[int]:
    """Return the length of the tuple that `function` says it returns, or None if it is open."""
    returned = _returned_type(function)
    if typing.get_origin(returned) is not tuple:
        return None
    members = typing.get_args(returned)
    if Ellipsis in members:
        return None
    return 0 if members == ((),) else len(members)


def _returned_type(function: Callable[..., Any]) -> Any:
    """Return the annotation of what is returned, or None if there is none that can be read."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - annotations are the candidate's code, and may be anything
        return None
    return hints.get("return")
