"""The form of explanations: plain data, for programs and for whoever prints it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Optional


@dataclass(frozen=True)
class Refusal:
    """Why runs of a solution do not count.

    Attributes
    ----------
    kind : str
        Which rule, see `flashinfer_bench.apply.selection.ReasonKind`; ``no runs`` for a solution
        that was never run.
    text : str
        In words, for the first such run.
    runs : int
        How many runs that is.
    """

    kind: str
    text: str
    runs: int


@dataclass(frozen=True)
class Contender:
    """A solution that may have a key.

    Attributes
    ----------
    solution : str
        Its name.
    latency_ms : float
        Median over its runs that count, in milliseconds.
    slower : float
        How many times the winner's latency that is; 1 for the winner.
    runs : int
        Number of runs that count.
    workload : str
        uuid of one of the workloads.
    """

    solution: str
    latency_ms: float
    slower: float
    runs: int
    workload: str


@dataclass(frozen=True)
class KeyExplanation:
    """Who gets one key.

    Attributes
    ----------
    axes : dict of str to int
        Sizes of the variable axes.
    feats : dict of str to value
        What else counts.
    contenders : tuple of Contender
        Who may have it, the winner first; empty if nobody may.
    """

    axes: dict[str, int]
    feats: dict[str, Any]
    contenders: tuple[Contender, ...]

    @property
    def winner(self) -> Optional[Contender]:
        """Who gets it, None if nobody does."""
        return self.contenders[0] if self.contenders else None


@dataclass(frozen=True)
class SolutionExplanation:
    """What becomes of one solution.

    Attributes
    ----------
    name : str
        Its name.
    known : bool
        Whether the dataset has it; there may be runs of solutions that it lacks.
    runs, counted : int
        Number of its runs, and of those that count.
    keys, won : int
        Number of keys that it may have, and of those that it gets.
    refusals : tuple of Refusal
        Why runs of it do not count, the most frequent reason first.
    """

    name: str
    known: bool
    runs: int
    counted: int
    keys: int
    won: int
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class Explanation:
    """What is taken for the calls of one definition, and why.

    Attributes
    ----------
    definition, op_type : str
        Its name and family.
    hardware : str
        For which this holds.
    atol, rtol : float
        Largest absolute and relative error.
    both : bool
        Whether both must be kept, or one is enough.
    best : str or None
        The solution for sizes that nobody has recorded, where that is wanted.
    keys : tuple of KeyExplanation
        Each key that was recorded on this hardware, sorted.
    solutions : tuple of SolutionExplanation
        Each solution of the definition, and each of which there are runs: most keys won first.
    problems : tuple of str
        What was left out of the dataset because it cannot be read.
    """

    definition: str
    op_type: str
    hardware: str
    atol: float
    rtol: float
    both: bool
    best: Optional[str]
    keys: tuple[KeyExplanation, ...]
    solutions: tuple[SolutionExplanation, ...]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class DefinitionOverview:
    """One definition in short.

    Attributes
    ----------
    definition, op_type : str
        Its name and family; no family if the dataset has only runs of it.
    known : bool
        Whether the dataset has it.
    solutions, runs : int
        Number of its solutions and runs.
    keys, open_keys : int
        Number of keys that were recorded on this hardware, and of those that nobody gets.
    winners : dict of str to int
        Number of keys that each solution gets, most first.
    best : str or None
        The solution for other keys.
    refused : dict of str to int
        Number of runs that do not count, by kind of reason, most first.
    """

    definition: str
    op_type: str
    known: bool
    solutions: int
    runs: int
    keys: int
    open_keys: int
    winners: dict[str, int]
    best: Optional[str]
    refused: dict[str, int]


@dataclass(frozen=True)
class Overview:
    """All definitions of a dataset in short.

    Attributes
    ----------
    hardware : str
        For which this holds.
    definitions : tuple of DefinitionOverview
        In the order of the dataset; those that it lacks last.
    problems : tuple of str
        What was left out because it cannot be read.
    """

    hardware: str
    definitions: tuple[DefinitionOverview, ...]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return asdict(self)
