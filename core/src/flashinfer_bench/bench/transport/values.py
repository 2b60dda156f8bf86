"""Tensors and Python scalars as records and blobs, and back."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.transport.messages import (
    BoolValue,
    FloatValue,
    IntValue,
    Place,
    TensorValue,
    Value,
)
from flashinfer_bench.errors import FibError, ProtocolError
from flashinfer_bench.tensors import (
    dtype_name,
    span_of,
    tensor_from_bytes,
    tensor_to_bytes,
    to_torch_dtype,
)

if TYPE_CHECKING:
    import torch


def describe(value: Any, budget: Optional[int] = None) -> tuple[Value, Optional[memoryview]]:
    """Return the record of a tensor or scalar, and the bytes to send after it.

    Parameters
    ----------
    value : torch.Tensor, bool, int or float
        Tensors may be on any device; those of the CPU are not copied.
    budget : int, optional
        Most bytes it may have; a larger tensor is described as omitted. Default: no limit.

    Returns
    -------
    record : Value
        What goes into the message.
    data : memoryview or None
        The blob; None for scalars and for omitted tensors.

    Raises
    ------
    TypeError
        If it is neither, or a tensor without plain bytes, such as a sparse one.
    OverflowError
        If it is an int of more than 64 bits.
    """
    if isinstance(value, bool):
        return BoolValue(value), None
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise OverflowError("an integer of more than 64 bits cannot be sent")
        return IntValue(int(value)), None
    if isinstance(value, float):
        return FloatValue(float.hex(value)), None
    if not _is_plain_type(value):
        # A subclass could compute its elements when they are read, outside of any timed region.
        raise TypeError(f"expected a tensor or a number, not {type(value).__name__}")
    nbytes = value.numel() * value.element_size()
    if budget is not None and nbytes > budget:
        omitted = TensorValue(dtype_name(value.dtype), list(value.shape), nbytes, omitted=True)
        return omitted, None
    dtype, shape, data = tensor_to_bytes(value)
    return TensorValue(dtype, list(shape), data.nbytes), data


@functools.cache
def plain_types() -> tuple[type, type]:
    """Return the types of tensors that hold their elements; remembered, as torch's can be changed.

    A process calls it before it loads a solution.
    """
    import torch

    return torch.Tensor, torch.nn.Parameter


def _is_plain_type(value: Any) -> bool:
    tensor, parameter = plain_types()
    kind = type(value)
    return kind is tensor or kind is parameter  # its metaclass may say that it equals them


def plain(value: Any) -> Any:
    """Return a tensor whose memory holds its elements as they are; anything else as it is.

    Conjugation and negation that torch has put off are done now: they are not in the memory.
    """
    if not _is_plain_type(value):
        return value
    return value.detach().resolve_conj().resolve_neg()


def announce(value: Any) -> tuple[Value, Optional[Place]]:
    """Return the record of a tensor or scalar without its elements, and where they are.

    Parameters
    ----------
    value : torch.Tensor, bool, int or float
        Tensors as `plain` returns them.

    Returns
    -------
    record : Value
        Scalars as they are, tensors as omitted.
    place : Place or None
        Where the elements of a tensor in the memory of this process lie.

    Raises
    ------
    TypeError, OverflowError
        As of `describe`.
    """
    record, _ = describe(value, -1)
    return record, _place_of(value) if isinstance(record, TensorValue) else None


def _place_of(tensor: torch.Tensor) -> Optional[Place]:
    import torch

    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return None
    strides = tensor.stride()
    span = span_of(tensor.shape, strides, tensor.element_size())
    return Place(tensor.data_ptr(), span, list(strides))


def rebuild(record: Value, data: Optional[memoryview]) -> Any:
    """Return the value that `record` describes.

    Parameters
    ----------
    record : Value
        As received; may come from an untrusted process.
    data : memoryview or None
        The blob of a tensor, shared with it where it is aligned.

    Returns
    -------
    torch.Tensor, bool, int or float
        A tensor that is omitted, or of which there is no blob, is on the device ``meta``: it has a
        shape and a type but no elements.

    Raises
    ------
    ProtocolError
        If the record makes no sense.
    """
    if isinstance(record, TensorValue):
        if record.omitted or data is None:
            return _without_data(record)
        return tensor_from_bytes(record.dtype, record.shape, data)
    if isinstance(record, FloatValue):
        return _float(record.text)
    return record.value


def _float(text: str) -> float:
    try:
        return float.fromhex(text)
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"{text!r} is not a number in hexadecimal notation") from error


def _without_data(record: TensorValue) -> torch.Tensor:
    import torch

    try:
        return torch.empty(record.shape, dtype=to_torch_dtype(record.dtype), device="meta")
    except (FibError, RuntimeError) as error:
        raise ProtocolError(f"{record.dtype} {record.shape} is not a tensor: {error}") from error


def buffer_of(nbytes: int) -> memoryview:
    """Allocate writable memory, aligned as torch aligns its own tensors.

    Parameters
    ----------
    nbytes : int
        Its size; no memory is touched yet.
    """
    import torch

    array: Any = torch.empty(nbytes, dtype=torch.uint8).numpy()
    return memoryview(array)
