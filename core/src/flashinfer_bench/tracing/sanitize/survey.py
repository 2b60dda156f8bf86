"""Reading the workloads and traces of a dataset line by line, each with its place."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.data import layout
from flashinfer_bench.data.blobs import resolve_blob
from flashinfer_bench.data.repair.lines import LineReader
from flashinfer_bench.data.workload import SafetensorsInput
from flashinfer_bench.errors import UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from flashinfer_bench.data.repair.issues import Issue
    from flashinfer_bench.data.trace import Trace
    from flashinfer_bench.data.workload import Workload


class Record(NamedTuple):
    """A line of a file.

    Parameters
    ----------
    path : Path
        The file, relative to the dataset.
    place : int
        Which of the file's lines it is, blank ones counted, from 0.
    line : int or None
        The same from 1; None if the file is not one of lines.
    trace : Trace
        What it says.
    """

    path: Path
    place: int
    line: Optional[int]
    trace: Trace

    @property
    def workload(self) -> Workload:
        """The workload, also of a trace."""
        return self.trace.workload

    @property
    def identity(self) -> tuple[str, str]:
        """Definition and uuid: what a trace has in common with its workload."""
        return self.trace.definition, self.trace.workload.uuid


class Survey(NamedTuple):
    """What is in a dataset.

    Parameters
    ----------
    workloads, traces : list of Record
        In the order of files and lines.
    unread : list of Issue
        Lines that cannot be read.
    """

    workloads: list[Record]
    traces: list[Record]
    unread: list[Issue]

    @classmethod
    def of(cls, root: Path) -> Survey:
        """Read a dataset.

        Parameters
        ----------
        root : Path
            The dataset.

        Raises
        ------
        OSError
            If a file cannot be read.
        """
        found = cls([], [], [])
        reader = LineReader(root)
        for folder in (layout.WORKLOADS, layout.TRACES):
            for path in layout.files(root / folder, ".jsonl", ".json"):
                found._read(root, path, reader)
        return found

    def _read(self, root: Path, path: Path, reader: LineReader) -> None:
        relative = path.relative_to(root)
        for place, line in enumerate(reader.read(path)):
            if line.problem is not None:
                self.unread.append(line.problem)
            elif line.trace is not None:
                of_workload = line.trace.is_workload_trace()
                target = self.workloads if of_workload else self.traces
                target.append(Record(relative, place, line.number, line.trace))

    def traces_by_workload(self) -> Counter[tuple[str, str]]:
        """Return how many traces refer to each workload, by definition and uuid."""
        return Counter(record.identity for record in self.traces)


def named_blobs(root: Path, records: Iterable[Record]) -> set[Path]:
    """Return the tensor files that records name, whether or not they are there."""
    names = {name for record in records for name in blob_names(record.workload)}
    return set(_resolved(root, names))


def blob_names(workload: Workload) -> Iterator[str]:
    """Yield the tensor files of a workload as it names them, one for each input."""
    for spec in workload.inputs.values():
        if isinstance(spec, SafetensorsInput):
            yield spec.path


def _resolved(root: Path, names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        try:
            yield resolve_blob(root, name)
        except UnsafePathError:  # `fib validate` tells of it
            continue
