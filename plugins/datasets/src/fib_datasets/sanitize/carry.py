"""Removal of workloads from a dataset, while other processes may append."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fib_datasets.repair.examine import LineReader, is_young, where
from fib_datasets.repair.mend import Backup
from fib_datasets.sanitize.rules import Finding, Limits, RawTensors, Reason, judge
from flashinfer_bench.data import layout
from flashinfer_bench.data.blobs import resolve_blob
from flashinfer_bench.data.loader import Problems, load_definitions
from flashinfer_bench.data.storage import locked
from flashinfer_bench.data.workload import SafetensorsInput
from flashinfer_bench.errors import UnsafePathError
from flashinfer_bench.tracing.store import tracing_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fib_datasets.repair.examine import Issue
    from flashinfer_bench.data.definition import Definition
    from flashinfer_bench.data.trace import Trace
    from flashinfer_bench.data.workload import Workload
    from flashinfer_bench.errors import DataError


class Record(NamedTuple):
    """A line of a file.

    Parameters
    ----------
    path : Path
        The file, relative to the dataset.
    place : int
        Index of the line in the file, from 0, blank lines included.
    line : int or None
        The line number, from 1; None if the file is one JSON document.
    digest : bytes
        Digest of the line.
    trace : Trace
        Its content.
    """

    path: Path
    place: int
    line: Optional[int]
    digest: bytes
    trace: Trace

    @property
    def workload(self) -> Workload:
        """The workload, also of a trace."""
        return self.trace.workload

    @property
    def identity(self) -> tuple[str, str]:
        """Definition and uuid, which a trace shares with its workload."""
        return self.trace.definition, self.trace.workload.uuid


class Survey(NamedTuple):
    """The records of a dataset.

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
        folders = root / layout.WORKLOADS, root / layout.TRACES
        files = (layout.files(folder, ".jsonl", ".json") for folder in folders)
        for path in chain.from_iterable(files):
            at = path.relative_to(root)
            for place, (number, digest, trace, problem) in enumerate(reader.read(path)):
                if problem is not None:
                    found.unread.append(problem)
                elif trace is not None:
                    records = found.workloads if trace.is_workload_trace() else found.traces
                    records.append(Record(at, place, number, digest, trace))
        return found


def named_blobs(root: Path, records: Iterable[Record]) -> set[Path]:
    """Return the tensor files that records refer to, existing or not."""
    inputs = chain.from_iterable(record.workload.inputs.values() for record in records)
    found: set[Path] = set()
    for name in {spec.path for spec in inputs if isinstance(spec, SafetensorsInput)}:
        with suppress(UnsafePathError):  # `fib validate` reports it
            found.add(resolve_blob(root, name))
    return found


def find_duplicates(
    records: Sequence[Record], tensors: RawTensors, traces: Counter[tuple[str, str]]
) -> Iterator[tuple[Record, Record]]:
    """Yield each duplicate workload, and the equal one to keep.

    Of equal workloads the first one with traces is kept, or else the first one.

    Parameters
    ----------
    records : sequence of Record
        Workloads.
    tensors : RawTensors
        Reads stored tensors, only of workloads that are otherwise equal.
    traces : counter
        Number of traces of each workload, by definition and uuid.
    """
    for group in _groups(records, lambda _: "tensor"):
        for equal in _groups(group, lambda spec: tensors.digest(spec) or spec.model_dump()):
            stays = next((one for one in equal if traces[one.identity]), equal[0])
            yield from ((one, stays) for one in equal if one is not stays)


