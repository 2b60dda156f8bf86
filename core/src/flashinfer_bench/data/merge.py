"""Several datasets into one."""

from __future__ import annotations

import json
import logging
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.index import StaleIndexError, TraceIndex
from flashinfer_bench.data.json_codec import digest_of
from flashinfer_bench.data.merged_lines import LineSource, MergedLines
from flashinfer_bench.data.merged_set import MergedRuns, MergedTraceSet
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.transfer.blob_plan import BlobPlan, BlobRoot
from flashinfer_bench.data.transfer.exporting import counts_of
from flashinfer_bench.data.transfer.folder import new_folder, write_items
from flashinfer_bench.data.transfer.items import blob_items, items_of, lines_of
from flashinfer_bench.data.workload import SafetensorsInput
from flashinfer_bench.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pydantic import BaseModel

    from flashinfer_bench.data.solution import Solution
    from flashinfer_bench.data.trace import Trace

_logger = logging.getLogger(__name__)
PathLike = Union[str, Path]
_SHOWN_FIELDS = 6
_HINTS = {
    "definition": "rename one of the two definitions, or bring them to one version",
    "solution": "rename one of the two solutions; 'fib report merge --rename-solutions' does it",
    "workload": "give one of the two workloads another uuid",
}


class _Origin(NamedTuple):
    """A record, and the dataset it is from."""

    record: BaseModel
    dataset: str


def merge_trace_sets(sets: Sequence[TraceSet], *, rename_solutions: bool = False) -> TraceSet:
    """Merge datasets into a new one in memory.

    Equal records are kept once, in the order they are first met.

    Parameters
    ----------
    sets : sequence of TraceSet
        The datasets; they are not modified.
    rename_solutions : bool
        What to do with a solution whose name another has already: give it, and its traces, a name
        that ends in a digest of its content (else it is a conflict).

    Returns
    -------
    TraceSet
        The union, without a folder. Paths of tensor files stay as they are.

    Raises
    ------
    ConflictError
        If two sets hold different definitions, solutions or workloads under one name (uuid).
    """
    labels = [str(one.root or f"dataset {number}") for number, one in enumerate(sets, 1)]
    merged = TraceSet(definitions=_merge_definitions(sets, labels))
    merged.solutions, renamed = _merge_solutions(sets, labels, rename_solutions)
    lazy = None if any(renamed) else _merge_indexes(sets, labels, merged)
    if lazy is not None:
        return lazy
    merged.workloads = _merge_traces(one.workloads for one in sets)
    merged.traces = _merge_traces(
        _follow(one.traces, names) for one, names in zip(sets, renamed, strict=True)
    )
    _require_one_workload_each([one.workloads for one in sets], labels)
    return merged


def _merge_indexes(
    sets: Sequence[TraceSet], labels: list[str], records: TraceSet
) -> Optional[TraceSet]:
    """Return the union of folders whose traces are not in memory; None if they have to be."""
    sources = [one.run_source for one in sets]
    indexes = [one for one in sources if isinstance(one, TraceIndex)]
    if not sources or len(indexes) < len(sources):
        return None
    try:
        workloads = [one.workload_traces() for one in indexes]
    except StaleIndexError:
        return None
    _require_one_workload_each(workloads, labels)
    merged = _merge_traces(workloads)
    return MergedTraceSet(
        records.definitions,
        records.solutions,
        merged,
        MergedRuns(indexes, merged),
        lambda: (
            _merge_traces(one.workloads for one in sets),
            _merge_traces(one.traces for one in sets),
        ),
    )


def merge_datasets(
    sets: Sequence[TraceSet], out: PathLike, *, rename_solutions: bool = False
) -> dict[str, int]:
    """Merge datasets into a new folder, with the tensor files that their workloads name.

    Parameters
    ----------
    sets : sequence of TraceSet
        The datasets, each with its folder.
    out : str or Path
        The folder; it must not exist or be empty. Nothing is there until all of it is.
    rename_solutions : bool
        As of `merge_trace_sets`.

    Returns
    -------
    dict of str to int
        How many definitions, solutions, workloads and traces were written.

    Raises
    ------
    ConflictError
        As of `merge_trace_sets`.
    UnsafePathError
        If a workload names a file outside its dataset.
    StorageError
        If the folder is not empty, or writing fails.
    """
    sources = [one.run_source for one in sets]
    indexes = [one for one in sources if isinstance(one, TraceIndex)]
    if len(indexes) == len(sources):
        try:
            found = _stream_datasets(sets, indexes, Path(out), rename_solutions)
        except StaleIndexError as error:
            _logger.debug("%s; all datasets are read into memory", error)
        else:
            if found is not None:
                return found
    plan = BlobPlan()
    rebased: list[TraceSet] = []
    for one, roots in zip(sets, _blob_roots(sets), strict=True):
        placed = plan.add(one, roots)
        placed.root = one.root  # its name in messages
        rebased.append(placed)
    merged = merge_trace_sets(rebased, rename_solutions=rename_solutions)
    with new_folder(Path(out)) as folder:
        write_items(folder, items_of(merged, plan.files))
    return counts_of(merged)


