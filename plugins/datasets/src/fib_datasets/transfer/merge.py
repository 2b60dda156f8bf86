"""Merging of several datasets into one."""

from __future__ import annotations

import hashlib
import json
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union

from fib_datasets.transfer.blob_plan import BlobPlan, BlobRoot
from fib_datasets.transfer.files import counts_of, files_of, write_folder
from flashinfer_bench.data import Definition, TraceSet, to_json
from flashinfer_bench.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import BaseModel

    from flashinfer_bench.data import Trace

PathLike = Union[str, Path]
_R = TypeVar("_R")
_SHOWN_FIELDS = 6
_HINTS = {
    "definition": "rename one of the definitions, or make them equal",
    "solution": "rename one of the solutions, or use 'fib report merge --rename-solutions'",
    "workload": "give one of the workloads another uuid",
}


class Merger:
    """Merges datasets one after the other, and determines what each of them adds.

    Parameters
    ----------
    rename_solutions : bool
        As for `merge_trace_sets`.
    """

    def __init__(self, *, rename_solutions: bool = False) -> None:
        self._rename = rename_solutions
        self._names: dict[tuple[str, str, str], tuple[BaseModel, str]] = {}
        self._seen: set[bytes] = set()
        self._number = 0

    def add(self, one: TraceSet) -> TraceSet:
        """Return the new records of a dataset.

        Raises
        ------
        ConflictError
            If it has a different definition, solution or workload under the same name.
        """
        self._number += 1
        label = str(one.root or f"dataset {self._number}")
        fresh = TraceSet()
        for definition in one.definitions.values():
            if self._claim(("definition", "", definition.name), definition, label):
                fresh.definitions[definition.name] = definition
        renamed: dict[str, str] = {}
        for solution in chain.from_iterable(one.solutions.values()):
            kept = solution
            known = self._names.get(("solution", "", solution.name))
            if self._rename and known is not None and _content(known[0]) != _content(solution):
                name = f"{solution.name}_{_digest(solution).hex()[:8]}"
                kept = solution.model_copy(update={"name": name})
                renamed[solution.name] = name
            if self._claim(("solution", "", kept.name), kept, label):
                fresh.solutions.setdefault(kept.definition, []).append(kept)
        for name, group in one.workloads.items():
            fresh.workloads[name] = [
                trace
                for trace in group
                if self._claim(("workload", name, trace.workload.uuid), trace.workload, label)
            ]
        for name, group in one.traces.items():
            fresh.traces[name] = list(self._new_traces(group, renamed))
        return fresh

    def _new_traces(self, traces: list[Trace], renamed: dict[str, str]) -> Iterator[Trace]:
        for trace in traces:
            solution = renamed.get(trace.solution or "")
            kept = trace.model_copy(update={"solution": solution}) if solution else trace
            digest = _digest(kept)
            if digest not in self._seen:
                self._seen.add(digest)
                yield kept

    def _claim(self, key: tuple[str, str, str], record: BaseModel, dataset: str) -> bool:
        """Return whether a name is new; raise if another record has it."""
        if key not in self._names:
            self._names[key] = record, dataset
            return True
        first, place = self._names[key]
        one, other = _content(first), _content(record)
        fields = [path for path in {**one, **other} if one.get(path) != other.get(path)]
        if not fields:
            return False
        kind, _, name = key
        shown = ", ".join(fields[:_SHOWN_FIELDS])
        more = f" and {len(fields) - _SHOWN_FIELDS} more" if len(fields) > _SHOWN_FIELDS else ""
        where = f"within {place}" if place == dataset else f"in {place} and {dataset}"
        raise ConflictError(
            f"two datasets have different {kind}s named '{name}'; "
            f"they differ in {shown}{more} ({where})",
            field=fields[0],
            hint=_HINTS[kind],
        )


def _digest(record: BaseModel) -> bytes:
    """Return a 16-byte digest of a record, so that sets of very many records are small."""
    return hashlib.blake2b(to_json(record, indent=None).encode(), digest_size=16).digest()


