"""An archive, or a folder of any release, into a dataset of today's layout."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Optional, TypeVar

from fib_datasets.transfer.sources import is_dataset, read_source
from fib_datasets.transfer.unpack import Limits, unpack_archive
from flashinfer_bench.data import layout
from flashinfer_bench.data.blob_plan import BlobPlan, op_type_of, tidy_paths
from flashinfer_bench.data.json_codec import append_jsonl_file, digest_of
from flashinfer_bench.data.merge import merge_trace_sets
from flashinfer_bench.data.new_folder import (
    counts_of,
    document,
    items_of,
    new_folder,
    place_file,
    write_error,
    write_items,
)
from flashinfer_bench.data.storage import replace_file
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.errors import ConflictError, DatasetNotFoundError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import BaseModel

    from fib_datasets.transfer.sources import Source
    from flashinfer_bench.errors import DataError

_R = TypeVar("_R")


@dataclass(frozen=True)
class Imported:
    """What an import did.

    Parameters
    ----------
    dataset : Path
        Where it went.
    added : dict of str to int
        New definitions, solutions, workloads, traces and blobs.
    known : dict of str to int
        Records that the dataset had already, or that came twice.
    left_out : tuple of DataError
        Records of the source that could not be carried over, and why.
    notes : tuple of str
        What was lost of records that were carried over.
    missing_blobs : tuple of str
        Tensor files that workloads name but that are nowhere.
    """

    dataset: Path
    added: dict[str, int]
    known: dict[str, int] = field(default_factory=dict)
    left_out: tuple[DataError, ...] = ()
    notes: tuple[str, ...] = ()
    missing_blobs: tuple[str, ...] = ()


def import_dataset(
    source: str | Path,
    into: str | Path,
    *,
    limits: Optional[Limits] = None,
    rename_solutions: bool = False,
) -> Imported:
    """Bring what a source holds into a dataset, in today's layout and spelling.

    Parameters
    ----------
    source : str or Path
        An archive of `export_archive`, a dataset folder of any release, or one or many problem
        folders of SOL-ExecBench.
    into : str or Path
        A new or empty folder, which appears as a whole; or a dataset, which gets what it does not
        have. What it has stays as it is.
    limits : Limits, optional
        How much an archive may hold.
    rename_solutions : bool
        As of `merge_trace_sets`.

    Returns
    -------
    Imported
        What was added, and what could not be carried over.

    Raises
    ------
    DatasetNotFoundError
        If there is no such source, or no dataset in it.
    ConflictError
        If the dataset has something else under the same name; nothing is written.
    DataError
        If an archive is broken, unsafe or too large; nothing is written.
    StorageError
        If writing fails. A new folder is not there then; a dataset may have some of the records,
        each with all that it needs, and importing again adds the rest.
    """
    target = Path(into)
    with _opened(Path(source), target, limits) as folder:
        read = read_source(folder)
        existing = _existing(target)
        plan = BlobPlan(target if existing is not None else None)
        placed = plan.add(read.trace_set, read.roots, read.own_roots)
        placed.root = Path(source)  # its name in messages
        before = [existing] if existing is not None else []
        merged = merge_trace_sets([*before, placed], rename_solutions=rename_solutions)
        fresh = _without(merged, existing) if existing is not None else merged
        _require_something(placed, Path(source))
        if existing is None:
            with new_folder(target) as filling:
                # What was unpacked goes away in a moment.
                write_items(filling, items_of(merged, plan.files), link=folder != Path(source))
        else:
            _add(fresh, target, merged, plan)
    added = {**counts_of(fresh), "blobs": len(plan.files)}
    known = {kind: count - added[kind] for kind, count in counts_of(placed).items()}
    told = _told(read, folder, Path(source))
    return Imported(target, added, known, *told, tuple(sorted(plan.missing)))


def _told(
    read: Source, folder: Path, source: Path
) -> tuple[tuple[DataError, ...], tuple[str, ...]]:
    """Return what was left out, and notes, with the names of the source in messages."""
    left_out = tuple(_as_in(error, folder, source) for error in read.left_out)
    notes = tuple(note.replace(f"{folder}{os.sep}", f"{source}{os.sep}") for note in read.notes)
    return left_out, notes


@contextlib.contextmanager
def _opened(source: Path, target: Path, limits: Optional[Limits]) -> Iterator[Path]:
    """Give the folder of a source; an archive is unpacked beside the target for a while."""
    if source.is_dir():
        _require_apart(source, target)
        yield source
        return
    if not source.is_file():
        what = "is neither a file nor a folder" if source.exists() else "does not exist"
        raise DatasetNotFoundError(f"{source} {what}", hint="name an archive or a folder")
    parent = target.resolve().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=".fib-import.", dir=parent)
    except OSError as error:
        raise write_error(parent, error) from error
    with temporary as name:
        folder = Path(name, "content")
        folder.mkdir()
        unpack_archive(source, folder, limits)
        yield folder


def _as_in(error: DataError, folder: Path, source: Path) -> DataError:
    """Let an error name the file in the archive, not where it was for a moment."""
    if error.path is not None and error.path.is_relative_to(folder):
        error.path = source / error.path.relative_to(folder)
    return error


def _require_apart(source: Path, target: Path) -> None:
    first, second = source.resolve(), target.resolve()
    if first.is_relative_to(second) or second.is_relative_to(first):
        raise StorageError(
            f"{target} and the source {source} lie within one another",
            hint="import into a folder elsewhere",
        )


def _existing(target: Path) -> Optional[TraceSet]:
    """Return the dataset that is there, to be compared with; None if it is to be made."""
    if target.is_dir() and is_dataset(target):
        existing = tidy_paths(TraceSet.from_path(target, on_error="collect"))
        existing.root = target
        return existing
    return None


def _require_something(placed: TraceSet, source: Path) -> None:
    if not any(counts_of(placed).values()):
        raise DatasetNotFoundError(
            f"{source} has no record that could be carried over",
            hint="'fib validate' says what is wrong with each",
        )


def _without(merged: TraceSet, existing: TraceSet) -> TraceSet:
    """Return what `merged` has and `existing` has not."""
    solutions = {one.name for group in existing.solutions.values() for one in group}
    # By uuid: merging has seen to it that there is one workload of each.
    workloads = {
        (name, one.workload.uuid) for name, group in existing.workloads.items() for one in group
    }
    traces = {digest_of(one) for group in existing.traces.values() for one in group}
    return TraceSet(
        definitions={
            name: one
            for name, one in merged.definitions.items()
            if name not in existing.definitions
        },
        solutions=_only(merged.solutions, lambda _, one: one.name not in solutions),
        workloads=_only(
            merged.workloads, lambda name, one: (name, one.workload.uuid) not in workloads
        ),
        traces=_only(merged.traces, lambda _, one: digest_of(one) not in traces),
    )


def _only(groups: dict[str, list[_R]], wanted: Callable[[str, _R], bool]) -> dict[str, list[_R]]:
    return {name: [one for one in group if wanted(name, one)] for name, group in groups.items()}


def _add(fresh: TraceSet, target: Path, definitions: TraceSet, plan: BlobPlan) -> None:
    """Write new records into a dataset; first what others depend on, so that none is in want."""
    for name, source in plan.files.items():
        place_file(source, target / name)
    for one in fresh.definitions.values():
        _write_new(one, layout.definition_file(target, one.op_type, one.name))
    for solution in (solution for group in fresh.solutions.values() for solution in group):
        name = solution.definition
        op_type = op_type_of(definitions, name)
        path = layout.solution_file(target, solution.author, op_type, name, solution.name)
        _write_new(solution, path)
    for file_of, groups in (
        (layout.workloads_file, fresh.workloads),
        (layout.traces_file, fresh.traces),
    ):
        for name, traces in groups.items():
            append_jsonl_file(traces, file_of(target, op_type_of(definitions, name), name))


def _write_new(record: BaseModel, path: Path) -> None:
    if path.exists():
        raise ConflictError(
            "there is a file of this name that holds something else, or cannot be read",
            path=path,
            hint="see what 'fib validate' says about it",
        )
    replace_file(path, document(record))
