"""Workloads must give their definition all that it needs."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING

from flashinfer_bench.data import ScalarInput, parse_constraint
from flashinfer_bench.data.tolerance import require_known_outputs
from flashinfer_bench.errors import DataError
from flashinfer_bench.validate.findings import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flashinfer_bench.data import Constraint, Definition, InputSpec, TensorSpec, Workload
    from flashinfer_bench.validate.findings import Finding
    from flashinfer_bench.validate.records import Contents, Record


NAME = "workloads"

_Seen = tuple[str, str, str, Place]  # definition, uuid, content, where


class WorkloadCheck:
    """Finds unknown definitions, wrong axes and inputs, broken constraints, and duplicates."""

    def __init__(self, contents: Contents) -> None:
        self._definitions = contents.definitions
        self._constraints: dict[str, list[Constraint]] = {}
        self._seen: list[_Seen] = []

    def visit(self, record: Record) -> Iterator[Finding]:
        """Check one workload; traces of runs are not looked at."""
        trace, at = record
        if not trace.is_workload_trace():
            return
        place = Place(NAME, at.path, at.line)  # old datasets keep workloads among the traces
        definition = self._definitions.get(trace.definition)
        if definition is None:
            message = f"there is no definition {trace.definition!r} in the dataset"
            yield place.error(message, "definition")
            return
        content = json.dumps(trace.workload.model_dump(mode="json"), sort_keys=True)
        self._seen.append((trace.definition, trace.workload.uuid, content, place))
        yield from _check_axes(definition, trace.workload, place)
        yield from _check_inputs(definition, trace.workload, place)
        yield from _check_tolerance(definition, trace.workload, place)
        yield from self._check_constraints(definition, trace.workload, place)

    def facts(self) -> list[_Seen]:
        """Return the workloads of the file."""
        return self._seen

    @classmethod
    def combine(cls, facts: list[list[_Seen]], contents: Contents) -> Iterator[Finding]:
        """Tell of workloads that stand in two places."""
        first: dict[tuple[str, str], tuple[str, Place]] = {}
        for name, uuid, content, place in chain.from_iterable(facts):
            known, where = first.setdefault((name, uuid), (content, place))
            if where is place:
                continue
            at = f"{where.path}:{where.line}" if where.line is not None else str(where.path)
            if known == content:
                yield place.warning(f"the same workload stands at {at}", "workload.uuid")
            else:
                yield place.error(f"another workload at {at} has this uuid", "workload.uuid")

    def _check_constraints(
        self, definition: Definition, workload: Workload, place: Place
    ) -> Iterator[Finding]:
        if definition.name not in self._constraints:
            parsed = [parse_constraint(text) for text in definition.constraints]
            self._constraints[definition.name] = parsed
        axes = {**workload.axes, **definition.const_axes}
        for constraint in self._constraints[definition.name]:
            if not constraint.decidable(axes):
                continue
            try:
                holds = constraint.evaluate(axes)
            except DataError as error:
                yield place.warning(error.message, "workload.axes")
                continue
            if not holds:
                values = ", ".join(f"{axis}={axes[axis]}" for axis in sorted(constraint.names))
                message = f"the constraint {constraint.text!r} does not hold for {values}"
                yield place.error(message, "workload.axes")


def _check_axes(definition: Definition, workload: Workload, place: Place) -> Iterator[Finding]:
    const = definition.const_axes
    for axis in definition.var_axes:
        if axis not in workload.axes:
            yield place.error("this variable axis has no value", f"workload.axes.{axis}")
    for axis, size in workload.axes.items():
        field = f"workload.axes.{axis}"
        if axis not in definition.axes:
            yield place.warning(f"{definition.name!r} has no such axis", field)
        elif axis in const and const[axis] != size:
            yield place.error(f"the definition fixes this axis at {const[axis]}, not {size}", field)
        elif size == 0:
            yield place.warning("an axis of size 0 makes its tensors empty", field)


def _check_inputs(definition: Definition, workload: Workload, place: Place) -> Iterator[Finding]:
    yield from _check_names(definition.inputs, workload.inputs, place)
    for name, spec in workload.inputs.items():
        declared = definition.inputs.get(name)
        if declared is not None and isinstance(spec, ScalarInput):
            yield from _check_scalar(declared, spec, f"workload.inputs.{name}", place)


def _check_tolerance(definition: Definition, workload: Workload, place: Place) -> Iterator[Finding]:
    try:
        require_known_outputs(workload.tolerance, definition.outputs, field="workload.tolerance")
    except DataError as error:
        yield place.refused(error)


def _check_names(
    declared: Mapping[str, TensorSpec], given: Mapping[str, InputSpec], place: Place
) -> Iterator[Finding]:
    for name in declared:
        if name not in given:
            yield place.error("this input is missing", f"workload.inputs.{name}")
    for name in given:
        if name not in declared:
            names = ", ".join(declared)
            message = f"the definition has no such input; it has {names}"
            yield place.warning(message, f"workload.inputs.{name}")


def _check_scalar(
    declared: TensorSpec, spec: ScalarInput, field: str, place: Place
) -> Iterator[Finding]:
    if declared.shape is not None:
        shape = ", ".join(declared.shape)
        yield place.error(f"a scalar is given for a tensor of shape [{shape}]", field)
    elif not _fits(spec.value, declared):
        yield place.error(f"{spec.value!r} is not a value of dtype {declared.dtype}", field)


def _fits(value: float, declared: TensorSpec) -> bool:
    if declared.dtype.is_floating:
        return True
    if declared.dtype.is_integer:
        return float(value).is_integer()
    return value in (0, 1)