def _content(record: BaseModel) -> dict[str, str]:
    """Return the content of a record, by dotted path."""
    found = dict(_leaves(record.model_dump(mode="json", exclude_none=True)))
    if isinstance(record, Definition):  # their order is that of the arguments
        found["the order of inputs or outputs"] = f"{list(record.inputs)} {list(record.outputs)}"
    return found


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if not isinstance(value, (dict, list)) or not value:
        # As text, because in Python 1 == 1.0 == True, and NaN != NaN.
        yield path, json.dumps(value)
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(inner, f"{path}.{key}" if path else str(key))


def merge_trace_sets(sets: Sequence[TraceSet], *, rename_solutions: bool = False) -> TraceSet:
    """Merge datasets into a new one in memory.

    Equal records are kept once, in the order they are first met.

    Parameters
    ----------
    sets : sequence of TraceSet
        The datasets; they are not modified.
    rename_solutions : bool
        Whether to rename a solution whose name is taken, and its traces, by appending a digest of
        its content (otherwise it is a conflict).

    Returns
    -------
    TraceSet
        The union, without a folder. Paths of tensor files are unchanged.

    Raises
    ------
    ConflictError
        If two sets have different definitions, solutions or workloads under one name (uuid).
    """
    merged = TraceSet()
    merger = Merger(rename_solutions=rename_solutions)
    for one in sets:
        fresh = merger.add(one)
        merged.definitions |= fresh.definitions
        _extend(merged.solutions, fresh.solutions)
        _extend(merged.workloads, fresh.workloads)
        _extend(merged.traces, fresh.traces)
    return merged


def _extend(groups: dict[str, list[_R]], more: dict[str, list[_R]]) -> None:
    for name, group in more.items():
        groups.setdefault(name, []).extend(group)


def merge_datasets(
    sets: Sequence[TraceSet], out: PathLike, *, rename_solutions: bool = False
) -> dict[str, int]:
    """Merge datasets into a new folder, with the tensor files of their workloads.

    Parameters
    ----------
    sets : sequence of TraceSet
        The datasets, each with its folder.
    out : str or Path
        The folder; it must not exist or be empty. Nothing is there until all of it is.
    rename_solutions : bool
        As for `merge_trace_sets`.

    Returns
    -------
    dict of str to int
        Number of definitions, solutions, workloads and traces that were written.

    Raises
    ------
    ConflictError
        As for `merge_trace_sets`.
    UnsafePathError
        If a workload refers to a file outside its dataset.
    StorageError
        If the folder is not empty, or writing fails.
    """
    plan = BlobPlan()
    placed = []
    for one in sets:
        # Another dataset may have missing files, because clones without tensors are common.
        others = [other.root for other in sets if other.root != one.root]
        placed.append(plan.add(one, _roots(one.root, *others)))
        placed[-1].root = one.root  # for messages
    merged = merge_trace_sets(placed, rename_solutions=rename_solutions)
    write_folder(Path(out), files_of(merged, plan.files))
    return counts_of(merged)


def export_trace_set(
    trace_set: TraceSet, out_dir: PathLike, *, blob_roots: Sequence[PathLike] = ()
) -> Path:
    """Write a dataset to a new folder, with the tensor files of its workloads.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    out_dir : str or Path
        The folder; it must not exist or be empty. Nothing is there until all of it is.
    blob_roots : sequence of str or Path
        Further folders to search for tensor files, in this order, after the set's own. Files that
        are not found are left out.

    Returns
    -------
    Path
        `out_dir`.

    Raises
    ------
    StorageError
        If the folder is not empty, or writing fails.
    UnsafePathError
        If a workload refers to a file outside the dataset.
    """
    out = Path(out_dir)
    plan = BlobPlan()
    placed = plan.add(trace_set, _roots(trace_set.root, *blob_roots))
    write_folder(out, files_of(placed, plan.files))
    return out


def _roots(*folders: Union[PathLike, None]) -> list[BlobRoot]:
    return [BlobRoot(Path(root), Path(root)) for root in folders if root is not None]
