"""Names of element types, their torch and Python equivalents, and their default tolerances."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.data.definition import TORCH_NAMES, is_literal, torch_dtype
from flashinfer_bench.data.tolerance import OutputTolerance, Tolerance
from flashinfer_bench.errors import DataError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from flashinfer_bench.data import Definition, DType
    from flashinfer_bench.data.definition import TensorSpec

    Buffer = Union[bytes, bytearray, memoryview]


FLOAT4 = "float4_e2m1"
"""Two 4-bit floats per byte: each byte is one element of such a tensor and of a declared shape."""

_SIGNED = ("int8", "int16", "int32", "int64")
_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
_FLOATS = ("float64", "float32", "float16", "bfloat16", *_FLOAT8, FLOAT4)
_COMPLEX = ("complex64", "complex128")

# Types that definitions may declare, and that a solution may return by mistake.
NAMES = frozenset((*_FLOATS, *_SIGNED, *_UNSIGNED, *_COMPLEX, "bool"))


def to_torch_dtype(dtype: Union[DType, str]) -> torch.dtype:
    """Return the torch dtype with this name.

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
        If the name is unknown.
    CapabilityError
        If the installed torch is too old for it.
    """
    name = str(dtype)
    if name not in NAMES:
        raise DataError(f"unknown dtype {name!r}; known: {', '.join(sorted(NAMES))}")
    return torch_dtype(TORCH_NAMES.get(name, name))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a torch `dtype`; the inverse of `to_torch_dtype`."""
    name = str(dtype).removeprefix("torch.")
    return FLOAT4 if name == TORCH_NAMES[FLOAT4] else name


def is_integer(dtype: Union[DType, str]) -> bool:
    """Return whether `dtype` is one of the integer types; ``bool`` is not."""
    return dtype in _SIGNED + _UNSIGNED


def is_float(dtype: Union[DType, str]) -> bool:
    """Return whether `dtype` is one of the floating-point types."""
    return dtype in _FLOATS


def is_low_precision(dtype: Union[DType, str]) -> bool:
    """Return whether `dtype` is a float of 8 bits or fewer."""
    return dtype in (*_FLOAT8, FLOAT4)


def to_python_type(dtype: Union[DType, str]) -> type:
    """Return the Python type of a scalar of `dtype`: int, float or bool.

    Raises
    ------
    DataError
        If there is none, as for complex numbers.
    """
    if dtype == "bool":
        return bool
    if is_integer(dtype):
        return int
    if is_float(dtype):
        return float
    raise DataError(f"dtype {str(dtype)!r} has no scalar form; allowed: integers, floats, bool")


Size = Union[int, str]
"""A constant size, or the name of a variable axis."""


@dataclass(frozen=True)
class Operand:
    """An input or output.

    Parameters
    ----------
    name : str
        Its name.
    shape : tuple of int or str, optional
        A size for each constant axis, a name for each variable axis; None for a scalar.
    dtype : torch.dtype
        Element type.
    scalar : type
        Python type of a scalar of this dtype.
    """

    name: str
    shape: Optional[tuple[Size, ...]]
    dtype: torch.dtype
    scalar: type


def operands_of(
    specs: Mapping[str, TensorSpec], constants: Mapping[str, int]
) -> tuple[Operand, ...]:
    """Return inputs or outputs in declaration order.

    Parameters
    ----------
    specs : mapping of str to TensorSpec
        ``definition.inputs`` or ``definition.outputs``.
    constants : mapping of str to int
        ``definition.const_axes``.

    Raises
    ------
    CapabilityError
        If torch is missing, or too old for one of the dtypes.
    """
    return tuple(
        Operand(
            name,
            None if spec.shape is None else tuple(_size(entry, constants) for entry in spec.shape),
            to_torch_dtype(spec.dtype),
            to_python_type(spec.dtype),
        )
        for name, spec in specs.items()
    )


def _size(entry: str, constants: Mapping[str, int]) -> Size:
    if entry in constants:
        return constants[entry]
    return int(entry) if is_literal(entry) else entry


def first_places(operands: Iterable[Operand]) -> dict[str, tuple[int, int]]:
    """Return the first occurrence of each variable axis: operand position and dimension."""
    found: dict[str, tuple[int, int]] = {}
    for position, operand in enumerate(operands):
        for dimension, size in enumerate(operand.shape or ()):
            if isinstance(size, str):
                found.setdefault(size, (position, dimension))
    return found


MAX_DIMENSIONS = 64


