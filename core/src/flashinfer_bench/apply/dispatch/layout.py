"""What a definition says about the arguments of a call, and how calls are looked up."""

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
    """Inputs and outputs of a definition, in the order of their declaration.

    Attributes
    ----------
    mutated : frozenset of int
        Inputs, by position, that the computation writes to.
    """

    definition: Definition
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    mutated: frozenset[int]

    @classmethod
    def of(cls, definition: Definition) -> Layout:
        """Work out the layout of a definition.

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
        sizes = [size for operand in self.outputs for size in operand.shape or ()]
        return bool(self.tensors) and known.issuperset(s for s in sizes if isinstance(s, str))

    def sizes(self, args: Sequence[Any]) -> dict[str, int]:
        """Return the size of each variable axis that the inputs show."""
        return {axis: args[position].shape[dim] for axis, position, dim in self.places}

    def tensors_of(self, args: Sequence[Any]) -> list[Any]:
        """Return the tensors of a call, outputs behind inputs: also those of scalar outputs."""
        return [args[index] for index in self.tensors] + list(args[len(self.inputs) :])

    def wrong_count(self, given: int) -> NoReturn:
        """Refuse a call with another number of arguments than either convention has."""
        inputs, outputs = len(self.inputs), len(self.outputs)
        raise ValueError(
            f"{self.name!r} got {given} arguments; a value-returning call takes {inputs}, "
            f"a destination-passing call {inputs + outputs}"
        )


class Keying:
    """How the calls of a definition are looked up, in a form that is quick to make.

    Parameters
    ----------
    layout : Layout
        Of the definition.
    builder : ApplyKeyBuilder, optional
        Makes the keys of the table. None if one target serves all calls.

    Attributes
    ----------
    expression : str
        Python for what a call is looked up by, with ``a`` the arguments and ``a0``, ``a1``, … each
        of them: the size of the only variable axis, a tuple of several; with features behind them;
        or the key itself. `namespace` has what else stands in it.
    sizes_decide : bool
        Whether all calls with tensors of the same shapes have the same key.
    reads_data : bool
        Whether making a key waits for the device.
    of : callable
        Returns what `expression` says, of the arguments.
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
        # Of such a builder the key follows from axes and features; another may do as it likes.
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
        """Return the key in the form that tables have."""
        return None if self.builder is None else self.builder.build_from_args(args)
