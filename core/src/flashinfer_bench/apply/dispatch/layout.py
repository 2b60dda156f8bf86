"""What a definition says about the arguments of a call, worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.data.shapes import is_literal
from flashinfer_bench.tensors.dtypes import to_python_type, to_torch_dtype

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from flashinfer_bench.data import Definition
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
    dtype: Any
    scalar: type


@dataclass(frozen=True)
class Layout:
    """Inputs and outputs of a definition.

    Parameters
    ----------
    name : str
        The definition.
    inputs, outputs : tuple of Operand
        In declaration order.
    mutated : frozenset of int
        Inputs, by position, that the computation writes to.
    """

    name: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    mutated: frozenset[int] = frozenset()

    @classmethod
    def of(cls, definition: Definition, mutates: Collection[str] = ()) -> Layout:
        """Work out the layout of a definition.

        Parameters
        ----------
        definition : Definition
            The definition.
        mutates : collection of str
            Names of inputs that the computation writes to, besides those that the definition
            declares.

        Raises
        ------
        CapabilityError
            If torch is missing, or too old for one of the dtypes.
        """
        constants = definition.const_axes
        inputs = _operands(definition.inputs, constants)
        declared = {getattr(spec, "param", None) for spec in definition.outputs.values()}
        mutated = frozenset(
            index
            for index, operand in enumerate(inputs)
            if operand.shape is not None and operand.name in {*declared, *mutates}
        )
        return cls(definition.name, inputs, _operands(definition.outputs, constants), mutated)

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        """Positions of the inputs that are tensors."""
        return tuple(i for i, each in enumerate(self.inputs) if each.shape is not None)

    @cached_property
    def places(self) -> tuple[tuple[str, int, int], ...]:
        """Where each variable axis is first seen: (axis, position of the input, dimension)."""
        found: dict[str, tuple[str, int, int]] = {}
        for position, operand in enumerate(self.inputs):
            for dimension, size in enumerate(operand.shape or ()):
                if isinstance(size, str):
                    found.setdefault(size, (size, position, dimension))
        return tuple(found.values())

    @cached_property
    def allocatable(self) -> bool:
        """Whether the shape of each output follows from those of the inputs."""
        known = {axis for axis, _, _ in self.places}
        return bool(self.tensors) and all(
            size in known
            for operand in self.outputs
            for size in operand.shape or ()
            if isinstance(size, str)
        )

    def sizes(self, args: Sequence[Any]) -> dict[str, int]:
        """Return the size of each variable axis that the inputs show."""
        return {axis: args[position].shape[dim] for axis, position, dim in self.places}


def _operands(specs: Mapping[str, TensorSpec], constants: Mapping[str, int]) -> tuple[Operand, ...]:
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
