"""Checks of records: workloads and traces."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from flashinfer_bench.data import EvaluationStatus, ScalarInput, parse_constraint
from flashinfer_bench.data.tolerance import require_known_outputs
from flashinfer_bench.errors import DataError
from flashinfer_bench.validate.findings import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.data import Constraint, Definition, Trace, Workload
    from flashinfer_bench.validate.findings import Finding
    from flashinfer_bench.validate.records import Contents, Record

_Seen = tuple[str, str, str, Place]  # definition, uuid, content, where
_Task = tuple[str, str]  # definition, uuid

_TOLERANCE = 0.02
"""Difference between the recorded and the computed speed-up that rounding may explain."""


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
        # Old datasets keep workloads among the traces.
        place = Place("workloads", at.path, at.line)
        definition = self._definitions.get(trace.definition)
        if definition is None:
            message = f"there is no definition {trace.definition!r} in the dataset"
            yield place.error(message, "definition")
            return
        content = json.dumps(trace.workload.model_dump(mode="json"), sort_keys=True)
        self._seen.append((trace.definition, trace.workload.uuid, content, place))
        yield from _check_axes(definition, trace.workload, place)
        yield from _check_inputs(definition, trace.workload, place)
        try:
            outputs, tolerance = definition.outputs, trace.workload.tolerance
            require_known_outputs(tolerance, outputs, field="workload.tolerance")
        except DataError as error:
            yield place.refused(error)
        yield from self._check_constraints(definition, trace.workload, place)

    def facts(self) -> list[_Seen]:
        """Return the workloads of the file."""
        return self._seen

    @classmethod
    def combine(cls, facts: list[list[_Seen]], contents: Contents) -> Iterator[Finding]:
        """Tell of workloads that stand in two places."""
        first: dict[_Task, tuple[str, Place]] = {}
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
            try:
                if constraint.decidable(axes) and not constraint.evaluate(axes):
                    values = ", ".join(f"{axis}={axes[axis]}" for axis in sorted(constraint.names))
                    message = f"the constraint {constraint.text!r} does not hold for {values}"
                    yield place.error(message, "workload.axes")
            except DataError as error:
                yield place.warning(error.message, "workload.axes")


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
    for name in definition.inputs:
        if name not in workload.inputs:
            yield place.error("this input is missing", f"workload.inputs.{name}")
    for name, spec in workload.inputs.items():
        field = f"workload.inputs.{name}"
        declared = definition.inputs.get(name)
        if declared is None:
            names = ", ".join(definition.inputs)
            yield place.warning(f"the definition has no such input; it has {names}", field)
        elif isinstance(spec, ScalarInput) and declared.shape is not None:
            shape = ", ".join(declared.shape)
            yield place.error(f"a scalar is given for a tensor of shape [{shape}]", field)
        elif isinstance(spec, ScalarInput) and not declared.dtype.is_floating:
            whole = declared.dtype.is_integer and float(spec.value).is_integer()
            if not whole and spec.value not in (0, 1):
                message = f"{spec.value!r} is not a value of dtype {declared.dtype}"
                yield place.error(message, field)


class TraceCheck:
    """Finds traces of unknown definitions, solutions and workloads, and impossible numbers.

    A trace outlives what it speaks about: that its solution or workload is gone is a warning, one
    for each of them and not for each trace.
    """

    def __init__(self, contents: Contents) -> None:
        self._definitions = contents.definitions
        self._solutions = contents.solutions
        self._workloads: set[_Task] = set()
        self._runs: dict[_Task, Place] = {}  # the first of each
        self._orphans: dict[str, Place] = {}  # solutions that are gone; the first trace of each
        self._counts: Counter[str] = Counter()  # of traces by solutions that are gone

    def visit(self, record: Record) -> Iterator[Finding]:
        """Check one trace of a run, and remember workloads."""
        trace, place = record
        task = (trace.definition, trace.workload.uuid)
        if trace.solution is None:
            self._workloads.add(task)
            return
        self._runs.setdefault(task, place)
        if trace.definition not in self._definitions:
            message = f"there is no definition {trace.definition!r} in the dataset"
            yield place.error(message, "definition")
        known = self._solutions.get(trace.solution)
        if known is None:
            self._orphans.setdefault(trace.solution, place)
            self._counts[trace.solution] += 1
        elif known.definition != trace.definition:
            whose = f"{known.definition!r}, not of {trace.definition!r}"
            yield place.error(f"{trace.solution!r} is a solution of {whose}", "solution")
        yield from _check_numbers(trace, place)

    def facts(self) -> tuple[set[_Task], dict[_Task, Place], dict[str, Place], Counter[str]]:
        """Return the workloads of the file, those that runs name, and solutions that are gone."""
        return self._workloads, self._runs, self._orphans, self._counts

    @classmethod
    def combine(
        cls,
        facts: list[tuple[set[_Task], dict[_Task, Place], dict[str, Place], Counter[str]]],
        contents: Contents,
    ) -> Iterator[Finding]:
        """Tell of what is gone."""
        workloads: set[_Task] = set()
        runs: dict[_Task, Place] = {}
        orphans: dict[str, Place] = {}
        counts: Counter[str] = Counter()
        for known, run, gone, count in reversed(facts):  # of several places the first is told
            workloads |= known
            runs |= run
            orphans |= gone
            counts += count
        for name, place in orphans.items():
            several = f"this is one of {counts[name]} traces"
            traces = "this is the only trace" if counts[name] == 1 else several
            message = f"there is no solution {name!r} in the dataset; {traces} of it"
            yield place.warning(message, "solution")
        totals = Counter(definition for definition, _ in runs)
        missing: dict[str, list[tuple[Place, str]]] = {}
        for task, place in runs.items():
            if task not in workloads and task[0] in contents.definitions:
                missing.setdefault(task[0], []).append((place, task[1]))
        for definition, tasks in missing.items():
            place, first = min(tasks, key=lambda one: (one[0].path, one[0].line or 0))
            message = (
                f"{len(tasks)} of the {totals[definition]} workloads in the traces of "
                f"{definition!r} are not in the dataset; the first is {first}"
            )
            yield place.warning(message, "workload.uuid")


def _check_numbers(trace: Trace, place: Place) -> Iterator[Finding]:
    evaluation = trace.evaluation
    if evaluation is None or evaluation.status is not EvaluationStatus.PASSED:
        return
    times, errors = evaluation.performance, evaluation.correctness
    if times is not None and times.latency_ms <= 0.0:
        field = "evaluation.performance.latency_ms"
        yield place.error("a latency must be positive", field)
    elif times is not None:
        computed = times.reference_latency_ms / times.latency_ms
        recorded = times.speedup_factor
        if computed and abs(recorded - computed) > _TOLERANCE * max(computed, recorded):
            message = f"{recorded:g} is recorded, but the latencies give {computed:.4g}"
            yield place.warning(message, "evaluation.performance.speedup_factor")
    if errors is not None and errors.max_absolute_error != errors.max_absolute_error:
        message = "it passed with an error that is not a number"
        yield place.warning(message, "evaluation.correctness.max_absolute_error")
