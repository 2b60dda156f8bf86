"""What checks are shown, and what they say: places and findings."""

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
    """How bad a finding is.

    What has an error cannot be used as it is; what has a warning can, but look at it. A note tells
    of what a sound dataset may lack, and never counts.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or looks wrong.

    Parameters
    ----------
    severity : Severity
        How bad it is.
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
        """The place as ``file:line: field``, as far as it is known."""
        place = Place(self.check, self.path, self.line).where
        return f"{place}: {self.field}" if self.field else place


class Place(NamedTuple):
    """Where in a dataset a check is looking; makes findings about it.

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
        """Make a finding about something that cannot be used."""
        return Finding(Severity.ERROR, *self[:2], message, self.line, field or None, hint)

    def warning(self, message: str, field: str = "", hint: Optional[str] = None) -> Finding:
        """Make a finding about something that should be looked at."""
        return Finding(Severity.WARNING, *self[:2], message, self.line, field or None, hint)

    def note(self, message: str, field: str = "", hint: Optional[str] = None) -> Finding:
        """Make a finding about what sound datasets may lack."""
        return Finding(Severity.NOTE, *self[:2], message, self.line, field or None, hint)

    def refused(self, error: DataError) -> Finding:
        """Make a finding of what the data layer refuses."""
        at = self._replace(line=self.line or error.line)
        return at.error(error.message, error.field or "", error.hint)


class Record(NamedTuple):
    """A workload or trace, and the place of its line."""

    trace: Trace
    place: Place


class SolutionHead(NamedTuple):
    """What other records can say about a solution."""

    name: str
    definition: str
    author: str


class TraceHead(NamedTuple):
    """What is kept of a workload or trace, to be compared with others.

    Attributes
    ----------
    definition : str
        Name of the definition.
    uuid : str
        The workload's.
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
        """Return what is kept of a workload or trace."""
        run, content = trace.evaluation, trace.workload
        if run is not None:
            mark: str = run.status  # one object for all that have it
        else:
            mark = json.dumps(content.model_dump(mode="json"), sort_keys=True)
        return cls(trace.definition, content.uuid, trace.solution, mark)


@dataclass(frozen=True)
class Contents:
    """What all checks need at hand.

    Parameters
    ----------
    root : Path
        The dataset.
    definition_files, solution_files : tuple of (Definition or SolutionHead, Place)
        Every readable file, duplicates included.
    traces : tuple of (TraceHead, Place)
        Every readable workload and trace, in the order of files and lines, where records are read.
    unread : frozenset of str
        Names of the definitions whose files cannot be read, which are reported once for all that
        depends on them.
    """

    root: Path
    definition_files: tuple[tuple[Definition, Place], ...] = ()
    solution_files: tuple[tuple[SolutionHead, Place], ...] = ()
    traces: tuple[tuple[TraceHead, Place], ...] = ()
    unread: frozenset[str] = frozenset()

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """The definitions by name; of duplicates the first, as readers take it."""
        return {one.name: one for one, _ in reversed(self.definition_files)}

    @cached_property
    def solutions(self) -> dict[str, SolutionHead]:
        """The solutions by name."""
        return {one.name: one for one, _ in reversed(self.solution_files)}


class RecordCheck(NamedTuple):
    """A check that is shown records one by one, maybe in another process.

    Attributes
    ----------
    visit : function
        Yields what is wrong with one workload or trace alone. It is called with the record and the
        contents of the dataset, which have no traces yet.
    combine : function
        Yields what it takes all records to find out, from the contents of the dataset.
    solution : function
        Yields what is wrong with one solution alone. It is called with it and its place.
    file : function
        Yields what is wrong with the text of one file, which may not even be valid. It is called
        with its full path and its place, whose ``check`` is the folder that it is in.
    """

    visit: Callable[[Record, Contents], Iterator[Finding]] = lambda *_: iter(())
    combine: Callable[[Contents], Iterator[Finding]] = lambda *_: iter(())
    solution: Callable[[Solution, Place], Iterator[Finding]] = lambda *_: iter(())
    file: Callable[[Path, Place], Iterator[Finding]] = lambda *_: iter(())
