"""Reading and checking some files of a dataset: the work that several processes can share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from flashinfer_bench.data import Solution, layout
from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.data.jsonl import is_torn, read_records
from flashinfer_bench.data.loader import load_definition, paused_gc
from flashinfer_bench.errors import DataError
from flashinfer_bench.validate.checks.baseline import BaselineCheck
from flashinfer_bench.validate.checks.benchmark import BenchmarkCheck
from flashinfer_bench.validate.checks.blobs import BlobCheck
from flashinfer_bench.validate.checks.python import check_python
from flashinfer_bench.validate.checks.traces import TraceCheck
from flashinfer_bench.validate.checks.workloads import WorkloadCheck
from flashinfer_bench.validate.findings import Finding, Place
from flashinfer_bench.validate.records import Record, SolutionHead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from flashinfer_bench.data import Definition
    from flashinfer_bench.validate.records import Contents, RecordCheck

RECORD_CHECKS: dict[str, Callable[[Contents], RecordCheck]] = {
    "workloads": WorkloadCheck,
    "blobs": BlobCheck,
    "traces": TraceCheck,
    "baseline": BaselineCheck,
    "benchmark": BenchmarkCheck,
}


@dataclass
class FileScan:
    """What came of one file of a definition or solution."""

    place: Place
    found: Union[Definition, SolutionHead, None] = None
    findings: list[Finding] = field(default_factory=list)


@dataclass
class RecordScan:
    """What came of one file of workloads and traces."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def scan_files(root: Path, paths: Sequence[Path]) -> list[FileScan]:
    """Read definitions and solutions.

    Parameters
    ----------
    root : Path
        The dataset.
    paths : sequence of Path
        Files of the folders of definitions and solutions.
    """
    with paused_gc():
        return [_scan_file(root, path) for path in paths]


def _scan_file(root: Path, path: Path) -> FileScan:
    relative = path.relative_to(root)
    folder = relative.parts[0]
    scan = FileScan(Place(folder, relative))
    try:
        if folder == layout.DEFINITIONS:
            scan.found = load_definition(path, root)
        else:
            solution = decode(Solution, path.read_bytes(), path=path)
            scan.found = SolutionHead(solution.name, solution.definition, solution.author)
            scan.findings += check_python(solution, scan.place)
    except DataError as error:
        scan.findings.append(scan.place.refused(error))
    except OSError as error:
        scan.findings.append(scan.place.error(f"cannot be read: {error.strerror or error}"))
    return scan


def scan_records(
    contents: Contents, checks: Sequence[str], paths: Sequence[Path]
) -> list[RecordScan]:
    """Read files of workloads and traces, record by record: no file's traces are all in memory.

    Parameters
    ----------
    contents : Contents
        The definitions and solutions.
    checks : sequence of str
        Which of `RECORD_CHECKS` to make.
    paths : sequence of Path
        The files.
    """
    with paused_gc():
        return [_scan_records(contents, checks, path) for path in paths]


def _scan_records(contents: Contents, checks: Sequence[str], path: Path) -> RecordScan:
    relative = path.relative_to(contents.root)
    place = Place(relative.parts[0], relative)
    scan = RecordScan()
    made = {name: RECORD_CHECKS[name](contents) for name in checks}
    try:
        for record in _read(path, place, scan.findings):
            kind = "workloads" if record.trace.is_workload_trace() else "traces"
            scan.counts[kind] += 1
            for check in made.values():
                scan.findings += check.visit(record)
    except OSError as error:
        scan.findings.append(place.error(f"cannot be read: {error.strerror or error}"))
    scan.facts = {name: check.facts() for name, check in made.items()}
    return scan


def _read(path: Path, place: Place, findings: list[Finding]) -> Iterator[Record]:
    from flashinfer_bench.data.trace_reader import TraceReader

    reader = TraceReader()
    for line, text in read_records(path):
        at = Place(place.check, place.path, line)
        try:
            yield Record(reader.read(text, path=path, line=line), at)
        except DataError as error:
            findings.append(at.refused(error))
    if is_torn(path.read_bytes().rpartition(b"\n")[2]):
        hint = "the next run that appends to this file moves the rest aside"
        findings.append(place.warning("its last line was never finished", hint=hint))
