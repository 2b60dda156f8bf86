"""Removal of workloads from a dataset, while other processes may append."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fib_datasets.repair.examine import LineReader, is_young
from fib_datasets.repair.mend import Backup
from fib_datasets.sanitize.rules import Finding, Limits, RawTensors, Reason, Subject, judge
from flashinfer_bench.data import layout
from flashinfer_bench.data.blobs import resolve_blob
from flashinfer_bench.data.loader import Problems, load_definitions
from flashinfer_bench.data.storage import locked, replace_file
from flashinfer_bench.data.workload import SafetensorsInput
from flashinfer_bench.errors import UnsafePathError
from flashinfer_bench.tracing.store import tracing_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fib_datasets.repair.examine import Issue, Line
    from flashinfer_bench.data.definition import Definition
    from flashinfer_bench.data.trace import Trace
    from flashinfer_bench.data.workload import InputSpec, Workload
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
    trace : Trace
        Its content.
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
        for equal in _groups(group, lambda spec: _content(spec, tensors)):
            stays = next((one for one in equal if traces[one.identity]), equal[0])
            yield from ((one, stays) for one in equal if one is not stays)


def _groups(
    records: Iterable[Record], tell: Callable[[SafetensorsInput], Any]
) -> Iterator[list[Record]]:
    """Yield the groups with several members."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[_key(record, tell)].append(record)
    return (group for group in found.values() if len(group) > 1)


def _key(record: Record, tell: Callable[[SafetensorsInput], Any]) -> str:
    workload = record.workload
    tolerance = workload.tolerance and workload.tolerance.model_dump(mode="json")
    inputs = {name: _told(spec, tell) for name, spec in workload.inputs.items()}
    return json.dumps([record.trace.definition, workload.axes, inputs, tolerance], sort_keys=True)


def _told(spec: InputSpec, tell: Callable[[SafetensorsInput], Any]) -> Any:
    return tell(spec) if isinstance(spec, SafetensorsInput) else spec.model_dump(mode="json")


def _content(spec: SafetensorsInput, tensors: RawTensors) -> Any:
    """Return the digest of a tensor, or path and key if it cannot be read."""
    return tensors.digest(spec) or [spec.path, spec.tensor_key]


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


def make_plan(
    root: Path,
    definitions: Mapping[str, Definition],
    survey: Survey,
    limits: Limits,
    *,
    with_traces: bool,
) -> tuple[tuple[Verdict, ...], tuple[Verdict, ...]]:
    """Return what to remove, and what is kept only because it has traces.

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
    with_traces : bool
        Whether to remove workloads that have traces, with those traces.
    """
    found = _judge_all(root, definitions, survey, limits)
    drop = tuple(one for one in found if with_traces or not one.finding.traces)
    keep = tuple(one for one in found if not with_traces and one.finding.traces)
    if with_traces:
        drop += tuple(_traces_of(drop, survey))
    return drop, keep


def _judge_all(
    root: Path, definitions: Mapping[str, Definition], survey: Survey, limits: Limits
) -> list[Verdict]:
    tensors = RawTensors(root)
    traces = survey.traces_by_workload()
    found: list[Verdict] = []
    sound: list[Record] = []
    for record in survey.workloads:
        definition = definitions.get(record.trace.definition)
        reason = None
        if definition is not None:
            reason = judge(Subject.read(definition, record.workload, tensors), limits)
        if reason is None:
            sound.append(record)
        else:
            found.append(_verdict(*reason, record, traces[record.identity]))
    for record, stays in find_duplicates(sound, tensors, traces):
        place = str(stays.path) if stays.line is None else f"{stays.path}:{stays.line}"
        message = f"equals {stays.workload.uuid} at {place}"
        # With the same uuid, traces also refer to the one that is kept.
        count = 0 if record.identity == stays.identity else traces[record.identity]
        found.append(_verdict(Reason.DUPLICATE, message, record, count))
    return sorted(found, key=lambda one: (one.record.path, one.record.place))


def _verdict(reason: Reason, message: str, record: Record, traces: int = 0) -> Verdict:
    definition, uuid = record.identity
    finding = Finding(reason, record.path, message, record.line, definition, uuid, traces)
    return Verdict(record, finding)


def _traces_of(drop: Sequence[Verdict], survey: Survey) -> Iterator[Verdict]:
    gone = {one.record.identity: one.finding for one in drop if one.finding.traces}
    for record in survey.traces:
        cause = gone.get(record.identity)
        if cause is not None:
            message = f"of workload {cause.uuid}, which is removed ({cause.kind.value})"
            yield _verdict(Reason.TRACE, message, record)


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
        drop, keep = make_plan(root, definitions, survey, limits, with_traces=with_traces)
        backup = Backup(root, BACKUP_PREFIX)
        taken = drop if dry_run else tuple(_take_lines(root, drop, backup))
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
    files: dict[Path, list[Verdict]] = defaultdict(list)
    for one in drop:
        files[one.record.path].append(one)
    for relative, verdicts in files.items():
        path = root / relative
        if not path.is_symlink():  # rewriting would replace the link by a file
            with locked(tracing_lock(path)), locked(path):
                yield from _rewrite(root, path, verdicts, backup)


def _rewrite(root: Path, path: Path, verdicts: Sequence[Verdict], backup: Backup) -> list[Verdict]:
    """Move lines out of a file, if they are unchanged since they were read."""
    lines = list(LineReader(root).read(path))
    wanted = {one.record.place: one for one in verdicts}
    gone = {
        place: wanted[place]
        for place, line in enumerate(lines)
        if place in wanted and line.trace == wanted[place].record.trace
    }
    if gone:
        taken = list(gone.values())
        backup.add_lines([one.finding for one in taken], [lines[place].raw for place in gone])
        left = [_whole(line) for place, line in enumerate(lines) if place not in gone]
        replace_file(path, b"".join(left))
    return list(gone.values())


def _whole(line: Line) -> bytes:
    """Return a line unchanged; a JSON document over several lines becomes one line."""
    return line.raw + b"\n" if line.number is None else line.raw


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
