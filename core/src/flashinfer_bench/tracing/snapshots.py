"""Copies of the inputs of a call, and when they may be taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.integration.capture import is_capturing

if TYPE_CHECKING:
    import torch


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy on the CPU, which shares nothing with `tensor`.

    Parameters
    ----------
    tensor : torch.Tensor
        Of any device and strides. On a GPU this waits for what its current stream has to do.

    Raises
    ------
    RuntimeError
        If its memory has been given back, as sharded training does with ``resize_(0)``: to read it
        would end the process.
    """
    import torch

    if _end_of(tensor) > tensor.untyped_storage().nbytes():
        raise RuntimeError("the memory of a tensor has been given back")
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _end_of(tensor: torch.Tensor) -> int:
    """Return the bytes from the beginning of its memory to the end of its last element."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * step for size, step in steps)
    return int((last + 1) * tensor.element_size())


def last_element(tensor: torch.Tensor) -> int:
    """Return the last element of a 1-D tensor, such as the total of an index pointer.

    Raises
    ------
    RuntimeError
        If that would wait for a device whose stream is being captured.
    """
    if tensor.device.type != "cpu" and is_capturing():
        raise RuntimeError("the stream is being captured")
    return int(tensor[-1].item())