def tensor_to_bytes(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], memoryview]:
    """Return the dtype, shape and raw bytes of a tensor.

    Parameters
    ----------
    tensor : torch.Tensor
        Any dense tensor, on any device, contiguous or not.

    Returns
    -------
    dtype : str
        Name of its element type.
    shape : tuple of int
        Its shape.
    data : memoryview
        Its elements in row-major order and native byte order. Shares the memory of a contiguous CPU
        tensor; otherwise a copy.

    Raises
    ------
    TypeError
        If the tensor is sparse, quantised, or has no data.
    """
    import torch

    name = dtype_name(tensor.dtype)
    if tensor.layout != torch.strided or tensor.device.type == "meta" or name not in NAMES:
        raise TypeError(
            f"a {name} tensor of layout {tensor.layout} on {tensor.device} has no plain bytes"
        )
    plain = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
    flat = plain.reshape(-1).view(torch.uint8)
    return name, tuple(tensor.shape), _memory_of(flat)


def tensor_from_bytes(dtype: str, shape: Sequence[int], buffer: Buffer) -> torch.Tensor:
    """Create a tensor from raw bytes; every argument may come from an untrusted process.

    Parameters
    ----------
    dtype : str
        Name of the element type.
    shape : sequence of int
        Its shape.
    buffer : bytes-like
        Its elements in row-major order. A writable, aligned buffer is shared with the tensor; any
        other is copied.

    Returns
    -------
    torch.Tensor
        On the CPU.

    Raises
    ------
    ProtocolError
        If the name is unknown, a size is negative, or the number of bytes does not match.
    """
    sizes = _checked_shape(dtype, shape)
    strides = [prod(sizes[position:]) for position in range(1, len(sizes) + 1)]
    return tensor_from_span(dtype, sizes, strides, buffer)


