"""What a check has to say."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from pathlib import Path

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
        place = str(self.path) if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.field}" if self.field else place


@dataclass(frozen=True)
class Place:
    """Where in a dataset a check is looking; makes findings about it.

    Parameters
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

    def error(self, message: str, field: str = "", hint: Optional[str] = None) -> Finding:
        """Make a finding about something that cannot be used."""
        return self._finding(Severity.ERROR, message, field, hint)

    def warning(self, message: str, field: str = "", hint: Optional[str] = None) -> Finding:
        """Make a finding about something that should be looked at."""
        return self._finding(Severity.WARNING, message, field, hint)

    def note(self, message: str, field: str = "", hint: Optional[str] = None) -> Finding:
        """Make a finding about what sound datasets may lack."""
        return self._finding(Severity.NOTE, message, field, hint)

    def refused(self, error: DataError, field: str = "") -> Finding:
        """Make a finding of what the data layer refuses."""
        line = self.line if self.line is not None else error.line
        at = error.field or field
        return Finding(
            Severity.ERROR, self.check, self.path, error.message, line, at or None, error.hint
        )

    def _finding(self, severity: Severity, message: str, at: str, hint: Optional[str]) -> Finding:
        return Finding(severity, self.check, self.path, message, self.line, at or None, hint)


@dataclass(frozen=True)
class ValidationReport:
    """All findings about a dataset.

    Parameters
    ----------
    root : Path
        The dataset.
    findings : tuple of Finding
        In the order of the checks.
    counts : dict of str to int
        How much of what was looked at.
    layers : tuple of str
        What was looked at: the layers whose findings these are.
    """

    root: Path
    findings: tuple[Finding, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    layers: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are errors."""
        return self._of(Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are warnings."""
        return self._of(Severity.WARNING)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The findings that are notes."""
        return self._of(Severity.NOTE)

    def _of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.severity is severity)
