"""Further checks of records: axes, inputs, constraints, entry points and figures.

Findings have the name of core's check of their layer.
"""

from __future__ import annotations

import math
import symtable
from collections import Counter, defaultdict
from difflib import get_close_matches
from typing import TYPE_CHECKING

from flashinfer_bench.data import ScalarInput, SupportedLanguages, layout, parse_constraint
from flashinfer_bench.data.constraints import parse_python
from flashinfer_bench.data.tolerance import require_known_outputs
from flashinfer_bench.errors import DataError
from flashinfer_bench.plugins import default_catalog
from flashinfer_bench.validate.records import RecordCheck

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flashinfer_bench.data import Constraint, Definition, Solution, Workload
    from flashinfer_bench.validate.records import Contents, Finding, Place, Record


def check_axes(contents: Contents) -> Iterator[Finding]:
    """Find misplaced definitions, unused axes, and axes that no input determines."""
    for definition, place in contents.definition_files:
        folder = place.path.parts[1:-1]
        kind = definition.op_type
        if folder and folder[0] not in (kind, layout.safe_segment(kind)):
            message = f"op_type is {kind!r}, but the folder is {folder[0]!r}"
            yield place.warning(message, "op_type")
        yield from _check_own_axes(definition, place)
        if not definition.outputs:
            yield place.error("the definition has no outputs", "outputs")


def _check_own_axes(definition: Definition, place: Place) -> Iterator[Finding]:
    shown, used = (
        {axis for tensor in tensors.values() for axis in tensor.shape or ()}
        for tensors in (definition.inputs, {**definition.inputs, **definition.outputs})
    )
    if not definition.axes:
        yield place.warning("the definition has no axes", "axes")
    # Unused constants are fine: they document parameters such as top_k.
    for axis in definition.var_axes:
        if axis not in used:
            yield place.warning("no input or output has this axis", f"axes.{axis}")
        elif axis not in shown:
            # Runs get its value from the workload, but callers of a kernel have only inputs.
            message = "no input has this variable axis, so callers cannot tell its size"
            yield place.warning(message, f"axes.{axis}")
    for axis, size in definition.const_axes.items():
        if size == 0:
            yield place.warning("size 0: tensors with this axis are empty", f"axes.{axis}")


# -------------------------------------------------------------------------------- solutions


def _visit_solution(solution: Solution, place: Place) -> Iterator[Finding]:
    """Check the entry file of one solution.

    A solution that does not build is a valid record, which gets the status COMPILE_ERROR;
    therefore findings are warnings at most.
    """
    yield from _check_language(solution.spec.language, place)
    entry = solution.get_entry_source()
    if solution.requires_build() or entry is None:
        return
    field = f"sources.{solution.sources.index(entry)}.content"
    try:
        parse_python(entry.content)
    except DataError as error:
        line = f", line {error.line}," if error.line is not None else ""
        yield place.warning(f"{entry.path}{line} is not valid Python: {error.message}", field)
        return
    symbol = solution.get_entry_symbol()
    if not _binds(entry.content, symbol):
        message = f"{entry.path} defines no {symbol!r} at its top level"
        yield place.warning(message, "spec.entry_point")


_MEANT = {"c++": "cpp", "cu": "cuda", "cuda_cpp": "cuda", "pytorch": "python", "py": "python"}


def _check_language(language: str, place: Place) -> Iterator[Finding]:
    """Find unknown languages; a language may belong to a plugin that is not installed."""
    builders = [each.spec for each in default_catalog().builders]
    known = {name for spec in builders for name, _ in spec.handles}.union(
        map(str, SupportedLanguages)
    )
    if language in known:
        return
    told = f"unknown language {language!r}"
    near = [_MEANT[language]] if language in _MEANT else get_close_matches(language, known, 1, 0.8)
    if near:
        yield place.warning(f"{told}: write {near[0]!r}", "spec.language")
    else:
        yield place.note(f"{told}: no installed plugin builds it", "spec.language")


def _binds(source: str, name: str) -> bool:
    """Return whether statements outside functions and classes may bind a name."""
    try:
        symbol = symtable.symtable(source, "<source>", "exec").lookup(name)
    except KeyError:
        return False
    except (SyntaxError, RecursionError):  # it can be parsed, but not compiled
        return True
    return symbol.is_assigned() or symbol.is_imported()


ENTRY_POINTS = RecordCheck(solution=_visit_solution)

# -------------------------------------------------------------------------- workloads and traces

