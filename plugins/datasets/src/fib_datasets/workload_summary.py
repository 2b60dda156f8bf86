"""Summary of a dataset's workloads: number, sizes, and how many were traced."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from fib_datasets.sanitize.carry import Survey, named_blobs
from flashinfer_bench.tracing.store import content_key, workload_uuid

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True)
class Summary:
    """The workloads of a dataset.

    Parameters
    ----------
    definitions : tuple of DefinitionSummary
        By name.
    unread : tuple of Issue
        Lines that cannot be read and are left out.
    """

    definitions: tuple[DefinitionSummary, ...]
    unread: tuple[Issue, ...]


def summarize(root: Path) -> Summary:
    """Summarise the workloads of a dataset.

    Parameters
    ----------
    root : Path
        The dataset.

    Raises
    ------
    OSError
        If a file cannot be read.
    """
    survey = Survey.of(root)  # older layouts have workloads in the folder of traces
    groups: dict[str, list[Record]] = {}
    for record in survey.workloads:
        groups.setdefault(record.trace.definition, []).append(record)
    found = tuple(_summarize(root, name, groups[name]) for name in sorted(groups))
    return Summary(found, tuple(survey.unread))


def _summarize(root: Path, name: str, records: Sequence[Record]) -> DefinitionSummary:
    axes = [record.workload.axes for record in records]
    sizes = [_size(path) for path in named_blobs(root, records)]
    there = [size for size in sizes if size is not None]
    return DefinitionSummary(
        definition=name,
        workloads=len(records),
        traced=_count_traced(records),
        distinct_axes=len({tuple(sorted(one.items())) for one in axes}),
        axes=_ranges(axes),
        blobs=len(sizes),
        blob_bytes=sum(there),
        missing_blobs=len(sizes) - len(there),
        files=tuple(sorted({record.path.as_posix() for record in records})),
    )


def _ranges(axes: Iterable[dict[str, int]]) -> dict[str, tuple[int, int]]:
    values: dict[str, list[int]] = {}
    for one in axes:
        for name, value in one.items():
            values.setdefault(name, []).append(value)
    return {name: (min(found), max(found)) for name, found in values.items()}


def _count_traced(records: Sequence[Record]) -> int:
    keys = [_key(record) for record in records]
    derived = {
        workload_uuid(key, ordinal)
        for key, count in Counter(keys).items()
        for ordinal in range(count)
    }
    return sum(record.workload.uuid in derived for record in records)


def _key(record: Record) -> str:
    return content_key(record.trace.definition, record.workload.axes, record.workload.inputs)


def _size(path: Path) -> Optional[int]:
    try:
        return path.stat().st_size
    except OSError:
        return None