def _blob_roots(sets: Sequence[TraceSet]) -> list[list[BlobRoot]]:
    """Return for each dataset where its tensor files may be: there first, then in all others.

    A file that is missing in one dataset may be in another: clones without tensors are common.
    """
    roots = [BlobRoot(one.root, one.root) for one in sets if one.root is not None]
    own = [[root for root in roots if root.base == one.root] for one in sets]
    return [[*mine, *(root for root in roots if root not in mine)] for mine in own]


def _stream_datasets(
    sets: Sequence[TraceSet], indexes: Sequence[TraceIndex], out: Path, rename: bool
) -> Optional[dict[str, int]]:
    """Merge without having all runs in memory; None if tensor files are named by runs alone."""
    labels = [str(one.root) for one in sets]
    plan = BlobPlan()
    placers = [plan.placer(*pair) for pair in zip(sets, _blob_roots(sets), strict=True)]
    workloads: list[dict[str, list[Trace]]] = []
    for index, place in zip(indexes, placers, strict=True):
        found = index.workload_traces()
        if any(
            index.workloads_of(name) - set(index.workload_uuids(name)) for name in index.names()
        ):
            return None
        for trace in chain.from_iterable(found.values()):
            trace.workload = place(trace)  # they were made for this
        workloads.append(found)
    merged = TraceSet(definitions=_merge_definitions(sets, labels))
    merged.solutions, renamed = _merge_solutions(sets, labels, rename)
    merged.workloads = _merge_traces(workloads)
    _require_one_workload_each(workloads, labels)
    sources = zip(indexes, placers, renamed, strict=True)
    lines = MergedLines([LineSource(*source) for source in sources])
    with new_folder(out) as folder:
        write_items(folder, items_of(merged, {}))
        write_items(folder, lines_of(merged, lines.names(), lines.text))
        write_items(folder, blob_items(plan.files))  # the runs may have named more of them
    return {**counts_of(merged), "traces": lines.written}


