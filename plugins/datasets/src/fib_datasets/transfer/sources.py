"""Finding and reading the source of an import: a dataset of any release, or problem folders."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fib_datasets.transfer.blob_plan import BlobRoot
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, layout
from flashinfer_bench.data.json_codec import decode, parse_json
from flashinfer_bench.data.jsonl import read_records
from flashinfer_bench.data.loader import Problems
from flashinfer_bench.errors import DatasetNotFoundError, DuplicateNameError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flashinfer_bench.data.base import SchemaModel
    from flashinfer_bench.errors import DataError

_PARTS = (layout.DEFINITIONS, layout.SOLUTIONS, layout.WORKLOADS, layout.TRACES)
_LISTS: dict[str, type[SchemaModel]] = {
    "definitions.json": Definition,
    "solutions.json": Solution,
    "traces.jsonl": Trace,
}
_DEEPEST = 4
PROBLEM = "definition.json"
PROBLEM_WORKLOADS = "workload.jsonl"
_USUAL = "dataset"


@dataclass
class Source:
    """The content of a source.

    Parameters
    ----------
    trace_set : TraceSet
        The records.
    roots : list of BlobRoot
        Folders to search for tensor files.
    own_roots : dict of str to list of BlobRoot
        Folders to search for tensor files of single definitions.
    left_out : list of DataError
        Records that could not be imported, and why.
    notes : list of str
        Parts of imported records that were lost.
    """

    trace_set: TraceSet
    roots: list[BlobRoot] = field(default_factory=list)
    own_roots: dict[str, list[BlobRoot]] = field(default_factory=dict)
    left_out: list[DataError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_source(folder: Path) -> Source:
    """Read a folder.

    Parameters
    ----------
    folder : Path
        A dataset in the layout of any release; a folder with one in it, alone or as ``dataset``;
        or a folder in one of the registered formats, such as problems of SOL-ExecBench.

    Raises
    ------
    DatasetNotFoundError
        If it is none of these.
    """
    from flashinfer_bench.plugins import default_catalog

    root = find_dataset(folder)
    if root is not None:
        return _read_dataset(root)
    for entry in default_catalog().formats:
        source: Source | None = entry.load()(folder)
        if source is not None:
            return source
    raise DatasetNotFoundError(
        f"{folder} has no dataset",
        hint=f"a dataset has folders such as {', '.join(_PARTS)}; a problem folder has "
        "definition.json and workload.jsonl",
    )


def find_dataset(folder: Path) -> Path | None:
    """Return the dataset in a folder: itself, its ``dataset``, or that of its only subfolder."""
    for _ in range(_DEEPEST):
        if is_dataset(folder):
            return folder
        if is_dataset(folder / _USUAL):
            return folder / _USUAL
        inner = [one for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")]
        if len(inner) != 1:
            return None
        folder = inner[0]
    return None


def is_dataset(folder: Path) -> bool:
    """Return whether a folder is a dataset, or a part of one, in the layout of any release."""
    if is_problem(folder):  # it may have a folder of solutions
        return False
    return any((folder / name).is_dir() for name in _PARTS) or any(
        (folder / name).is_file() for name in _LISTS
    )


def is_problem(folder: Path) -> bool:
    """Return whether a folder is a problem of SOL-ExecBench."""
    return (folder / PROBLEM).is_file() and (folder / PROBLEM_WORKLOADS).is_file()


def _read_dataset(root: Path) -> Source:
    loaded = TraceSet.from_path(root, on_error="collect")
    problems = Problems("collect")
    for name, model in _LISTS.items():  # files with all records of one kind, as in 2025-07
        with problems.guard(root / name):
            for line, text in _records(root / name):
                with problems.guard(root / name):
                    record = decode(model, text, path=root / name, line=line)
                    add_record(record, root / name, loaded)
    left_out = [*loaded.load_errors, *problems.errors]
    # Folders that paths of tensor files were relative to in various releases.
    bases = (root, root.resolve().parent, root / layout.TRACES / layout.WORKLOADS)
    more = (root / layout.TRACES, root / layout.WORKLOADS)
    return Source(loaded, [BlobRoot(base, root) for base in (*bases, *more)], left_out=left_out)


def _records(path: Path) -> Iterator[tuple[int | None, bytes]]:
    if not path.is_file():
        return
    if path.suffix == ".jsonl":
        yield from read_records(path)
        return
    document: Any = parse_json(path.read_bytes(), path=path)
    for record in document if isinstance(document, list) else [document]:
        yield None, json.dumps(record).encode()


def add_record(record: SchemaModel, path: Path, trace_set: TraceSet) -> None:
    """Add a record to a set in memory.

    Raises
    ------
    DuplicateNameError
        If there is another definition or solution of the same name.
    """
    if isinstance(record, Trace):
        groups = trace_set.workloads if record.is_workload_trace() else trace_set.traces
        groups.setdefault(record.definition, []).append(record)
        return
    assert isinstance(record, (Definition, Solution))
    kind = type(record).__name__.lower()
    solutions = (one.name for group in trace_set.solutions.values() for one in group)
    if record.name in (trace_set.definitions if kind == "definition" else solutions):
        raise DuplicateNameError(f"another {kind} is named '{record.name}'", path=path)
    if isinstance(record, Definition):
        trace_set.definitions[record.name] = record
    else:
        trace_set.solutions.setdefault(record.definition, []).append(record)
