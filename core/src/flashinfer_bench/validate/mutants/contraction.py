"""Sums that end too early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.executors.base import CandidateError
from flashinfer_bench.validate.mutants.case import Mutation
from flashinfer_bench.validate.mutants.region import tail_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.data import Definition
    from flashinfer_bench.validate.mutants.case import Case


def truncated_contraction(case: Case) -> Iterator[Mutation]:
    """Leave out the end of an axis that is summed over: the inputs are 0 there.

    Such an axis is one that inputs have and not all outputs; outputs that have it stay right.
    """
    for axis in _summed_axes(case.definition):
        inputs = _without_tail(case, axis)
        if inputs is None:
            continue
        try:
            wrong = case.declared(case.reference(inputs))
        except CandidateError:  # it does not take such inputs
            continue
        outputs = case.right
        for index, spec in enumerate(case.definition.outputs.values()):
            if axis not in (spec.shape or ()):
                outputs[index] = wrong[index]
        yield Mutation(f"axis {axis}", outputs)


def _summed_axes(definition: Definition) -> list[str]:
    """Return the axes of floating-point inputs that some output does not have."""
    outputs = [spec.shape or () for spec in definition.outputs.values()]
    floats = [spec.shape or () for spec in definition.inputs.values() if spec.dtype.is_floating]
    names = dict.fromkeys(axis for shape in floats for axis in shape if axis in definition.axes)
    return [axis for axis in names if not all(axis in shape for shape in outputs)]


def _without_tail(case: Case, axis: str) -> list[Any] | None:
    """Return the inputs with 0 at the end of an axis; None if it is too short to be cut."""
    inputs = list(case.trial.inputs)
    cut = False
    for place, spec in enumerate(case.definition.inputs.values()):
        if not spec.dtype.is_floating or spec.shape is None or axis not in spec.shape:
            continue
        value = inputs[place].clone()
        dimension = spec.shape.index(axis)
        size = value.shape[dimension]
        if size > 1:
            length = tail_of(size)
            bits = _bits(value) if value.element_size() == 1 else value
            bits.narrow(dimension, size - length, length).zero_()
            inputs[place], cut = value, True
    return inputs if cut else None


def _bits(value: Any) -> Any:
    import torch

    return value.view(torch.uint8)
