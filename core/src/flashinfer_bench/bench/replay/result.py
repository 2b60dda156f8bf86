"""What a replay comes to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.data import Evaluation, Trace


class Verdict(str, Enum):
    """Whether what a trace says still holds.

    ``reproduced``: the same evaluation came to the same. ``drifted``: it came to something else.
    ``not reproducible``: it could not be carried out again, so nothing is known.
    """

    REPRODUCED = "reproduced"
    DRIFTED = "drifted"
    NOT_REPRODUCIBLE = "not reproducible"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Target:
    """One recorded run.

    Attributes
    ----------
    trace : Trace, optional
        The record; None if the line holds none.
    path : Path, optional
        Its file, if it was named.
    line : int, optional
        Its line, counted from 1.
    problem : str
        Why there is no trace.
    """

    trace: Optional[Trace]
    path: Optional[Path] = None
    line: Optional[int] = None
    problem: str = ""

    @property
    def place(self) -> str:
        """File and line, as far as they are known."""
        if self.path is None:
            return ""
        return f"{self.path}:{self.line}" if self.line is not None else str(self.path)


@dataclass(frozen=True)
class Comparison:
    """Two evaluations of the same thing, held against each other.

    Attributes
    ----------
    drift : tuple of str
        In what they contradict each other.
    differences : tuple of str
        What else is different, and may be why.
    """

    drift: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Replay:
    """What came of replaying one trace.

    Attributes
    ----------
    target : Target
        What was replayed.
    verdict : Verdict
        Whether it holds.
    reasons : tuple of str
        Why not; empty if it was reproduced.
    differences : tuple of str
        What was different from the recorded run: hardware, driver, libraries, or what is not known.
    inputs : str
        ``same``: rebuilt bit for bit; ``different``; ``not recorded``; empty if none were made.
    evaluation : Evaluation, optional
        Of now.
    """

    target: Target
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    inputs: str = ""
    evaluation: Optional[Evaluation] = None

    @property
    def recorded(self) -> Optional[Evaluation]:
        """The evaluation of then."""
        return self.target.trace.evaluation if self.target.trace is not None else None


def impossible(target: Target, reason: str) -> Replay:
    """Return the result of a trace that cannot be replayed here."""
    return Replay(target, Verdict.NOT_REPRODUCIBLE, (reason,))
