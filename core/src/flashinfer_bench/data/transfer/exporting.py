"""A dataset, or a part of it, as one archive file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data.transfer.archive import write_archive
from flashinfer_bench.data.transfer.blob_plan import BlobPlan, BlobRoot
from flashinfer_bench.data.transfer.items import items_of
from flashinfer_bench.data.transfer.subset import Subset

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet


@dataclass(frozen=True)
class Exported:
    """What an archive holds.

    Parameters
    ----------
    archive : Path
        The file.
    counts : dict of str to int
        Number of definitions, solutions, workloads, traces and blobs.
    missing_blobs : tuple of str
        Tensor files that workloads name but that are not there.
    pointers : tuple of str
        Tensor files that are Git LFS pointers; the archive has the pointers.
    """

    archive: Path
    counts: dict[str, int]
    missing_blobs: tuple[str, ...]
    pointers: tuple[str, ...]


def export_archive(
    trace_set: TraceSet, archive: str | Path, subset: Optional[Subset] = None
) -> Exported:
    """Write a dataset, with the tensor files that it names, into one archive.

    The same content gives the same bytes.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    archive : str or Path
        The file, ``.tar.gz``, ``.tgz`` or ``.tar``; one that exists is replaced.
    subset : Subset, optional
        What of it; everything by default.

    Raises
    ------
    ConfigError
        If the name of the archive has another ending.
    UnknownNameError, SelectionError
        If there is no such subset.
    UnsafePathError
        If a workload names a file outside the dataset.
    StorageError
        If writing fails; an archive that was there is unchanged.
    """
    out = Path(archive)
    plan = BlobPlan()
    part = (subset or Subset()).of(trace_set)
    roots = [BlobRoot(trace_set.root, trace_set.root)] if trace_set.root is not None else []
    placed = plan.add(part, roots)
    counts = {**counts_of(placed), "blobs": len(plan.files)}
    facts = {"contents": counts, "missing_blobs": sorted(plan.missing)}
    write_archive(out, items_of(placed, plan.files), facts)
    return Exported(out, counts, tuple(sorted(plan.missing)), tuple(sorted(plan.pointers())))


def counts_of(trace_set: TraceSet) -> dict[str, int]:
    """Return the number of records of each kind."""
    return {
        "definitions": len(trace_set.definitions),
        "solutions": sum(map(len, trace_set.solutions.values())),
        "workloads": sum(map(len, trace_set.workloads.values())),
        "traces": sum(map(len, trace_set.traces.values())),
    }
