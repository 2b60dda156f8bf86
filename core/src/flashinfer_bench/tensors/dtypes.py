"""The names of element types, and what torch and Python call them."""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Union

from flashinfer_bench.errors import CapabilityError, DataError

if TYPE_CHECKING:
    import torch

    from flashinfer_bench.data import DType

FLOAT4 = "float4_e2m1"
"""Two 4-bit floats in a byte: one element of such a tensor, and of a declared shape, is a byte."""

_SIGNED = ("int8", "int16", "int32", "int64")
_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
_FLOATS = ("float64", "float32", "float16", "bfloat16", *_FLOAT8, FLOAT4)
_COMPLEX = ("complex64", "complex128")

# What definitions may declare, and what a solution may return by mistake: both need a name.
NAMES = frozenset((*_FLOATS, *_SIGNED, *_UNSIGNED, *_COMPLEX, "bool"))

_TORCH_NAMES = {FLOAT4: "float4_e2m1fn_x2"}


def _text(dtype: Union[DType, str]) -> str:
    return str(dtype.value) if isinstance(dtype, Enum) else str(dtype)


@cache
def _lookup(name: str) -> torch.dtype:
    import torch

    if name not in NAMES:
        raise DataError(f"dtype {name!r} is not known; known are {', '.join(sorted(NAMES))}")
    found = getattr(torch, _TORCH_NAMES.get(name, name), None)
    if not isinstance(found, torch.dtype):
        raise CapabilityError(
            f"torch {torch.__version__} has no dtype {name}", hint="Install a newer torch."
        )
    return found


def to_torch_dtype(dtype: Union[DType, str]) -> torch.dtype:
    """Return torch's element type of that name.

    Parameters
    ----------
    dtype : DType or str
        ``float32``, ``bfloat16``, ``float8_e4m3fn``, ``float4_e2m1``, ``int32``, ``bool``, …

    Returns
    -------
    torch.dtype
        ``float4_e2m1`` gives ``torch.float4_e2m1fn_x2``, whose elements hold two values each.

    Raises
    ------
    DataError
        If there is no such type.
    CapabilityError
        If the installed torch is too old to have it.
    """
    return _lookup(_text(dtype))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of torch's `dtype`; the inverse of `to_torch_dtype`."""
    name = str(dtype).removeprefix("torch.")
    return FLOAT4 if name == _TORCH_NAMES[FLOAT4] else name


def is_integer(dtype: Union[DType, str]) -> bool:
    """Return whether `dtype` is one of the integer types; ``bool`` is not."""
    return _text(dtype) in _SIGNED + _UNSIGNED


def is_float(dtype: Union[DType, str]) -> bool:
    """Return whether `dtype` is one of the floating-point types."""
    return _text(dtype) in _FLOATS


def is_bool(dtype: Union[DType, str]) -> bool:
    """Return whether `dtype` is ``bool``."""
    return _text(dtype) == "bool"


def is_low_precision(dtype: Union[DType, str]) -> bool:
    """Return whether `dtype` is a float of 8 bits or fewer."""
    return _text(dtype) in (*_FLOAT8, FLOAT4)


def to_python_type(dtype: Union[DType, str]) -> type:
    """Return the Python type that stands for a scalar of `dtype`: int, float or bool.

    Raises
    ------
    DataError
        If there is none, as for complex numbers.
    """
    if is_bool(dtype):
        return bool
    if is_integer(dtype):
        return int
    if is_float(dtype):
        return float
    raise DataError(
        f"dtype {_text(dtype)!r} has no scalar form; allowed are integers, floats, bool"
    )
