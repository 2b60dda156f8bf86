"""Import of an archive, or of a folder of any release, into a dataset."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from fib_datasets.transfer.blob_plan import BlobPlan
from fib_datasets.transfer.files import add_files, counts_of, files_of, write_folder
from fib_datasets.transfer.merge import Merger
from fib_datasets.transfer.sources import is_dataset, read_source
from fib_datasets.transfer.unpack import Limits, unpack_archive
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.storage import storage_error
from flashinfer_bench.errors import ConfigError, DatasetNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.errors import DataError


@dataclass(frozen=True)
class Imported:
    """The result of an import.

    Parameters
    ----------
    dataset : Path
        The target.
    added : dict of str to int
        New definitions, solutions, workloads, traces and blobs.
    known : dict of str to int
        Records that already existed in the dataset, or that occurred twice.
    left_out : tuple of DataError
        Records of the source that could not be imported, and why.
    notes : tuple of str
        Parts of imported records that were lost.
    missing_blobs : tuple of str
        Missing tensor files of workloads.
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
    """Import a source into a dataset, in the current layout and spelling.

    Parameters
    ----------
    source : str or Path
        An archive of `export_archive`, a dataset folder of any release, or one or many problem
        folders of SOL-ExecBench.
    into : str or Path
        A new or empty folder, which is created completely or not at all; or a dataset, to which
        new records are added. Existing records are unchanged.
    limits : Limits, optional
        The largest allowed archive.
    rename_solutions : bool
        As for `merge_trace_sets`.

    Returns
    -------
    Imported
        What was added, and what could not be imported.

    Raises
    ------
    DatasetNotFoundError
        If there is no such source, or it has no dataset.
    ConflictError
        If the dataset has different content under the same name; nothing is written.
    DataError
        If an archive is broken, unsafe or too large; nothing is written.
    StorageError
        If writing fails. A new folder is then not created. An existing dataset may have some of
        the records with their dependencies, and importing again adds the rest.
    """
    target, origin = Path(into), Path(source)
    with _opened(origin, target, limits) as folder:
        read = read_source(folder)
        merger = Merger(rename_solutions=rename_solutions)
        definitions = {}
        existing = target.is_dir() and is_dataset(target)
        if existing:
            there = TraceSet.from_path(target, on_error="collect")
            tidy = BlobPlan().add(there, ())  # normalises paths, so that they can be compared
            tidy.root = target
            definitions = merger.add(tidy).definitions
        plan = BlobPlan(target if existing else None)
        placed = plan.add(read.trace_set, read.roots, read.own_roots)
        placed.root = origin  # for messages
        fresh = merger.add(placed)
        if not any(counts_of(placed).values()):
            raise DatasetNotFoundError(
                f"{origin} has no records that could be imported",
                hint="run 'fib validate' on it",
            )
        files = files_of(fresh, plan.files, {**definitions, **fresh.definitions})
        if existing:
            add_files(target, files)
        else:
            write_folder(target, files, link=folder != origin)  # unpacked files are temporary
    added = {**counts_of(fresh), "blobs": len(plan.files)}
    known = {kind: count - added[kind] for kind, count in counts_of(placed).items()}
    for error in read.left_out:  # name the file in the archive, not the temporary one
        if error.path is not None and error.path.is_relative_to(folder):
            error.path = origin / error.path.relative_to(folder)
    notes = tuple(note.replace(f"{folder}{os.sep}", f"{origin}{os.sep}") for note in read.notes)
    missing = tuple(sorted(plan.missing))
    return Imported(target, added, known, tuple(read.left_out), notes, missing)


@contextlib.contextmanager
def _opened(source: Path, target: Path, limits: Optional[Limits]) -> Iterator[Path]:
    """Yield the folder of a source; archives are unpacked temporarily next to the target."""
    if source.is_dir():
        first, second = source.resolve(), target.resolve()
        if first.is_relative_to(second) or second.is_relative_to(first):
            raise ConfigError(
                f"the target {target} and the source {source} contain one another",
                hint="import into another folder",
            )
        yield source
        return
    if not source.is_file():
        what = "is neither a file nor a folder" if source.exists() else "does not exist"
        raise DatasetNotFoundError(f"{source} {what}", hint="give an archive or a folder")
    parent = target.resolve().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=".fib-import.", dir=parent)
    except OSError as error:
        raise storage_error(parent, error) from error
    with temporary as name:
        folder = Path(name, "content")
        folder.mkdir()
        unpack_archive(source, folder, limits)
        yield folder
