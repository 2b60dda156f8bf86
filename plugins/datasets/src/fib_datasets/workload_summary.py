"""Summary of a dataset's workloads: number, sizes, and how many were traced."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fib_datasets.sanitize.carry import Survey, named_blobs
from flashinfer_bench.tracing.store import content_key, workload_uuid

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fib_datasets.repair.examine import Issue
    from fib_datasets.sanitize.carry import Record


@dataclass(frozen=True)
class DefinitionSummary:
    """The workloads of one definition.

    Parameters
    ----------
    definition : str
        Its name.
    workloads : int
        Number of workloads.
    traced : int
        Number of those recorded by tracing, whose uuid is a hash of their content. All others were
        written by hand or by other programs.
    distinct_axes : int
        Number of distinct combinations of axis values.
    axes : dict of str to (int, int)
        Smallest and largest value of each axis.
    blobs : int
        Number of their tensor files; workloads may share files.
    blob_bytes : int
        Bytes of the existing files.
    missing_blobs : int
        Number of missing files.
    files : tuple of str
        Files of the workloads, relative to the dataset.
    """

    definition: str
    workloads: int
    traced: int
    distinct_axes: int
    axes: dict[str, tuple[int, int]]
    blobs: int
    blob_bytes: int
    missing_blobs: int
    files: tuple[str, ...]


def summarize(root: Path) -> tuple[list[DefinitionSummary], list[Issue]]:
    """Summarise the workloads of a dataset.

    Parameters
    ----------
    root : Path
        The dataset.

    Returns
    -------
    list of DefinitionSummary
        By name.
    list of Issue
        Lines that cannot be read and are left out.

    Raises
    ------
    OSError
        If a file cannot be read.
    """
    survey = Survey.of(root)  # older layouts have workloads in the folder of traces
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in survey.workloads:
        groups[record.trace.definition].append(record)
    return [_summarize(root, name, groups[name]) for name in sorted(groups)], survey.unread


def _summarize(root: Path, name: str, records: Sequence[Record]) -> DefinitionSummary:
    workloads = [record.workload for record in records]
    values: dict[str, list[int]] = defaultdict(list)
    for workload in workloads:
        for axis, value in workload.axes.items():
            values[axis].append(value)
    contents = Counter(content_key(name, one.axes, one.inputs) for one in workloads)
    of_tracing = {
        workload_uuid(key, ordinal) for key, count in contents.items() for ordinal in range(count)
    }
    blobs = named_blobs(root, records)
    sizes = [path.stat().st_size for path in blobs if path.exists()]
    return DefinitionSummary(
        definition=name,
        workloads=len(workloads),
        traced=sum(one.uuid in of_tracing for one in workloads),
        distinct_axes=len({tuple(sorted(one.axes.items())) for one in workloads}),
        axes={axis: (min(found), max(found)) for axis, found in values.items()},
        blobs=len(blobs),
        blob_bytes=sum(sizes),
        missing_blobs=len(blobs) - len(sizes),
        files=tuple(sorted({record.path.as_posix() for record in records})),
    )
