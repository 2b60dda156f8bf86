"""Inputs and outputs of a definition as calls of it have them: sizes and element types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional, Union

from flashinfer_bench.data.definition import is_literal
from flashinfer_bench.tensors.dtypes import to_python_type, to_torch_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from flashinfer_bench.data.definition import TensorSpec

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
        A size for each constant axis, a name for each variable one; None for a scalar.
    dtype : torch.dtype
        Element type.
    scalar : type
        What a scalar of this type is in Python.
    """

    name: str
    shape: Optional[tuple[Size, ...]]
    dtype: torch.dtype
    scalar: type


def operands_of(
    specs: Mapping[str, TensorSpec], constants: Mapping[str, int]
) -> tuple[Operand, ...]:
    """Return inputs or outputs in the order of their declaration.

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
    """Return where each variable axis is first seen: position of the operand, and dimension."""
    found: dict[str, tuple[int, int]] = {}
    for position, operand in enumerate(operands):
        for dimension, size in enumerate(operand.shape or ()):
            if isinstance(size, str):
                found.setdefault(size, (position, dimension))
    return found
