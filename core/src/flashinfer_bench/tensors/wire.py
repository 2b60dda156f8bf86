"""Tensors as raw bytes: what crosses a process boundary is a name, a shape and these."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Union

from flashinfer_bench.errors import ProtocolError
from flashinfer_bench.tensors.dtypes import NAMES, dtype_name, to_torch_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    Buffer = Union[bytes, bytearray, memoryview]

MAX_DIMENSIONS = 64


def tensor_to_bytes(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], memoryview]:
    """Take a tensor apart.

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
        Its elements in row-major order, native byte order. Shares the memory of a contiguous CPU
        tensor; otherwise it is a copy.

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
    """Put a tensor together again; every argument may come from an untrusted process.

    Parameters
    ----------
    dtype : str
        Name of the element type.
    shape : sequence of int
        Its shape.
    buffer : bytes-like
        Its elements in row-major order. A writable, aligned buffer is shared with the tensor,
        any other is copied.

    Returns
    -------
    torch.Tensor
        On the CPU.

    Raises
    ------
    ProtocolError
        If the name is unknown, a size is negative, or the number of bytes does not fit.
    """
    import torch

    sizes = _checked_shape(dtype, shape)
    element = to_torch_dtype(dtype)
    view = memoryview(buffer).cast("B")
    expected = prod(sizes) * element.itemsize
    if len(view) != expected:
        raise ProtocolError(
            f"a {dtype} tensor of shape {sizes} has {expected} bytes, but {len(view)} came"
        )
    if expected == 0:
        return torch.empty(sizes, dtype=element)
    data = _as_uint8(view, element.itemsize)
    if element is torch.bool:
        # Any other bit pattern in a bool is undefined behaviour further on.
        return (data != 0).view(sizes)
    return data.view(element).view(sizes)


def span_of(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Return how many bytes lie between the first byte of a strided tensor and its last.

    Parameters
    ----------
    shape, strides : sequence of int
        Its sizes, and the distance between neighbours in each dimension in elements; none of them
        negative.
    itemsize : int
        Bytes of an element.
    """
    if not all(shape):
        return 0
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return (last + 1) * itemsize


def tensor_from_span(
    dtype: str, shape: Sequence[int], strides: Sequence[int], buffer: Buffer
) -> torch.Tensor:
    """Put a strided tensor together; every argument may come from an untrusted process.

    Parameters
    ----------
    dtype : str
        Name of the element type.
    shape, strides : sequence of int
        As of `span_of`.
    buffer : bytes-like
        The memory from its first byte to its last; shared if it is writable and aligned.

    Returns
    -------
    torch.Tensor
        On the CPU, contiguous.

    Raises
    ------
    ProtocolError
        As of `tensor_from_bytes`; or if the strides do not fit the shape and the buffer.
    """
    import torch

    sizes, steps = _checked_shape(dtype, shape), tuple(strides)
    element = to_torch_dtype(dtype)
    view = memoryview(buffer).cast("B")
    sane = len(sizes) == len(steps) and all(type(n) is int and 0 <= n < 2**48 for n in steps)
    if not sane or len(view) != span_of(sizes, steps, element.itemsize):
        raise ProtocolError(
            f"{len(view)} bytes came for a {dtype} tensor of shape {str(sizes)[:200]} with "
            f"strides {str(steps)[:200]}"
        )
    if not len(view):
        return torch.empty(sizes, dtype=element)
    # As integers: not every type of float can be copied everywhere.
    units = _as_uint8(view, element.itemsize).view(_unit_of(element))
    data = units.as_strided(sizes, steps).contiguous()
    # A dimension of size 1 may keep any stride: make them those of a new tensor.
    data = data.as_strided((data.numel(),), (1,)).view(sizes)
    if element is torch.bool:
        return data != 0
    return data.view(element)


def _checked_shape(dtype: str, shape: Sequence[int]) -> tuple[int, ...]:
    if dtype not in NAMES:
        raise ProtocolError(f"dtype {dtype!r} is not known")
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