def export_trace_set(
    trace_set: TraceSet, out_dir: PathLike, *, blob_roots: Sequence[PathLike] = ()
) -> Path:
    """Write a dataset to a new folder, with the tensor files that its workloads name.

    Parameters
    ----------
    trace_set : TraceSet
        What to write.
    out_dir : str or Path
        The folder; it must not exist or be empty. Nothing is there until all of it is.
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
    roots = [Path(root) for root in (trace_set.root, *blob_roots) if root is not None]
    plan = BlobPlan()
    rebased = plan.add(trace_set, [BlobRoot(root, root) for root in roots])
    with new_folder(out) as folder:
        write_items(folder, items_of(rebased, plan.files))
    return out


def blob_paths(trace_set: TraceSet) -> set[str]:
    """Return the tensor files that the workloads and traces of a dataset name."""
    groups = [*trace_set.workloads.values(), *trace_set.traces.values()]
    workloads = {id(trace.workload): trace.workload for group in groups for trace in group}
    inputs = (spec for workload in workloads.values() for spec in workload.inputs.values())
    return {spec.path for spec in inputs if isinstance(spec, SafetensorsInput)}


def _merge_definitions(sets: Sequence[TraceSet], labels: list[str]) -> dict[str, Definition]:
    merged: dict[str, Definition] = {}
    first: dict[str, _Origin] = {}
    for one, label in zip(sets, labels, strict=True):
        for name, definition in one.definitions.items():
            merged.setdefault(name, definition)
            origin = _Origin(definition, label)
            _require_equal("definition", name, first.setdefault(name, origin), origin)
    return merged


def _merge_solutions(
    sets: Sequence[TraceSet], labels: list[str], rename: bool
) -> tuple[dict[str, list[Solution]], list[dict[str, str]]]:
    """Return all solutions by definition and, for each dataset, new names by old ones."""
    merged: dict[str, list[Solution]] = {}
    first: dict[str, _Origin] = {}
    renamed: list[dict[str, str]] = []
    for one, label in zip(sets, labels, strict=True):
        names: dict[str, str] = {}
        for solution in (solution for group in one.solutions.values() for solution in group):
            kept = solution
            known = first.get(kept.name)
            if rename and known is not None and not _equal(known.record, kept):
                kept = kept.model_copy(update={"name": f"{kept.name}_{digest_of(kept).hex()[:8]}"})
                names[solution.name] = kept.name
            if kept.name not in first:
                merged.setdefault(kept.definition, []).append(kept)
            origin = _Origin(kept, label)
            _require_equal("solution", kept.name, first.setdefault(kept.name, origin), origin)
        renamed.append(names)
    return merged, renamed


def _follow(groups: dict[str, list[Trace]], names: dict[str, str]) -> dict[str, list[Trace]]:
    """Return traces with the new names of their solutions."""
    if not names:
        return groups

    def follow(trace: Trace) -> Trace:
        name = names.get(trace.solution or "")
        return trace if name is None else trace.model_copy(update={"solution": name})

    return {key: [follow(trace) for trace in traces] for key, traces in groups.items()}


def _merge_traces(sources: Iterable[dict[str, list[Trace]]]) -> dict[str, list[Trace]]:
    merged: dict[str, list[Trace]] = {}
    seen: set[bytes] = set()
    for groups in sources:
        for name, traces in groups.items():
            kept = merged.setdefault(name, [])
            for trace in traces:
                digest = digest_of(trace)
                if digest not in seen:
                    seen.add(digest)
                    kept.append(trace)
    return merged


def _require_one_workload_each(
    sources: Sequence[dict[str, list[Trace]]], labels: list[str]
) -> None:
    first: dict[tuple[str, str], _Origin] = {}
    for workloads, label in zip(sources, labels, strict=True):
        for name, traces in workloads.items():
            for trace in traces:
                uuid = trace.workload.uuid
                origin = _Origin(trace.workload, label)
                _require_equal("workload", uuid, first.setdefault((name, uuid), origin), origin)


def _require_equal(kind: str, name: str, first: _Origin, second: _Origin) -> None:
    if _equal(first.record, second.record):
        return
    fields = _differing_fields(first.record, second.record)
    shown = ", ".join(fields[:_SHOWN_FIELDS])
    more = f" and {len(fields) - _SHOWN_FIELDS} more" if len(fields) > _SHOWN_FIELDS else ""
    places = f"{first.dataset} and {second.dataset}"
    where = f"within {first.dataset}" if first.dataset == second.dataset else f"in {places}"
    raise ConflictError(
        f"two datasets hold different {kind}s named '{name}'; "
        f"they differ in {shown}{more} ({where})",
        field=fields[0],
        hint=_HINTS[kind],
    )


def _equal(first: BaseModel, second: BaseModel) -> bool:
    # As text: to Python 1 equals 1.0 and true, and NaN not even itself.
    return first is second or _canonical(first) == _canonical(second)


def _canonical(record: BaseModel) -> str:
    plain = record.model_dump(mode="json", exclude_none=True)
    if isinstance(record, Definition):  # the order of these is that of the arguments
        plain["order"] = [list(record.inputs), list(record.outputs)]
    return json.dumps(plain, sort_keys=True)


def _differing_fields(first: BaseModel, second: BaseModel) -> list[str]:
    one, other = (each.model_dump(mode="json", exclude_none=True) for each in (first, second))
    return list(_differences(one, other)) or ["the order of inputs or outputs"]


def _differences(first: Any, second: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted paths of what differs between two documents."""
    both: Optional[list[tuple[str, Any, Any]]] = None
    if isinstance(first, dict) and isinstance(second, dict):
        keys = list(dict.fromkeys([*first, *second]))
        both = [(key, first.get(key), second.get(key)) for key in keys]
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        pairs = zip(first, second, strict=True)
        both = [(str(index), one, other) for index, (one, other) in enumerate(pairs)]
    if both is None:
        if json.dumps(first, sort_keys=True) != json.dumps(second, sort_keys=True):
            yield path
        return
    for key, one, other in both:
        yield from _differences(one, other, f"{path}.{key}" if path else key)
