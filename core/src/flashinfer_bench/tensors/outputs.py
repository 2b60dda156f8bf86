"""Outputs to be written into, filled so that an element nobody wrote stands out."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from flashinfer_bench.tensors.dtypes import dtype_name, is_float, to_torch_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from flashinfer_bench.data import Definition

# As the bytes of an integer of any width: far from every index, count or small number.
_PATTERN = 0x5B
_ALIGNMENT = 256  # bytes; at least that of every allocator


def allocate_outputs(
    definition: Definition, axes: Mapping[str, int], device: str = "cpu", *, shift: int = 0
) -> list[torch.Tensor]:
    """Allocate the outputs of a definition, poisoned.

    Parameters
    ----------
    definition : Definition
        What declares them.
    axes : mapping
        Value of every variable axis.
    device : str
        Where they live.
    shift : int
        Bytes by which their addresses are past a multiple of 256, in memory that is allocated with
        that much room; a multiple of the largest element. 0 leaves addresses to the allocator.

    Returns
    -------
    list of torch.Tensor
        In declaration order. A scalar output is a tensor without dimensions. What is not
        overwritten reads as NaN in floats, as a pattern of bytes 0x5B in integers and 4-bit
        floats, and as alternating values in bool.
    """
    shapes = definition.get_output_shapes(dict(axes))
    return [
        allocate_poisoned(shape or (), to_torch_dtype(spec.dtype), device, shift=shift)
        for shape, spec in zip(shapes, definition.outputs.values(), strict=True)
    ]


def allocate_poisoned(
    shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu", *, shift: int = 0
) -> torch.Tensor:
    """Allocate one tensor and poison it; `shift` as of `allocate_outputs`."""
    import torch

    if shift:
        tensor = _shifted(tuple(shape), dtype, device, shift)
    else:
        tensor = torch.empty(tuple(shape), dtype=dtype, device=device)
    poison(tensor)
    return tensor


def _shifted(shape: tuple[int, ...], dtype: torch.dtype, device: str, shift: int) -> torch.Tensor:
    import torch

    nbytes = prod(shape) * dtype.itemsize
    memory = torch.empty(nbytes + shift + _ALIGNMENT, dtype=torch.uint8, device=device)
    start = -memory.data_ptr() % _ALIGNMENT + shift
    return memory[start : start + nbytes].view(dtype).view(shape)


def poison(tensor: torch.Tensor) -> None:
    """Overwrite a contiguous tensor in place with values that no kernel would compute."""
    import torch

    name = dtype_name(tensor.dtype)
    flat = tensor.view(-1)
    if name == "bool":
        flat.zero_()
        flat[::2] = True
    elif _holds_nan(name):
        flat.fill_(float("nan"))
    else:
        flat.view(torch.uint8).fill_(_PATTERN)


def _holds_nan(name: str) -> bool:
    return (is_float(name) and name != "float4_e2m1") or name.startswith("complex")
