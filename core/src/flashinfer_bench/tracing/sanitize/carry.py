"""Taking workloads out of a dataset while others may add some."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data import layout
from flashinfer_bench.data.loader import Problems, load_definitions
from flashinfer_bench.data.repair.backup import Backup
from flashinfer_bench.data.repair.lines import LineReader
from flashinfer_bench.data.storage import locked, replace_file
from flashinfer_bench.errors import DatasetNotFoundError
from flashinfer_bench.tracing.sanitize.findings import Finding, Limits
from flashinfer_bench.tracing.sanitize.plan import make_plan, unused_blobs
from flashinfer_bench.tracing.sanitize.survey import Survey
from flashinfer_bench.tracing.store.store import tracing_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from flashinfer_bench.data.repair.issues import Issue
    from flashinfer_bench.data.repair.lines import Line
    from flashinfer_bench.errors import DataError
    from flashinfer_bench.tracing.sanitize.plan import Verdict

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
    root: Path,
    limits: Limits = NO_LIMITS,
    *,
    with_traces: bool = False,
    dry_run: bool = False,
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
    DatasetNotFoundError
        If there is no such folder.
    StorageError
        If something cannot be written; what was not moved yet stays where it was.
    """
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise DatasetNotFoundError(f"no dataset: {root} {what}", hint="name a dataset folder")
    problems = Problems("collect")
    definitions = load_definitions(root, problems)
    # The lock of `fib doctor`: two that rewrite files by what they have read would disturb.
    with nullcontext() if dry_run else locked(root / "doctor"):
        survey = Survey.of(root)
        plan = make_plan(root, definitions, survey, limits, with_traces=with_traces)
        backup = Backup(root, BACKUP_PREFIX)
        taken = plan.drop if dry_run else tuple(_take_lines(root, plan.drop, backup))
        blobs = unused_blobs(root, survey, taken)
        if not dry_run:
            blobs = list(_take_blobs(root, blobs, backup))
    return Cleaned(
        root,
        (*(one.finding for one in taken), *blobs),
        tuple(one.finding for one in plan.keep),
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
