"""The C function that a definition requires: its parameters, their types, its declaration.

Neither C nor ctypes checks the arguments of a call: a function with a missing parameter would read
whatever is in the next register. The declaration is therefore put in front of every source file,
where the compiler compares it with the solution's own definition of the function.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.data import Definition, TensorSpec

# Half-precision and 8-bit floats are passed as their bits: C99 has no such types.
C_TYPES = {
    "float32": "float",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "float8_e4m3fn": "uint8_t",
    "float8_e5m2": "uint8_t",
    "float4_e2m1": "uint8_t",
    "int64": "int64_t",
    "int32": "int32_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "bool": "bool",
}
"""C type of an element, by the definition's dtype."""

AXIS_TYPE = "int64_t"

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Parameter:
    """One parameter of the C function.

    Parameters
    ----------
    name : str
        Name of the input, output or axis.
    ctype : str
        Type of the value, or of the pointer's target: ``float``.
    shape : tuple of str, optional
        Axes and literal sizes of a tensor; empty for a single number passed by pointer, None for a
        number passed by value.
    dtype : str
        Element type in the definition; empty for an axis.
    output : bool
        Whether the function writes to it.
    """

    name: str
    ctype: str
    shape: tuple[str, ...] | None = None
    dtype: str = ""
    output: bool = False

    @property
    def is_axis(self) -> bool:
        """Whether it is the size of a variable axis, which the caller does not pass."""
        return not self.dtype

    @property
    def declared(self) -> str:
        """Its type as C source: ``const float *``."""
        if self.shape is None:
            return self.ctype
        return f"{self.ctype} *" if self.output else f"const {self.ctype} *"


def parameters_of(definition: Definition) -> tuple[Parameter, ...]:
    """Return the parameters in the order of the call.

    Parameters
    ----------
    definition : Definition
        The definition that the function computes.

    Returns
    -------
    tuple of Parameter
        Inputs, outputs, and variable axes, each in the definition's order.

    Raises
    ------
    BuildError
        If no input or output has a variable axis, so that its size is unknown.
    """
    tensors = (*definition.inputs.values(), *definition.outputs.values())
    shown = {axis for spec in tensors for axis in spec.shape or ()}
    for axis in definition.var_axes:
        if axis not in shown:
            raise BuildError(f"no input or output of {definition.name!r} has the axis {axis!r}")
    return (
        *(_input(name, spec) for name, spec in definition.inputs.items()),
        *(_output(name, spec) for name, spec in definition.outputs.items()),
        *(Parameter(name, AXIS_TYPE) for name in definition.var_axes),
    )


def _input(name: str, spec: TensorSpec) -> Parameter:
    dtype = str(spec.dtype.value)
    if spec.shape is not None:
        return Parameter(name, C_TYPES[dtype], tuple(spec.shape), dtype)
    # A scalar comes from Python as a value, not as bits: small floats are passed as float.
    return Parameter(name, "float" if spec.dtype.is_floating else C_TYPES[dtype], None, dtype)


def _output(name: str, spec: TensorSpec) -> Parameter:
    dtype = str(spec.dtype.value)
    return Parameter(name, C_TYPES[dtype], tuple(spec.shape or ()), dtype, output=True)


def prototype(symbol: str, parameters: Iterable[Parameter]) -> str:
    """Return the declaration for display: one line, with the names of the definition."""
    listed = ", ".join(_joined(parameter.declared, parameter.name) for parameter in parameters)
    return f"void {symbol}({listed or 'void'});"


def _joined(declared: str, name: str) -> str:
    return f"{declared}{name}" if declared.endswith("*") else f"{declared} {name}"


def header(symbol: str, parameters: Iterable[Parameter], sizes: dict[str, int]) -> str:
    """Return the declaration for the compiler, which needs no other header.

    Parameters
    ----------
    symbol : str
        Name of the function.
    parameters : iterable of Parameter
        In the order of the call.
    sizes : dict of str to int
        The constant axes, each defined as ``AXIS_<name>``. Axes whose name cannot be part of a C
        identifier are omitted.

    Returns
    -------
    str
        C source.
    """
    types = ", ".join(_built_in(parameter.declared) for parameter in parameters)
    macros = [
        f"#define AXIS_{name} {size}\n"
        for name, size in sizes.items()
        if _IDENTIFIER.fullmatch(name)
    ]
    return f"{''.join(macros)}void {symbol}({types or 'void'});\n"


def _built_in(ctype: str) -> str:
    """Return the name that GCC and Clang have for a type without including a header.

    Including <stdint.h> before the first line of a source file would disable the feature macros
    (_GNU_SOURCE, …) that the file defines.
    """
    ctype = re.sub(r"(u?int\d+)_t", lambda match: f"__{match[1].upper()}_TYPE__", ctype)
    return ctype.replace("bool", "_Bool")


def definition_check(symbol: str) -> str:
    """Return C source that links only if the function is defined and not static."""
    return f"void (*const fib_entry_is_defined)(void) = (void (*)(void)){symbol};\n"


def is_identifier(symbol: str) -> bool:
    """Return whether `symbol` can be the name of a C function."""
    return _IDENTIFIER.fullmatch(symbol) is not None
