"""What a definition says about the arguments of a call, worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flashinfer_bench.tensors.operands import Operand as Operand
from flashinfer_bench.tensors.operands import first_places, operands_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from flashinfer_bench.data import Definition


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
        inputs = operands_of(definition.inputs, constants)
        declared = {getattr(spec, "param", None) for spec in definition.outputs.values()}
        mutated = frozenset(
            index
            for index, operand in enumerate(inputs)
            if operand.shape is not None and operand.name in {*declared, *mutates}
        )
        return cls(definition.name, inputs, operands_of(definition.outputs, constants), mutated)

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        """Positions of the inputs that are tensors."""
        return tuple(i for i, each in enumerate(self.inputs) if each.shape is not None)

    @cached_property
    def places(self) -> tuple[tuple[str, int, int], ...]:
        """Where each variable axis is first seen: (axis, position of the input, dimension)."""
        return tuple((axis, *place) for axis, place in first_places(self.inputs).items())

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
