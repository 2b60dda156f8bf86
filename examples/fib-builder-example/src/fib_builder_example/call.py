"""Call a C function with tensors, checking what C cannot check."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from flashinfer_bench.data import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from flashinfer_bench.data import Definition

    from fib_builder_example.prototype import Parameter

_BY_VALUE: dict[str, Any] = {
    "float": ctypes.c_float,
    "int64_t": ctypes.c_int64,
    "int32_t": ctypes.c_int32,
    "int16_t": ctypes.c_int16,
    "int8_t": ctypes.c_int8,
    "bool": ctypes.c_bool,
}
# ctypes only takes Python numbers; these also take a one-element tensor.
_TO_NUMBER: dict[str, Callable[[Any], Any]] = {"float": float, "bool": bool}


class CFunction:
    """A C function, called with tensors and numbers in the order of the definition.

    Tensors must be on the CPU and have the declared dtype and shape, or the function would access
    memory beyond them. Non-contiguous tensors are copied, and outputs copied back. The sizes of the
    variable axes are taken from the tensors.

    Parameters
    ----------
    function : ctypes function
        The function to call; its ``argtypes`` and ``restype`` are set.
    parameters : sequence of Parameter
        All parameters of the function.
    definition : Definition
        Provides the sizes of the constant axes.
    """

    def __init__(
        self, function: Any, parameters: Sequence[Parameter], definition: Definition
    ) -> None:
        function.argtypes = [_ctype(parameter) for parameter in parameters]
        function.restype = None
        self._function = function
        self._arguments = [
            (one, DType(one.dtype).to_torch()) for one in parameters if not one.is_axis
        ]
        self._axes = [one.name for one in parameters if one.is_axis]
        literal = {size for one in parameters for size in one.shape or () if size.isdigit()}
        self._sizes = {size: int(size) for size in literal} | definition.const_axes

    def __call__(self, *arguments: Any) -> None:
        """Call with all inputs and outputs.

        Raises
        ------
        TypeError
            If the number of arguments is wrong, or one is not a CPU tensor of the declared dtype.
        ValueError
            If a shape does not match the definition or the other shapes.
        """
        if len(arguments) != len(self._arguments):
            raise TypeError(f"takes {len(self._arguments)} arguments, got {len(arguments)}")
        sizes = dict(self._sizes)
        values: list[Any] = []
        copies: list[tuple[torch.Tensor, torch.Tensor, bool]] = []
        for (parameter, dtype), argument in zip(self._arguments, arguments, strict=True):
            if parameter.shape is None:
                values.append(_TO_NUMBER.get(parameter.ctype, int)(argument))
                continue
            _check(argument, parameter, dtype, sizes)
            dense = argument.contiguous()
            if dense is not argument:
                copies.append((argument, dense, parameter.output))
            values.append(dense.data_ptr())
        self._function(*values, *(sizes[axis] for axis in self._axes))
        for argument, dense, output in copies:
            if output:
                argument.copy_(dense)


def _ctype(parameter: Parameter) -> Any:
    return _BY_VALUE[parameter.ctype] if parameter.shape is None else ctypes.c_void_p


def _check(tensor: Any, parameter: Parameter, dtype: torch.dtype, sizes: dict[str, int]) -> None:
    """Raise unless `tensor` is as declared; record the sizes of axes that appear first in it."""
    if getattr(tensor, "dtype", None) is not dtype or not tensor.is_cpu:
        raise TypeError(f"{parameter.name!r} must be a tensor of {dtype} on the CPU")
    declared = parameter.shape or ()
    shape = tensor.shape
    fits = len(shape) == len(declared)
    # No generator expression: this is part of every timed call.
    for axis, size in zip(declared, shape, strict=False):
        if sizes.setdefault(axis, size) != size:
            fits = False
    if not fits:
        known = ", ".join(f"{axis} = {sizes[axis]}" for axis in declared if axis in sizes)
        raise ValueError(
            f"{parameter.name!r} has shape {list(shape)}, not [{', '.join(declared)}]"
            + (f" with {known}" if known else "")
        )
