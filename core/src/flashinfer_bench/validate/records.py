"""Inputs and results of checks: contents, records, places and findings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations of Finding at run time
from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flashinfer_bench.data import Definition, Solution, Trace
    from flashinfer_bench.errors import DataError


class Severity(str, Enum):
    """Severity of a finding.

    A record with an error cannot be used; one with a warning can, but is probably wrong. A note is
    about optional content, and never affects the exit code.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One problem, or possible problem, of a dataset.

    Parameters
    ----------
    severity : Severity
        Its severity.
    check : str
        Name of the check that found it.
    path : Path
        File or folder, relative to the dataset.
    message : str
        What is wrong and what is allowed.
    line : int, optional
        Line in the file, from 1.
    field : str, optional
        Field of the record, dotted.
    hint : str, optional
        What to do next.
    """

    severity: Severity
    check: str
    path: Path
    message: str
    line: Optional[int] = None
    field: Optional[str] = None
    hint: Optional[str] = None

    @property
    def where(self) -> str:
        """The place as ``file:line: field``; unknown parts are left out."""
        place = Place(self.check, self.path, self.line).where
        return f"{place}: {self.field}" if self.field else place


class Place(NamedTuple):
    """A place in a dataset, with methods that make findings about it.

    Attributes
    ----------
    check : str
        Name of the check.
    path : Path
        File or folder, relative to the dataset.
    line : int, optional
        Line in the file.
    """

    check: str
    path: Path
    line: Optional[int] = None

    @property
    def where(self) -> str:
        """The place as ``file:line``."""
        return str(self.path) if self.line is None else f"{self.path}:{self.line}"

    def error(self, message: str, field: str = "", hint: Optional[str] = None) -> Finding:
        """Return a finding about something that cannot be used."""
        return Finding(Severity.ERROR, *self[:2], message, self.line, field or None, hint)

    def warning(self, message: str, field: str = "", hint: Optional[str] = None) -> Finding:
        """Return a finding about something that is probably wrong."""
        return Finding(Severity.WARNING, *self[:2], message, self.line, field or None, hint)

    def note(self, message: str, field: str = "", hint: Optional[str] = None) -> Finding:
        """Return a finding about optional content."""
        return Finding(Severity.NOTE, *self[:2], message, self.line, field or None, hint)

    def refused(self, error: DataError) -> Finding:
        """Return a finding for an error of the data layer."""
        at = self._replace(line=self.line or error.line)
        return at.error(error.message, error.field or "", error.hint)


class Record(NamedTuple):
    """A workload or trace, with its place."""

    trace: Trace
    place: Place


class SolutionHead(NamedTuple):
    """The fields of a solution that other records refer to."""

    name: str
    definition: str
    author: str


class TraceHead(NamedTuple):
    """The fields of a workload or trace that are compared with others.

    Attributes
    ----------
    definition : str
        Name of the definition.
    uuid : str
        Uuid of the workload.
    solution : str or None
        Name of the solution; None for a workload.
    mark : str
        Status of a run; content of a workload.
    """

    definition: str
    uuid: str
    solution: Optional[str]
    mark: str

    @classmethod
    def of(cls, trace: Trace) -> TraceHead:
        """Return the head of a workload or trace."""
        run, content = trace.evaluation, trace.workload
        if run is not None:
            mark: str = run.status  # an enum member, so that no text is stored
        else:
            mark = json.dumps(content.model_dump(mode="json"), sort_keys=True)
        return cls(trace.definition, content.uuid, trace.solution, mark)


@dataclass(frozen=True)
class Contents:
    """The contents of a dataset, as checks get them.

    Parameters
    ----------
    root : Path
        The dataset.
    definition_files, solution_files : tuple of (Definition or SolutionHead, Place)
        All readable files, including duplicates.
    traces : tuple of (TraceHead, Place)
        All readable workloads and traces, by file and line; empty if no check needs them.
    unread : frozenset of str
        Names of the definitions whose files cannot be read; they are not reported as missing.
    """

    root: Path
    definition_files: tuple[tuple[Definition, Place], ...] = ()
    solution_files: tuple[tuple[SolutionHead, Place], ...] = ()
    traces: tuple[tuple[TraceHead, Place], ...] = ()
    unread: frozenset[str] = frozenset()

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """The definitions by name; of duplicates the first, like readers."""
        return {one.name: one for one, _ in reversed(self.definition_files)}

    @cached_property
    def solutions(self) -> dict[str, SolutionHead]:
        """The solutions by name."""
        return {one.name: one for one, _ in reversed(self.solution_files)}


class RecordCheck(NamedTuple):
    """A check that gets records one by one, possibly in another process.

    Attributes
    ----------
    visit : function
        Called with each workload or trace, and the contents of the dataset without traces; yields
        findings about this record.
    combine : function
        Called with the contents of the dataset; yields findings that depend on several records.
    solution : function
        Called with each solution and its place; yields findings about it.
    file : function
        Called with the full path of each file, valid or not, and its place, whose ``check`` is the
        name of the folder; yields findings about the text.
    """

    visit: Callable[[Record, Contents], Iterator[Finding]] = lambda *_: iter(())
    combine: Callable[[Contents], Iterator[Finding]] = lambda *_: iter(())
    solution: Callable[[Solution, Place], Iterator[Finding]] = lambda *_: iter(())
    file: Callable[[Path, Place], Iterator[Finding]] = lambda *_: iter(())
