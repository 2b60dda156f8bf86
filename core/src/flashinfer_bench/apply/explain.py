"""Why which solution is taken, and why the others are not: plain data, for whoever prints it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.config import as_registry
from flashinfer_bench.apply.table import ApplyTable, unknown
from flashinfer_bench.errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flashinfer_bench.apply.keys import ApplyKey
    from flashinfer_bench.apply.selection import Candidates, Reason
    from flashinfer_bench.apply.table import Config, Dataset, Source
    from flashinfer_bench.data import Definition


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


def explain(
    source: Optional[Dataset],
    name: str,
    config: Config = None,
    *,
    hardware: Optional[str] = None,
    axes: Optional[Mapping[str, int]] = None,
) -> Explanation:
    """Explain what is taken for the calls of one definition.

    Parameters
    ----------
    source : TraceSet, str, Path or None
        The dataset, as for `ApplyTable.load_or_build`. It is read anew.
    name : str
        The definition.
    config : ApplyConfig or ApplyConfigRegistry, optional
        The bounds on errors.
    hardware : str, optional
        Whose records count; by default this machine's.
    axes : mapping of str to int, optional
        Look at keys of these sizes only; axes that are not named may have any.

    Raises
    ------
    UnknownNameError
        If the dataset has no such definition, or the definition no such variable axis.
    SelectionError
        If no key has these sizes.
    DatasetNotFoundError
        If there is no dataset.
    """
    from flashinfer_bench.apply.selection import limits_for

    found = ApplyTable.load_or_build(source, config, hardware=hardware)
    definition, one = found.source.definition(name), found.definitions[name]
    limits = limits_for(definition, as_registry(config).get(name))
    keys = _keys_with(definition, one.keys, axes or {}, found.hardware)
    return Explanation(
        definition=name,
        op_type=definition.op_type,
        hardware=found.hardware,
        atol=limits.atol,
        rtol=limits.rtol,
        both=limits.both,
        best=one.best,
        keys=tuple(_key(key, one) for key in keys),
        solutions=_solutions(name, one, found.source),
        problems=tuple(found.problems),
    )


def explain_all(
    source: Optional[Dataset], config: Config = None, *, hardware: Optional[str] = None
) -> Overview:
    """Return what there is for each definition of a dataset; see `explain`."""
    found = ApplyTable.load_or_build(source, config, hardware=hardware)
    overviews = tuple(_overview(name, found.source, one) for name, one in found.definitions.items())
    return Overview(found.hardware, overviews, tuple(found.problems))


def _keys_with(
    definition: Definition, keys: list[ApplyKey], axes: Mapping[str, int], hardware: str
) -> list[ApplyKey]:
    for axis in axes:
        if axis not in definition.var_axes:
            raise unknown("variable axis", axis, definition.var_axes)
    found = [key for key in keys if axes.items() <= dict(key.axes).items()]
    if axes and not found:
        near = sorted(keys, key=lambda key: _distance(key, axes))
        shown = "; ".join(_sizes(key.axes) for key in near[:5])
        more = " …" if len(near) > 5 else ""
        raise SelectionError(
            f"nobody has recorded {definition.name!r} with {_sizes(axes.items())} on {hardware}",
            hint=f"recorded are {shown}{more}" if near else "ask for all sizes to see where it was",
        )
    return found


def _distance(key: ApplyKey, axes: Mapping[str, int]) -> float:
    """Return how far a key is from the sizes that are asked for: the logarithm of all factors."""
    known = dict(key.axes)
    pairs = ((known.get(axis, 0) + 1, size + 1) for axis, size in axes.items())
    return sum(abs(math.log(here) - math.log(there)) for here, there in pairs)


def _sizes(axes: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in axes)


def _key(key: ApplyKey, one: Candidates) -> KeyExplanation:
    ranking = one.rankings.get(key, [])
    contenders = (
        Contender(solution, latency, latency / ranking[0].latency_ms, runs, workload)
        for latency, solution, runs, workload in ranking
    )
    return KeyExplanation(dict(key.axes), dict(key.feats), tuple(contenders))


def _solutions(name: str, one: Candidates, source: Source) -> tuple[SolutionExplanation, ...]:
    keys: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for ranking in one.rankings.values():
        for each in ranking:
            keys[each.solution] += 1
            counted[each.solution] += each.runs
    won = one.winners
    own = {solution for solution, entry in source.solutions.items() if entry.definition == name}
    made = (
        SolutionExplanation(
            solution,
            solution in source.solutions,
            one.runs[solution],
            counted[solution],
            keys[solution],
            won.get(solution, 0),
            _refusals(one.refusals.get(solution, {}))
            or (() if one.runs[solution] else (Refusal("no runs", "there is no run of it", 0),)),
        )
        for solution in {*own, *one.runs}
    )
    return tuple(sorted(made, key=lambda each: (-each.won, -each.keys, each.name)))


def _refusals(reasons: Mapping[Reason, int]) -> tuple[Refusal, ...]:
    counts: Counter[str] = Counter()
    texts: dict[str, str] = {}
    for reason, runs in reasons.items():
        counts[reason.kind] += runs
        texts.setdefault(reason.kind, reason.text)
    return tuple(Refusal(kind, texts[kind], runs) for kind, runs in counts.most_common())


def _overview(name: str, source: Source, one: Candidates) -> DefinitionOverview:
    known = name in source.definitions
    refused: Counter[str] = Counter()
    for reasons in one.refusals.values():
        for reason, runs in reasons.items():
            refused[reason.kind] += runs
    return DefinitionOverview(
        definition=name,
        op_type=source.definition(name).op_type if known else "",
        known=known,
        solutions=sum(entry.definition == name for entry in source.solutions.values()),
        runs=one.runs.total(),
        keys=len(one.rankings) + len(one.barred),
        open_keys=len(one.barred),
        winners=one.winners,
        best=one.best,
        refused=dict(sorted(refused.items(), key=lambda item: (-item[1], item[0]))),
    )
