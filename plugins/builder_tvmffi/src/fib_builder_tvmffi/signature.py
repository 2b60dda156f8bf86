"""What a compiled function says about its own signature, checked against the definition.

The library is compiled with TVM FFI's metadata, so that each exported function can be asked for its
parameters before it is called. One that was exported without the macros has none, and is believed.
"""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fib_native_toolkit import choose_style, declared_style
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashinfer_bench.data import Definition, Solution


class Signature(NamedTuple):
    """An exported function's parameters and result.

    Attributes
    ----------
    parameters : tuple of str
        Their types, in TVM FFI's names: ``DLTensor*``, ``int``, …
    returns : str
        The type of the result; ``None`` for void.
    """

    parameters: tuple[str, ...]
    returns: str

    def __str__(self) -> str:
        return f"({', '.join(self.parameters)}) -> {self.returns}"


def read_signature(metadata: Optional[Mapping[str, Any]]) -> Optional[Signature]:
    """Return the signature in a function's metadata.

    Parameters
    ----------
    metadata : mapping, optional
        What ``Module.get_function_metadata`` returned.

    Returns
    -------
    Signature or None
        None if there are no metadata, or they are not of a form that is known.
    """
    try:
        schema = json.loads((metadata or {})["type_schema"])
        named = schema.get("named_args")
        # Releases up to 0.1.12 have one list, the result first.
        members = [*named["return"], *named["params"]] if named else schema["args"]
        returns, *parameters = (str(member["type"]) for member in members)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return Signature(tuple(parameters), returns)


def style_of(signature: Optional[Signature], definition: Definition, solution: Solution) -> bool:
    """Decide whether a function takes its outputs as arguments, and check that it can.

    Parameters
    ----------
    signature : Signature, optional
        That of the function. Where it is not known, a solution that does not state its calling
        convention is taken for destination-passing.
    definition, solution
        See `fib_native_toolkit.choose_style`, whose rules these are.

    Returns
    -------
    bool
        True for destination-passing.

    Raises
    ------
    BuildError
        If the function cannot be called that way.
    """
    if signature is None:
        return declared_style(solution.spec) is not False
    positional = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(f"p{i}", positional) for i in range(len(signature.parameters))]
    symbol = solution.get_entry_symbol()
    try:
        style = choose_style(inspect.Signature(parameters), definition, solution)
    except BuildError as error:
        message = error.message.replace(f" {symbol}: ", f" {symbol}{signature}: ", 1)
        raise BuildError(message, hint=error.hint) from None
    if not style and definition.outputs and signature.returns == "None":
        raise BuildError(
            f"solution {solution.name!r}: {symbol}{signature} returns "
            f"nothing, but is to return {', '.join(definition.outputs)}"
        )
    return style
