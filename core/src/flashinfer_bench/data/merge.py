"""Several datasets into one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from flashinfer_bench.data.blob_plan import BlobPlan, BlobRoot
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.json_codec import digest_of
from flashinfer_bench.data.new_folder import counts_of, items_of, new_folder, write_items
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import BaseModel

    from flashinfer_bench.data.trace import Trace

PathLike = Union[str, Path]
_SHOWN_FIELDS = 6
_HINTS = {
    "definition": "rename one of the two definitions, or bring them to one version",
    "solution": "rename one of the two solutions; 'fib report merge --rename-solutions' does it",
    "workload": "give one of the two workloads another uuid",
}


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
    merged = TraceSet()
    names = _Names()
    seen: set[bytes] = set()
    for number, one in enumerate(sets, 1):
        label = str(one.root or f"dataset {number}")
        renamed: dict[str, str] = {}
        for definition in one.definitions.values():
            if names.claim("definition", definition.name, definition, label):
                merged.definitions[definition.name] = definition
        for solution in (solution for group in one.solutions.values() for solution in group):
            kept = solution
            if rename_solutions and names.is_taken("solution", kept.name, kept):
                kept = kept.model_copy(update={"name": f"{kept.name}_{digest_of(kept).hex()[:8]}"})
                renamed[solution.name] = kept.name
            if names.claim("solution", kept.name, kept, label):
                merged.solutions.setdefault(kept.definition, []).append(kept)
        for trace in (trace for group in one.workloads.values() for trace in group):
            uuid = trace.workload.uuid
            names.claim("workload", uuid, trace.workload, label, within=trace.definition)
        _add_new(one.workloads, merged.workloads, seen, {})
        _add_new(one.traces, merged.traces, seen, renamed)
    return merged


def _add_new(
    groups: dict[str, list[Trace]],
    merged: dict[str, list[Trace]],
    seen: set[bytes],
    renamed: dict[str, str],
) -> None:
    """Add the traces that were not met yet, with the new names of their solutions."""
    for name, traces in groups.items():
        target = merged.setdefault(name, [])
        for trace in traces:
            solution = renamed.get(trace.solution or "")
            kept = trace.model_copy(update={"solution": solution}) if solution else trace
            digest = digest_of(kept)
            if digest not in seen:
                seen.add(digest)
                target.append(kept)


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
    plan = BlobPlan()
    placed = []
    for one in sets:
        # A file that one dataset lacks another may have: clones without tensors are common.
        others = [other.root for other in sets if other.root != one.root]
        roots = [BlobRoot(root, root) for root in (one.root, *others) if root is not None]
        placed.append(plan.add(one, roots))
        placed[-1].root = one.root  # its name in messages
    merged = merge_trace_sets(placed, rename_solutions=rename_solutions)
    with new_folder(Path(out)) as folder:
        write_items(folder, items_of(merged, plan.files))
    return counts_of(merged)


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
    placed = plan.add(trace_set, [BlobRoot(root, root) for root in roots])
    with new_folder(out) as folder:
        write_items(folder, items_of(placed, plan.files))
    return out


class _Names:
    """Who has a name: a record, and the dataset that it is from."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str, str], tuple[BaseModel, str]] = {}

    def is_taken(self, kind: str, name: str, record: BaseModel) -> bool:
        """Return whether another record has the name."""
        known = self._first.get((kind, "", name))
        return known is not None and _content(known[0]) != _content(record)

    def claim(
        self, kind: str, name: str, record: BaseModel, dataset: str, within: str = ""
    ) -> bool:
        """Return whether the name is new; raise if another record has it."""
        key = kind, within, name
        if key not in self._first:
            self._first[key] = record, dataset
            return True
        first, place = self._first[key]
        fields = _differing_fields(first, record)
        if not fields:
            return False
        shown = ", ".join(fields[:_SHOWN_FIELDS])
        more = f" and {len(fields) - _SHOWN_FIELDS} more" if len(fields) > _SHOWN_FIELDS else ""
        where = f"within {place}" if place == dataset else f"in {place} and {dataset}"
        raise ConflictError(
            f"two datasets hold different {kind}s named '{name}'; "
            f"they differ in {shown}{more} ({where})",
            field=fields[0],
            hint=_HINTS[kind],
        )


def _content(record: BaseModel) -> dict[str, str]:
    """Return all that a record holds, by dotted path."""
    found = dict(_leaves(record.model_dump(mode="json", exclude_none=True)))
    if isinstance(record, Definition):  # the order of these is that of the arguments
        found["the order of inputs or outputs"] = f"{list(record.inputs)} {list(record.outputs)}"
    return found


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if not isinstance(value, (dict, list)) or not value:
        # As text: to Python 1 equals 1.0 and true, and NaN not even itself.
        yield path, json.dumps(value)
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(inner, f"{path}.{key}" if path else str(key))


def _differing_fields(first: BaseModel, second: BaseModel) -> list[str]:
    one, other = _content(first), _content(second)
    return [path for path in {**one, **other} if one.get(path) != other.get(path)]
