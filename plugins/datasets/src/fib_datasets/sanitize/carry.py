"""Taking workloads out of a dataset while others may add some."""

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
    inputs = chain.from_iterable(record.workload.inputs.values() for record in records)
    found: set[Path] = set()
    for name in {spec.path for spec in inputs if isinstance(spec, SafetensorsInput)}:
        with suppress(UnsafePathError):  # `fib validate` tells of it
            found.add(resolve_blob(root, name))
    return found


def find_duplicates(
    records: Sequence[Record], tensors: RawTensors, traces: Counter[tuple[str, str]]
) -> Iterator[tuple[Record, Record]]:
    """Yield each workload that is to go, and the equal one that stays.

    The first one stays; if there are some that traces refer to, the first of those.

    Parameters
    ----------
    records : sequence of Record
        Workloads.
    tensors : RawTensors
        Reads stored tensors. Only those of workloads that are equal otherwise are read.
    traces : counter
        How many traces refer to each workload, by definition and uuid.
    """
    for group in _groups(records, lambda _: "tensor"):
        for equal in _groups(group, lambda spec: _content(spec, tensors)):
            stays = next((one for one in equal if traces[one.identity]), equal[0])
            yield from ((one, stays) for one in equal if one is not stays)


def _groups(
    records: Iterable[Record], tell: Callable[[SafetensorsInput], Any]
) -> Iterator[list[Record]]:
    """Yield the groups of more than one."""
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
    """Return the digest of a tensor; its place if it cannot be read: the same place is equal."""
    return tensors.digest(spec) or [spec.path, spec.tensor_key]


class Verdict(NamedTuple):
    """A line, and why it is to go.

    Parameters
    ----------
    record : Record
        The line.
    finding : Finding
        Why.
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
    """Return what is to be taken out, and what would be, if no traces referred to it.

    Parameters
    ----------
    root : Path
        The dataset.
    definitions : mapping of str to Definition
        By name. Workloads of others are only looked at for duplicates.
    survey : Survey
        What is in the dataset.
    limits : Limits
        How large a workload may be.
    with_traces : bool
        Whether workloads that traces refer to go, too, and those traces with them.
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
        # Of the same uuid: its traces refer to the one that stays just as well.
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
            message = f"of workload {cause.uuid}, which is taken out ({cause.kind.value})"
            yield _verdict(Reason.TRACE, message, record)


def unused_blobs(root: Path, survey: Survey, dropped: Sequence[Verdict]) -> list[Finding]:
    """Return the tensor files that nothing names once some lines are gone.

    A file of the last hour, other than those of the lines that go, may belong to a workload that a
    tracer is just about to add, and is left alone. If a line cannot be read, it might name any
    file, so that there are none.

    Parameters
    ----------
    root : Path
        The dataset.
    survey : Survey
        What is in it.
    dropped : sequence of Verdict
        What is taken out of it.
    """
    if survey.unread:
        return []
    gone = {(one.record.path, one.record.place) for one in dropped}
    records = [*survey.workloads, *survey.traces]
    stay = named_blobs(root, (one for one in records if (one.path, one.place) not in gone))
    went = named_blobs(root, (one.record for one in dropped))
    message = "no workload and no trace names this file"
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
    """What was, or would be, taken out.

    Parameters
    ----------
    root : Path
        The dataset.
    dropped : tuple of Finding
        Lines and files; they lie in `backup`, if it is not a dry run.
    kept : tuple of Finding
        Workloads that stay because traces refer to them.
    workloads : int
        Number of workloads before.
    unread : tuple of Issue
        Lines that cannot be read; nothing is known of them.
    errors : tuple of DataError
        Definitions that cannot be read; their workloads are only looked at for duplicates.
    backup : Path, optional
        The folder that took them; None if there was nothing to take.
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
    """Take duplicate, degenerate and outsized workloads out of a dataset, and unused tensors.

    Nothing is deleted: all of it goes to a folder ``sanitize_backup_<time>`` of the dataset. Other
    processes may append meanwhile. To do it twice does nothing the second time.

    Parameters
    ----------
    root : Path
        The dataset.
    limits : Limits
        How large a workload may be; by default of any size.
    with_traces : bool
        Whether workloads that traces refer to go, too, and those traces with them.
    dry_run : bool
        Change nothing, and take no lock.

    Raises
    ------
    DatasetNotFoundError, SelectionError
        If there is no such folder, or none of those of a dataset is in it.
    StorageError
        If something cannot be written; what was not moved yet stays where it was.
    """
    layout.require_dataset(root)
    problems = Problems("collect")
    definitions = load_definitions(root, problems)
    # The lock of `fib doctor`: two that rewrite files by what they have read would disturb.
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
        if not path.is_symlink():  # it would become a file of its own
            with locked(tracing_lock(path)), locked(path):
                yield from _rewrite(root, path, verdicts, backup)


def _rewrite(root: Path, path: Path, verdicts: Sequence[Verdict], backup: Backup) -> list[Verdict]:
    """Take lines out of a file, as far as they still stand where they stood."""
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
    """Return a line as it was; a document of a file that was not of lines becomes one."""
    return line.raw + b"\n" if line.number is None else line.raw


def _take_blobs(root: Path, found: Sequence[Finding], backup: Backup) -> Iterator[Finding]:
    """Move tensor files, unless a tracer has just found a use for one."""
    groups: dict[Optional[Path], list[Finding]] = defaultdict(list)
    for one in found:
        groups[_workloads_of(root, one.path)].append(one)
    for workloads, group in groups.items():
        # A few at a time: a tracer waits for the lock some seconds only.
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
    """Return the file whose workloads name a tensor file, by the layout of a dataset."""
    parts = blob.parts
    if len(parts) != 5 or parts[:2] != (layout.BLOB, layout.WORKLOADS):
        return None
    return root / layout.WORKLOADS / parts[2] / f"{parts[3]}.jsonl"