def span_of(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Return the number of bytes from the first to the last byte of a strided tensor, inclusive.

    Parameters
    ----------
    shape, strides : sequence of int
        Sizes, and the step in elements between neighbours in each dimension; none negative.
    itemsize : int
        Bytes per element.
    """
    if not all(shape):
        return 0
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return (last + 1) * itemsize


def tensor_from_span(
    dtype: str, shape: Sequence[int], strides: Sequence[int], buffer: Buffer
) -> torch.Tensor:
    """Create a strided tensor; every argument may come from an untrusted process.

    Parameters
    ----------
    dtype : str
        Name of the element type.
    shape, strides : sequence of int
        As for `span_of`.
    buffer : bytes-like
        The memory from first to last byte; shared if writable and aligned.

    Returns
    -------
    torch.Tensor
        On the CPU, contiguous.

    Raises
    ------
    ProtocolError
        As for `tensor_from_bytes`; or if the strides do not match the shape and the buffer.
    """
    import torch

    sizes, steps = _checked_shape(dtype, shape), tuple(strides)
    element = to_torch_dtype(dtype)
    view = memoryview(buffer).cast("B")
    sane = len(sizes) == len(steps) and all(type(n) is int and 0 <= n < 2**48 for n in steps)
    if not sane or len(view) != span_of(sizes, steps, element.itemsize):
        raise ProtocolError(
            f"got {len(view)} bytes for a {dtype} tensor of shape {str(sizes)[:200]} with "
            f"strides {str(steps)[:200]}"
        )
    if not len(view):
        return torch.empty(sizes, dtype=element)
    # Copied as integers: not every float type supports copies on every device.
    units = _as_uint8(view, element.itemsize).view(_unit_of(element))
    data = units.as_strided(sizes, steps).contiguous()
    # A dimension of size 1 may have any stride: use the strides of a new tensor.
    data = data.as_strided((data.numel(),), (1,)).view(sizes)
    if element is torch.bool:
        return data != 0
    return data.view(element)


def _checked_shape(dtype: str, shape: Sequence[int]) -> tuple[int, ...]:
    if dtype not in NAMES:
        raise ProtocolError(f"unknown dtype {dtype!r}")
    sizes = tuple(shape)
    plain = all(type(size) is int and 0 <= size < 2**63 for size in sizes)
    if not plain or len(sizes) > MAX_DIMENSIONS or prod(size or 1 for size in sizes) >= 2**60:
        raise ProtocolError(f"{str(sizes)[:200]} is not the shape of a tensor")
    return sizes


def _unit_of(element: torch.dtype) -> torch.dtype:
    import torch

    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return sizes.get(element.itemsize, element)


def _as_uint8(view: memoryview, itemsize: int) -> torch.Tensor:
    import torch

    if not view.readonly:
        shared = torch.frombuffer(view, dtype=torch.uint8)
        if shared.data_ptr() % itemsize == 0:
            return shared
    copy = torch.empty(len(view), dtype=torch.uint8)
    _memory_of(copy)[:] = view
    return copy


def _memory_of(flat: torch.Tensor) -> memoryview:
    array: Any = flat.numpy()
    return memoryview(array)


# ----------------------------------------------------------------------------------- tolerances

# Default tolerances, by the precision that can be expected of a computation.
#
# ``eps`` is the distance from 1 to the next larger number of a type (the relative error of rounding
# to it is at most ``eps / 2``):
#
# * **16 bits and fewer**: ``max(1e-2, eps)``. One extra rounding, as of an intermediate result,
#   passes; rounding to the next coarser type in use fails: the error of fp8 E4M3 is up to 0.0625
#   where bfloat16 is allowed 0.01.
# * **More than 16 bits**: an eighth of the ``eps`` of the next coarser type in use (bfloat16 below
#   float32, float32 below float64), which is a quarter of the largest error of rounding to it.
#   Another order of summation costs about ``sqrt(K)`` times the type's own ``eps / 2`` (Higham,
#   *Accuracy and Stability of Numerical Algorithms*, 2002, section 4.2: the error grows like the
#   square root of the number of terms if roundings are independent), 5e-6 for float32 and 8192
#   terms.
#
# The same number is the absolute and the relative tolerance.

Layer = Union["Mapping[str, Any]", Tolerance, None]
"""Tolerance settings from one source: a configuration or the dataset."""

#: ``eps`` of each type, finest first.
EPS = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float4_e2m1": 2.0**-1,
}
_COARSER = {"float64": "float32", "float32": "bfloat16"}  # the next cheaper type to compute in
_LEAST = 1e-2  # for types of 16 bits and fewer


def default_tolerance(dtype: str) -> float:
    """Return the absolute and relative tolerance for results of one precision.

    Parameters
    ----------
    dtype : str
        Name of a floating-point type.

    Returns
    -------
    float
        1.5e-8 for float64, 9.8e-4 for float32, 0.01 for float16 and bfloat16, 0.125 for
        ``float8_e4m3fn``, 0.25 for ``float8_e5m2`` and 0.5 for ``float4_e2m1``.
    """
    coarser = _COARSER.get(dtype)
    return EPS[coarser] / 8 if coarser is not None else max(_LEAST, EPS[dtype])


def precision_of(definition: Definition, output: str) -> str:
    """Return the type that limits how precise an output can be.

    Parameters
    ----------
    definition : Definition
        The computation.
    output : str
        A floating-point output.

    Returns
    -------
    str
        Name of the coarsest type among the output and all floating-point input tensors: a solution
        with bfloat16 inputs may compute in bfloat16, even if a statistic is returned as float32.
        Scalars, such as a softmax scale, are ignored.
    """
    tensors = [spec for spec in definition.inputs.values() if spec.shape is not None]
    dtypes = [definition.outputs[output].dtype, *(spec.dtype for spec in tensors)]
    names = [str(dtype.value) for dtype in dtypes if dtype.is_floating]
    return max(names, key=list(EPS).index)


def default_tolerances(definition: Definition) -> dict[str, float]:
    """Return the tolerance of each output of `definition`; 0 for integers and booleans."""
    return {
        name: default_tolerance(precision_of(definition, name)) if spec.dtype.is_floating else 0.0
        for name, spec in definition.outputs.items()
    }


def tolerance_values(layers: Iterable[Layer], default: float, output: str = "") -> dict[str, Any]:
    """Merge settings into the tolerance of one output.

    Parameters
    ----------
    layers : iterable of Layer
        Settings in increasing priority.
    default : float
        Absolute and relative tolerance if no layer sets them.
    output : str
        Name of the output; if empty, settings for individual outputs are ignored.

    Returns
    -------
    dict of str to float
        Fields of `OutputTolerance`; always includes `atol` and `rtol`.
    """
    merged: dict[str, Any] = {"atol": default, "rtol": default}
    for layer in layers:
        given = _given(layer, output)
        known = {name: given[name] for name in OutputTolerance.model_fields if name in given}
        merged.update((name, value) for name, value in known.items() if value is not None)
    return merged


def outputs_without(field: str, layers: Sequence[Layer], outputs: Iterable[str]) -> frozenset[str]:
    """Return the outputs for which no layer sets `field`."""
    return frozenset(
        output
        for output in outputs
        if all(_given(layer, output).get(field) is None for layer in layers)
    )


def _given(layer: Layer, output: str) -> Mapping[str, Any]:
    if layer is None:
        return {}
    return layer.values_for(output) if isinstance(layer, Tolerance) else layer
