"""Several datasets into one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Union

from flashinfer_bench.data import layout
from flashinfer_bench.data.blobs import resolve_blob
from flashinfer_bench.data.json_codec import save_json_file, save_jsonl_file, to_json
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import SafetensorsInput
from flashinfer_bench.errors import ConflictError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic import BaseModel

    from flashinfer_bench.data.solution import Solution
    from flashinfer_bench.data.trace import Trace

PathLike = Union[str, Path]


def merge_trace_sets(sets: Sequence[TraceSet]) -> TraceSet:
    """Merge datasets into a new one in memory.

    Equal records are kept once, in the order they are first met.

    Parameters
    ----------
    sets : sequence of TraceSet
        The datasets; they are not modified.

    Returns
    -------
    TraceSet
        The union, without a folder.

    Raises
    ------
    ConflictError
        If two sets hold different definitions, solutions or workloads under one name (uuid).
    """
    merged = TraceSet()
    solutions: dict[str, Solution] = {}
    for one in sets:
        for name, definition in one.definitions.items():
            known = merged.definitions.setdefault(name, definition)
            _require_equal("definition", name, known, definition)
        for solution in (solution for group in one.solutions.values() for solution in group):
            if solution.name in solutions:
                first = solutions[solution.name]
                _require_equal("solution", solution.name, first, solution)
                continue
            solutions[solution.name] = solution
            merged.solutions.setdefault(solution.definition, []).append(solution)
    merged.workloads = _merge_traces(one.workloads for one in sets)
    _require_one_workload_each(merged)
    merged.traces = _merge_traces(one.traces for one in sets)
    return merged


def _require_equal(kind: str, name: str, first: BaseModel, second: BaseModel) -> None:
    if first is second or first == second:
        return
    fields = [
        field
        for field in type(first).model_fields
        if getattr(first, field) != getattr(second, field)
    ]
    raise ConflictError(
        f"two datasets hold different {kind}s named '{name}'; they differ in {', '.join(fields)}",
        field=fields[0],
        hint=f"rename one of the two {kind}s",
    )


def _merge_traces(sources: Iterable[dict[str, list[Trace]]]) -> dict[str, list[Trace]]:
    merged: dict[str, dict[str, Trace]] = {}
    for groups in sources:
        for name, traces in groups.items():
            known = merged.setdefault(name, {})
            for trace in traces:
                known.setdefault(to_json(trace, indent=None), trace)
    return {name: list(known.values()) for name, known in merged.items()}


def _require_one_workload_each(merged: TraceSet) -> None:
    for traces in merged.workloads.values():
        known: dict[str, Trace] = {}
        for trace in traces:
            first = known.setdefault(trace.workload.uuid, trace)
            _require_equal("workload", trace.workload.uuid, first.workload, trace.workload)


def export_trace_set(
    trace_set: TraceSet, out_dir: PathLike, *, blob_roots: Sequence[PathLike] = ()
) -> Path:
    """Write a dataset to a new folder, with the tensor files that its workloads name.

    Parameters
    ----------
    trace_set : TraceSet
        What to write.
    out_dir : str or Path
        The folder; it must not exist or be empty.
    blob_roots : sequence of str or Path
        Folders in which tensor files are looked for, in this order, after the set's own. Files that
        are in none of them are left out.

    Returns
    -------
    Path
        `out_dir`.

    Raises
    ------
    StorageError
        If the folder is not empty, or writing fails.
    UnsafePathError
        If a workload names a file outside the dataset.
    """
    out = Path(out_dir)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StorageError(f"{out}: not an empty folder", hint="name a new folder")
    for definition in trace_set.definitions.values():
        save_json_file(definition, layout.definition_file(out, definition.op_type, definition.name))
    for name, solutions in trace_set.solutions.items():
        for solution in solutions:
            op_type = _op_type(trace_set, name)
            path = layout.solution_file(out, solution.author, op_type, name, solution.name)
            save_json_file(solution, path)
    for file_of, groups in (
        (layout.workloads_file, trace_set.workloads),
        (layout.traces_file, trace_set.traces),
    ):
        for name, traces in groups.items():
            save_jsonl_file(traces, file_of(out, _op_type(trace_set, name), name))
    _copy_blobs(trace_set, out, [Path(root) for root in blob_roots])
    return out


def _op_type(trace_set: TraceSet, name: str) -> str:
    definition = trace_set.definitions.get(name)
    return definition.op_type if definition is not None else "unknown"


def _copy_blobs(trace_set: TraceSet, out: Path, roots: list[Path]) -> None:
    roots = [trace_set.root, *roots] if trace_set.root is not None else roots
    for name in sorted(blob_paths(trace_set)):
        source = next(
            (found for root in roots if (found := resolve_blob(root, name)).is_file()), None
        )
        if source is None:
            continue
        target = resolve_blob(out, name)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        except OSError as error:
            raise StorageError(f"{target}: cannot copy {source}: {error}") from error


def blob_paths(trace_set: TraceSet) -> set[str]:
    """Return the tensor files that the workloads and traces of a dataset name."""
    groups = [*trace_set.workloads.values(), *trace_set.traces.values()]
    workloads = {id(trace.workload): trace.workload for group in groups for trace in group}
    inputs = (spec for workload in workloads.values() for spec in workload.inputs.values())
    return {spec.path for spec in inputs if isinstance(spec, SafetensorsInput)}
