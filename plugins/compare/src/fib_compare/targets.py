"""Recorded runs to replay: lines of files, or those of a dataset that match filters."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data import Trace, layout
from flashinfer_bench.data.jsonl import read_records
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.errors import (
    ConfigError,
    DataError,
    DatasetNotFoundError,
    SelectionError,
    StorageError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class Target:
    """One recorded run.

    Attributes
    ----------
    trace : Trace, optional
        The trace; None if the line has none.
    path : Path, optional
        Its file, if one was given.
    line : int, optional
        Its line number, from 1.
    problem : str
        Why there is no trace.
    """

    trace: Optional[Trace]
    path: Optional[Path] = None
    line: Optional[int] = None
    problem: str = ""

    @property
    def place(self) -> str:
        """File and line, as far as known."""
        if self.path is None:
            return ""
        return f"{self.path}:{self.line}" if self.line is not None else str(self.path)


def split_place(text: str) -> tuple[Path, Optional[int]]:
    """Split ``FILE:LINE``; a file with exactly this name takes precedence.

    Raises
    ------
    ConfigError
        If there is no such file, or the line is not a positive number.
    """
    path = Path(text)
    if path.is_file():
        return path, None
    if path.is_dir():
        raise ConfigError(f"{text!r} is a folder", hint="give a dataset with --local")
    name, colon, number = text.rpartition(":")
    if not colon or not Path(name).is_file():
        raise ConfigError(
            f"no file {text!r}",
            hint="give a trace file, or one of its lines as FILE:LINE; give a dataset with --local",
        )
    if not (number.isascii() and number.isdecimal()) or not int(number[:9]):
        raise ConfigError(f"{text!r}: invalid line {number!r}", hint="line numbers start at 1")
    return Path(name), int(number)


def dataset_of(path: Path) -> Path:
    """Return the dataset of a file: the nearest folder above it with definitions.

    Raises
    ------
    DatasetNotFoundError
        If there is none.
    """
    for folder in path.resolve().parents:
        if (folder / layout.DEFINITIONS).is_dir():
            return folder
    raise DatasetNotFoundError(
        f"{path} is not in a dataset: no folder above it contains {layout.DEFINITIONS!r}",
        hint="give the dataset with --local",
    )


def read_targets(path: Path, line: Optional[int] = None) -> list[Target]:
    """Return the runs in a file, or the one in a given line.

    Unreadable lines become targets without a trace; workloads are left out.

    Raises
    ------
    SelectionError
        If there are no runs, or no such line.
    StorageError
        If the file cannot be read.
    """
    reader = TraceReader()
    try:
        records = list(read_records(path))
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    found = [_target(reader, path, *one) for one in records if line in (None, one[0])]
    runs = [one for one in found if one.trace is None or not one.trace.is_workload_trace()]
    if not runs:
        where = str(path) if line is None else f"{path}:{line}"
        what = "is a workload, not a run" if found else "has no run"
        raise SelectionError(f"{where} {what}", hint="runs are in the folder traces of a dataset")
    return runs


def _target(reader: TraceReader, path: Path, line: Optional[int], text: bytes) -> Target:
    try:
        return Target(reader.read(text, path=path, line=line), path, line)
    except DataError as error:
        field = f"{error.field}: " if error.field else ""
        return Target(None, path, line, f"not a trace: {field}{error.message}")


def fits(
    trace: Trace,
    definitions: Sequence[str] = (),
    solutions: Sequence[str] = (),
    workloads: Sequence[str] = (),
) -> bool:
    """Return whether a trace matches; `workloads` are beginnings of uuids, or empty for all."""
    return (
        (not definitions or trace.definition in definitions)
        and (not solutions or trace.solution in solutions)
        and (not workloads or trace.workload.uuid.startswith(tuple(workloads)))
    )


def matching(
    targets: Iterable[Target],
    definitions: Sequence[str] = (),
    solutions: Sequence[str] = (),
    workloads: Sequence[str] = (),
) -> list[Target]:
    """Return the targets that match; unreadable ones are kept.

    Raises
    ------
    SelectionError
        If nothing matches. Names that no run has are reported as unknown.
    """
    filters = {"definitions": definitions, "solutions": solutions, "workloads": workloads}
    targets = [*targets]
    found = [one for one in targets if one.trace is None or fits(one.trace, **filters)]
    if not found:
        known = [target.trace for target in targets if target.trace is not None]
        unknown = tuple(
            name
            for kind, names in filters.items()
            for name in names
            if not any(fits(one, **{kind: (name,)}) for one in known)
        )
        raise SelectionError(
            "no recorded runs to replay" + f" of {', '.join(unknown)}" * bool(unknown),
            hint="check the filters; 'fib report summary' counts the runs of a dataset",
            unknown=unknown if known else (),
        )
    return found


def latest(targets: Sequence[Target], count: Optional[int] = None) -> list[Target]:
    """Return targets in the order of recording, or the last `count` of them."""
    in_order = sorted(targets, key=_recorded_at)
    return in_order if count is None else in_order[-count:]


def _recorded_at(target: Target) -> datetime:
    evaluation = target.trace.evaluation if target.trace is not None else None
    text = evaluation.timestamp if evaluation is not None else ""
    try:
        # Python 3.10 does not read the Z that other tools write for UTC.
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return datetime.min.replace(tzinfo=timezone.utc)
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