def _groups(
    records: Iterable[Record], describe: Callable[[SafetensorsInput], Any]
) -> Iterator[list[Record]]:
    """Yield the groups with several members, which are equal if their tensors are described so."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        workload = record.workload
        inputs = {
            name: describe(spec)
            if isinstance(spec, SafetensorsInput)
            else spec.model_dump(mode="json")
            for name, spec in workload.inputs.items()
        }
        tolerance = workload.tolerance and workload.tolerance.model_dump(mode="json")
        content = [record.trace.definition, workload.axes, inputs, tolerance]
        found[json.dumps(content, sort_keys=True)].append(record)
    return (group for group in found.values() if len(group) > 1)


class Verdict(NamedTuple):
    """A line to remove, and why.

    Parameters
    ----------
    record : Record
        The line.
    finding : Finding
        The reason.
    """

    record: Record
    finding: Finding


def find_useless(
    root: Path, definitions: Mapping[str, Definition], survey: Survey, limits: Limits
) -> list[Verdict]:
    """Return the workloads that may be removed, in the order of files and lines.

    Parameters
    ----------
    root : Path
        The dataset.
    definitions : mapping of str to Definition
        By name. Workloads of other definitions are only checked for duplicates.
    survey : Survey
        The records of the dataset.
    limits : Limits
        The largest allowed workload.
    """
    tensors = RawTensors(root)
    traces = Counter(record.identity for record in survey.traces)  # by workload
    found: list[Verdict] = []
    sound: list[Record] = []
    for record in survey.workloads:
        definition = definitions.get(record.trace.definition)
        reason = None
        if definition is not None:
            reason = judge(definition, record.workload, tensors, limits)
        if reason is None:
            sound.append(record)
        else:
            found.append(_verdict(*reason, record, traces[record.identity]))
    for record, stays in find_duplicates(sound, tensors, traces):
        message = f"equals {stays.workload.uuid} at {where(stays.path, stays.line)}"
        # With the same uuid, traces also refer to the one that is kept.
        count = 0 if record.identity == stays.identity else traces[record.identity]
        found.append(_verdict(Reason.DUPLICATE, message, record, count))
    return sorted(found, key=lambda one: (one.record.path, one.record.place))


def _verdict(reason: Reason, message: str, record: Record, traces: int = 0) -> Verdict:
    definition, uuid = record.identity
    finding = Finding(reason, record.path, message, record.line, definition, uuid, traces)
    return Verdict(record, finding)


def _traces_of(drop: Sequence[Verdict], survey: Survey) -> list[Verdict]:
    gone = {one.record.identity: one.finding for one in drop if one.finding.traces}
    found = []
    for record in survey.traces:
        cause = gone.get(record.identity)
        if cause is not None:
            message = f"of workload {cause.uuid}, which is removed ({cause.kind.value})"
            found.append(_verdict(Reason.TRACE, message, record))
    return found


def unused_blobs(root: Path, survey: Survey, dropped: Sequence[Verdict]) -> list[Finding]:
    """Return the tensor files that are unused once some lines are removed.

    Files of the last hour, other than those of the removed lines, are kept, because a tracer may be
    about to add their workload. If a line cannot be read, it might refer to any file, so nothing is
    returned.

    Parameters
    ----------
    root : Path
        The dataset.
    survey : Survey
        The records of the dataset.
    dropped : sequence of Verdict
        The removed lines.
    """
    if survey.unread:
        return []
    gone = {(one.record.path, one.record.place) for one in dropped}
    records = [*survey.workloads, *survey.traces]
    stay = named_blobs(root, (one for one in records if (one.path, one.place) not in gone))
    went = named_blobs(root, (one.record for one in dropped))
    message = "no workload or trace refers to this file"
    return [
        Finding(Reason.UNUSED_BLOB, path.relative_to(root), message)
        for path in layout.files(root / layout.BLOB, ".safetensors")
        if (real := path.resolve()) not in stay and (real in went or not is_young(path))
    ]


BACKUP_PREFIX = "sanitize_backup_"
_BLOBS_AT_ONCE = 64
NO_LIMITS = Limits()


@dataclass(frozen=True)
class Cleaned:
    """What was removed, or would be.

    Parameters
    ----------
    root : Path
        The dataset.
    dropped : tuple of Finding
        Removed lines and files, which are in `backup` unless it is a dry run.
    kept : tuple of Finding
        Workloads that are kept because they have traces.
    workloads : int
        Number of workloads before.
    unread : tuple of Issue
        Lines that cannot be read, and were not examined.
    errors : tuple of DataError
        Definitions that cannot be read; their workloads are only checked for duplicates.
    backup : Path, optional
        The backup folder; None if nothing was moved.
    """

    root: Path
    dropped: tuple[Finding, ...]
    kept: tuple[Finding, ...]
    workloads: int
    unread: tuple[Issue, ...]
    errors: tuple[DataError, ...]
    backup: Optional[Path]


def sanitize(
    root: Path, limits: Limits = NO_LIMITS, *, with_traces: bool = False, dry_run: bool = False
) -> Cleaned:
    """Remove duplicate, degenerate and outsized workloads and unused tensors from a dataset.

    Nothing is deleted: everything is moved to a folder ``sanitize_backup_<time>`` of the dataset.
    Other processes may append in the meantime. A second call changes nothing.

    Parameters
    ----------
    root : Path
        The dataset.
    limits : Limits
        The largest allowed workload; by default any size.
    with_traces : bool
        Whether to remove workloads that have traces, with those traces.
    dry_run : bool
        Change nothing, and take no lock.

    Raises
    ------
    DatasetNotFoundError, SelectionError
        If there is no such folder, or it is not a dataset.
    StorageError
        If something cannot be written; what was not moved yet stays in place.
    """
    layout.require_dataset(root)
    problems = Problems("collect")
    definitions = load_definitions(root, problems)
    # The lock of `fib doctor`, because only one process at a time may rewrite files.
    with nullcontext() if dry_run else locked(root / "doctor"):
        survey = Survey.of(root)
        drop = find_useless(root, definitions, survey, limits)
        keep: list[Verdict] = []
        if with_traces:
            drop += _traces_of(drop, survey)
        else:
            keep = [one for one in drop if one.finding.traces]
            drop = [one for one in drop if not one.finding.traces]
        backup = Backup(root, BACKUP_PREFIX)
        taken = drop if dry_run else list(_take_lines(root, drop, backup))
        blobs = unused_blobs(root, survey, taken)
        if not dry_run:
            blobs = list(_take_blobs(root, blobs, backup))
    return Cleaned(
        root,
        (*(one.finding for one in taken), *blobs),
        tuple(one.finding for one in keep),
        len(survey.workloads),
        tuple(survey.unread),
        tuple(problems.errors),
        backup.folder,
    )


def _take_lines(root: Path, drop: Sequence[Verdict], backup: Backup) -> Iterator[Verdict]:
    files: dict[Path, dict[int, Verdict]] = defaultdict(dict)
    for one in drop:
        files[one.record.path][one.record.place] = one
    for path, verdicts in files.items():
        wanted = {place: (one.record.digest, one.finding) for place, one in verdicts.items()}
        with locked(tracing_lock(root / path)):
            yield from [verdicts[place] for place in backup.take_lines(path, wanted)]


def _take_blobs(root: Path, found: Sequence[Finding], backup: Backup) -> Iterator[Finding]:
    """Move tensor files, except those that a new workload uses."""
    groups: dict[Optional[Path], list[Finding]] = defaultdict(list)
    for one in found:
        groups[_workloads_of(root, one.path)].append(one)
    for workloads, group in groups.items():
        # A few at a time, because a tracer waits only a few seconds for the lock.
        for begin in range(0, len(group), _BLOBS_AT_ONCE):
            some = group[begin : begin + _BLOBS_AT_ONCE]
            if workloads is None or not workloads.exists():
                yield from (one for one in some if backup.move(one))
                continue
            with locked(tracing_lock(workloads)):
                text = workloads.read_bytes()
                some = [one for one in some if one.path.name.encode() not in text]
                yield from [one for one in some if backup.move(one)]


def _workloads_of(root: Path, blob: Path) -> Optional[Path]:
    """Return the workload file to which a tensor file belongs in the layout of a dataset."""
    parts = blob.parts
    if len(parts) != 5 or parts[:2] != (layout.BLOB, layout.WORKLOADS):
        return None
    return root / layout.WORKLOADS / parts[2] / f"{parts[3]}.jsonl"
