"""Outputs to be written into, filled so that an element nobody wrote stands out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.tensors.dtypes import dtype_name, is_float, to_torch_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from flashinfer_bench.data import Definition

# As the bytes of an integer of any width: far from every index, count or small number.
_PATTERN = 0x5B


def allocate_outputs(
    definition: Definition, axes: Mapping[str, int], device: str = "cpu"
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

    Returns
    -------
    list of torch.Tensor
        In declaration order. A scalar output is a tensor without dimensions. What is not
        overwritten reads as NaN in floats, as a pattern of bytes 0x5B in integers and 4-bit
        floats, and as alternating values in bool.
    """
    shapes = definition.get_output_shapes(dict(axes))
    return [
        allocate_poisoned(shape or (), to_torch_dtype(spec.dtype), device)
        for shape, spec in zip(shapes, definition.outputs.values(), strict=True)
    ]


def allocate_poisoned(
    shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu"
) -> torch.Tensor:
    """Allocate one tensor and poison it."""
    import torch

    tensor = torch.empty(tuple(shape), dtype=dtype, device=device)
    poison(tensor)
    return tensor


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
