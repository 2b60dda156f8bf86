"""What a compiled function says about its own signature, checked against the definition.

The library is compiled with TVM FFI's metadata, so that each exported function can be asked for its
parameters before it is called. One that was exported without the macros has none, and is believed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.compile.toolkit import declared_style
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


def choose_style(
    signature: Optional[Signature], definition: Definition, solution: Solution
) -> bool:
    """Decide whether a function takes its outputs as arguments, and check that it can.

    A solution that states `destination_passing_style` is held to it. One that does not is
    destination-passing, unless its signature fits nothing but returning the outputs.

    Parameters
    ----------
    signature : Signature, optional
        That of the function, where it is known.
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
        If the function cannot be called that way.
    """
    style = declared_style(solution.spec)
    if signature is None:
        return style is not False
    if style is None:
        style = not _only_returns(signature, definition)
    reason = _objection(signature, definition, style)
    if reason:
        symbol = solution.get_entry_symbol()
        raise BuildError(
            f"solution {solution.name!r}: {symbol}{signature} {reason}",
            hint=_hint(signature, definition, style),
        )
    return style


def _only_returns(signature: Signature, definition: Definition) -> bool:
    return not _objection(signature, definition, False) and bool(
        _objection(signature, definition, True)
    )


def _objection(signature: Signature, definition: Definition, style: bool) -> str:
    wanted = [*definition.inputs, *(definition.outputs if style else ())]
    convention = "destination-passing" if style else "value-returning"
    if len(signature.parameters) != len(wanted):
        return (
            f"takes {len(signature.parameters)} arguments, but a {convention} solution of "
            f"{definition.name!r} gets {len(wanted)}: {', '.join(wanted)}"
        )
    if not style and definition.outputs and signature.returns == "None":
        return f"returns nothing, but is to return {', '.join(definition.outputs)}"
    return ""


def _hint(signature: Signature, definition: Definition, style: bool) -> str:
    if not _objection(signature, definition, not style):
        other = str(not style).lower()
        return f"It fits the other convention: set destination_passing_style to {other}."
    inputs, outputs = len(definition.inputs), len(definition.outputs)
    return f"Value-returning takes {inputs} arguments, destination-passing {inputs + outputs}."
