"""The arguments of a definition's calls, and how calls are looked up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Optional

from flashinfer_bench.apply.keys import AxesOnlyKeyBuilder
from flashinfer_bench.routing.binding import compile_source
from flashinfer_bench.tensors.dtypes import Operand as Operand
from flashinfer_bench.tensors.dtypes import first_places, operands_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.apply.keys import ApplyKey, ApplyKeyBuilder
    from flashinfer_bench.data import Definition


@dataclass(frozen=True)
class Layout:
    """Inputs and outputs of a definition, in declaration order.

    Attributes
    ----------
    mutated : frozenset of int
        Positions of the inputs that the computation writes to.
    """

    definition: Definition
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    mutated: frozenset[int]

    @classmethod
    def of(cls, definition: Definition) -> Layout:
        """Compute the layout of a definition.

        Raises
        ------
        CapabilityError
            If torch is missing, or too old for one of the dtypes.
        """
        constants = definition.const_axes
        inputs = operands_of(definition.inputs, constants)
        written = {getattr(spec, "param", None) for spec in definition.outputs.values()}
        mutated = frozenset(
            index
            for index, operand in enumerate(inputs)
            if operand.shape is not None and operand.name in written
        )
        return cls(definition, inputs, operands_of(definition.outputs, constants), mutated)

    @property
    def name(self) -> str:
        """The definition's."""
        return self.definition.name

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        """Positions of the tensor inputs."""
        return tuple(i for i, each in enumerate(self.inputs) if each.shape is not None)

    @cached_property
    def places(self) -> tuple[tuple[str, int, int], ...]:
        """First occurrence of each variable axis: (axis, position of the input, dimension)."""
        return tuple((axis, *place) for axis, place in first_places(self.inputs).items())

    @cached_property
    def allocatable(self) -> bool:
        """Whether the shape of each output follows from those of the inputs."""
        known = {axis for axis, _, _ in self.places}
        sizes = [size for operand in self.outputs for size in operand.shape or ()]
        return bool(self.tensors) and known.issuperset(s for s in sizes if isinstance(s, str))

    def sizes(self, args: Sequence[Any]) -> dict[str, int]:
        """Return the size of each variable axis that an input has."""
        return {axis: args[position].shape[dim] for axis, position, dim in self.places}

    def tensors_of(self, args: Sequence[Any]) -> list[Any]:
        """Return the tensors of a call, inputs before outputs, including scalar outputs."""
        return [args[index] for index in self.tensors] + list(args[len(self.inputs) :])

    def wrong_count(self, given: int) -> NoReturn:
        """Raise if the number of arguments fits neither convention."""
        inputs, outputs = len(self.inputs), len(self.outputs)
        raise ValueError(
            f"{self.name!r} got {given} arguments; a value-returning call takes {inputs}, "
            f"a destination-passing call {inputs + outputs}"
        )


class Keying:
    """How the calls of a definition are looked up, in a form that is fast to compute.

    Parameters
    ----------
    layout : Layout
        Layout of the definition.
    builder : ApplyKeyBuilder, optional
        Makes the keys of the table. None if one target serves all calls.

    Attributes
    ----------
    expression : str
        Python expression for the look-up value of a call, with ``a`` for the arguments and ``a0``,
        ``a1``, … for each of them: the size of the only variable axis, or a tuple of sizes,
        followed by any features; or the key itself. `namespace` holds other names in it.
    sizes_decide : bool
        Whether calls with tensors of the same shapes always have the same key.
    reads_data : bool
        Whether making a key waits for the device.
    of : callable
        Evaluates `expression` for given arguments.
    """

    def __init__(self, layout: Layout, builder: Optional[ApplyKeyBuilder]) -> None:
        self.builder = builder
        self.reads_data = builder is not None and builder.reads_data
        self.sizes_decide = builder is None or builder.axes_only
        self.namespace: dict[str, Any] = {}
        if builder is not None:
            self.namespace = {"features": builder.features, "build": builder.build_from_args}
        sizes = [f"a{position}.shape[{dim}]" for _, position, dim in layout.places]
        kind = type(builder)
        if self.sizes_decide:
            self.expression = sizes[0] if len(sizes) == 1 else f"({', '.join(sizes)})"
        # Such a builder makes keys from axes and features; others may do anything.
        elif (
            issubclass(kind, AxesOnlyKeyBuilder)
            and kind.build_from_args is AxesOnlyKeyBuilder.build_from_args
            and kind.axes_of is AxesOnlyKeyBuilder.axes_of
        ):
            self.expression = f"({', '.join([*sizes, 'features(a)'])},)"
        else:
            self.expression = "build(a)"
        names = "".join(f"a{index}, " for index in range(len(layout.inputs)))
        unpack = f"    {names}= a[:{len(layout.inputs)}]\n" if names else ""
        source = f"def look_up_by(a):\n{unpack}    return {self.expression}\n"
        self.of: Callable[[Sequence[Any]], Any] = compile_source(
            source, "look_up_by", self.namespace, f"key of {layout.name!r}"
        )

    def key(self, args: Sequence[Any]) -> Optional[ApplyKey]:
        """Return the key in the form used by tables."""
        return None if self.builder is None else self.builder.build_from_args(args)