_ROUNDING = 0.02
"""Largest difference between recorded and computed speed-up that rounding explains."""


def _visit_workload(record: Record, contents: Contents) -> Iterator[Finding]:
    """Find wrong axes and inputs, and broken constraints."""
    trace, at = record
    definition, workload = contents.definitions.get(trace.definition), trace.workload
    if definition is None or not trace.is_workload_trace():
        return
    place = at._replace(check="workloads")  # old datasets keep workloads among the traces
    yield from _check_axes(definition, workload, place)
    yield from _check_inputs(definition, workload, place)
    try:
        require_known_outputs(workload.tolerance, definition.outputs, field="workload.tolerance")
    except DataError as error:
        yield place.refused(error)
    axes = {**workload.axes, **definition.const_axes}
    for constraint in map(parse_constraint, definition.constraints):
        try:
            if message := broken(constraint, axes):
                yield place.error(message, "workload.axes")
        except DataError as error:
            yield place.warning(error.message, "workload.axes")


def broken(constraint: Constraint, axes: Mapping[str, int]) -> str:
    """Return a message if a constraint is violated; empty if it holds or needs other values."""
    if not constraint.decidable(axes) or constraint.evaluate(axes):
        return ""
    values = ", ".join(f"{axis}={axes[axis]}" for axis in sorted(constraint.names))
    return f"the constraint {constraint.text!r} is violated by {values}"


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
            yield place.warning("size 0: tensors with this axis are empty", field)


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
            yield place.error(f"the input is a tensor of shape [{shape}], not a scalar", field)
        elif isinstance(spec, ScalarInput) and not declared.dtype.is_floating:
            whole = declared.dtype.is_integer and float(spec.value).is_integer()
            if not whole and spec.value not in (0, 1):
                message = f"{spec.value!r} is not a value of dtype {declared.dtype}"
                yield place.error(message, field)


INPUTS = RecordCheck(_visit_workload)


def _visit_trace(record: Record, contents: Contents) -> Iterator[Finding]:
    """Find impossible values."""
    (trace, place), evaluation = record, record.trace.evaluation
    if evaluation is None or not trace.is_successful():
        return
    times, errors = evaluation.performance, evaluation.correctness
    if times is not None and times.latency_ms <= 0.0:
        field = "evaluation.performance.latency_ms"
        yield place.error("a latency must be positive", field)
    elif times is not None:
        computed = times.reference_latency_ms / times.latency_ms
        recorded = times.speedup_factor
        if computed and abs(recorded - computed) > _ROUNDING * max(computed, recorded):
            message = f"the recorded speed-up is {recorded:g}, but latencies give {computed:.4g}"
            yield place.warning(message, "evaluation.performance.speedup_factor")
    if errors is not None and math.isnan(errors.max_absolute_error):
        message = "the status is PASSED, but an error is NaN"
        yield place.warning(message, "evaluation.correctness.max_absolute_error")


def _find_gone(contents: Contents) -> Iterator[Finding]:
    """Find missing solutions and workloads of traces.

    Traces may outlive them, so there is one warning for each solution or definition, not for each
    trace.
    """
    workloads = {head[:2] for head, _ in contents.traces if head.solution is None}
    runs: dict[tuple[str, str], Place] = {}  # the first of each
    gone: dict[str, list[Place]] = defaultdict(list)
    for head, place in contents.traces:
        if head.solution is None:
            continue
        runs.setdefault(head[:2], place)
        if head.solution not in contents.solutions:
            gone[head.solution].append(place)
    for name, places in gone.items():
        yield places[0].warning(no_solution(name, len(places)), "solution")
    totals = Counter(definition for definition, _ in runs)
    missing: dict[str, list[tuple[str, Place]]] = defaultdict(list)
    for (definition, uuid), place in runs.items():
        if (definition, uuid) not in workloads and definition in contents.definitions:
            missing[definition].append((uuid, place))
    for definition, tasks in missing.items():
        uuid, place = tasks[0]
        message = (
            f"{len(tasks)} of the {totals[definition]} workloads in the traces of "
            f"{definition!r} are not in the dataset; the first is {uuid}"
        )
        yield place.warning(message, "workload.uuid")


def no_solution(name: str, traces: int) -> str:
    """Return the message for traces of a missing solution."""
    several = f"this is one of {traces} traces"
    only = "this is the only trace" if traces == 1 else several
    return f"the dataset has no solution {name!r}; {only} of it"


FIGURES = RecordCheck(_visit_trace, _find_gone)
