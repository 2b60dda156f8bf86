"""From the runs of a dataset to the standing of each solution for each key, with all refusals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

from flashinfer_bench.apply.hardware import toolchain_problem
from flashinfer_bench.apply.key_factory import ApplyKeyFactory
from flashinfer_bench.apply.records import passed
from flashinfer_bench.apply.records.runs import PASSED
from flashinfer_bench.apply.selection import (
    Reason,
    Standing,
    best_of_all,
    error_problem,
    limits_for,
    ranked,
    run_problem,
    standing,
    target_problem,
)
from flashinfer_bench.errors import DataError, FibError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.apply.config import ApplyConfigRegistry
    from flashinfer_bench.apply.hardware import Place
    from flashinfer_bench.apply.keys import ApplyKey, ApplyKeyBuilder
    from flashinfer_bench.apply.records.runs import FileRuns, Other, Runs, Texts
    from flashinfer_bench.apply.selection import Limits
    from flashinfer_bench.apply.source import SolutionHead, Source
    from flashinfer_bench.data import Definition, Environment, Solution, Workload


class _Pair:
    """The runs of one solution of one definition, in one environment.

    Attributes
    ----------
    refusal : Reason or None
        Why no run of these counts.
    refused : int
        How many runs that is.
    reasons : Counter of Reason
        Why single runs do not count.
    counted : int
        How many runs count.
    """

    __slots__ = ("counted", "environment", "reasons", "refusal", "refused")

    def __init__(self, environment: Environment, refusal: Optional[Reason]) -> None:
        self.environment = environment  # held: pairs are found by its address
        self.refusal = refusal
        self.refused = 0
        self.reasons: Counter[Reason] = Counter()
        self.counted = 0


class _Slot:
    """All that is known of one key of one definition.

    Attributes
    ----------
    latencies : dict of str to dict of str to list of float
        Of the runs that count, in milliseconds, by solution and uuid of the workload.
    tried, wrong : set of str
        The solutions that were run, and those that were found incorrect.
    """

    __slots__ = ("latencies", "tried", "wrong")

    def __init__(self) -> None:
        self.latencies: dict[str, dict[str, list[float]]] = {}
        self.tried: set[str] = set()
        self.wrong: set[str] = set()

    def add(self, solution: str, workload: Workload, latencies: list[float]) -> None:
        """Take over the runs of a solution that count."""
        own = self.latencies.get(solution)
        if own is None:
            own = self.latencies[solution] = {}
        known = own.setdefault(workload.uuid, latencies)
        if known is not latencies:
            known += latencies


class _Place(NamedTuple):
    """One workload of one definition; the slot is a reason if there is no key."""

    workload: Workload  # held: places are found by its address
    slot: Union[_Slot, Reason]
    limits: Limits


@dataclass
class Refusals:
    """Why runs of one solution do not count.

    Attributes
    ----------
    counts : Counter of str
        Number of runs by the kind of reason.
    examples : dict of str to str
        For each kind the words of a run: of the first group that was met.
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: Reason, runs: int = 1) -> None:
        """Count runs that are refused for a reason."""
        self.counts[reason.kind] += runs
        self.examples.setdefault(reason.kind, reason.text)


@dataclass
class Candidates:
    """What is known of the solutions of one definition.

    Attributes
    ----------
    rankings : dict of ApplyKey to list of Standing
        For each key that anybody may have the solutions, best first.
    best : str or None
        The solution for keys that nobody has recorded.
    refusals : dict of str to Refusals
        By solution.
    runs : Counter of str
        Number of all runs by solution.
    keys : list of ApplyKey
        All keys that have been recorded here, sorted, also those that nobody may have.
    barred : dict of ApplyKey to frozenset of str
        For each of the latter the solutions that were tried.
    """

    rankings: dict[ApplyKey, list[Standing]] = field(default_factory=dict)
    best: Optional[str] = None
    refusals: dict[str, Refusals] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)
    keys: list[ApplyKey] = field(default_factory=list)
    barred: dict[ApplyKey, frozenset[str]] = field(default_factory=dict)

    def refuse(self, solution: str, reason: Reason, runs: int = 1) -> None:
        """Count runs of a solution that are refused for a reason."""
        self.refusals.setdefault(solution, Refusals()).add(reason, runs)


class Collector:
    """Takes the runs of one file after the other, and decides about each run.

    Parameters
    ----------
    source : Source
        Has the definitions and solutions.
    configs : ApplyConfigRegistry
        Has the bounds on errors.
    place : Place
        Where solutions shall work.
    only : str, optional
        The one definition to look at.
    """

    def __init__(
        self,
        source: Source,
        configs: ApplyConfigRegistry,
        place: Place,
        only: Optional[str] = None,
    ) -> None:
        self._source = source
        self._configs = configs
        self._place = place
        self._only = only
        self._pairs: dict[tuple[str, str, int], _Pair] = {}
        self._builders: dict[str, ApplyKeyBuilder] = {}
        self._places: dict[tuple[str, int], _Place] = {}
        self._slots: dict[str, dict[ApplyKey, _Slot]] = {}
        self._limits: dict[str, Limits] = {}
        self._hashes: dict[str, str] = {}

    def add(self, file: FileRuns, texts: Texts) -> None:
        """Take the runs of a file into account.

        Parameters
        ----------
        file : FileRuns
            The runs.
        texts : Texts
            Those of the whole dataset, always the same: workloads are compared by their address.
        """
        workloads, environments = file.take_up(texts)
        addresses, pairs, only = list(map(id, environments)), self._pairs, self._only
        for group in file.groups:
            if only is not None and group.definition != only:
                continue
            identity = group.definition, group.solution, addresses[group.environment]
            pair = pairs.get(identity)
            if pair is None:
                environment = environments[group.environment]
                refusal = self._refusal(group.definition, group.solution, environment)
                pair = pairs[identity] = _Pair(environment, refusal)
            if pair.refusal is not None:
                pair.refused += group.count()
            else:
                self._add(group, pair, workloads[group.workload])

    def _add(self, group: Runs, pair: _Pair, workload: Workload) -> None:
        """Take runs into account of which some may count."""
        place = self._places.get((group.definition, id(workload)))
        if place is None:
            place = self._open_place(group.definition, workload)
        reason: Optional[Reason]
        if isinstance(place.slot, Reason):
            reason = place.slot
        else:
            place.slot.tried.add(group.solution)
            reason = self._staleness(group)
        if reason is not None:
            pair.reasons[reason] += group.count()
        else:
            _add_runs(group, pair, place)

    def _staleness(self, group: Runs) -> Optional[Reason]:
        recorded = group.solution_hash
        if recorded and recorded != self._hash(group.solution):
            return Reason("stale", "recorded with another content of the solution")
        return None

    # ------------------------------------------------------------ what holds for several runs

    def _refusal(self, definition: str, name: str, environment: Environment) -> Optional[Reason]:
        """Return why no run of a solution in an environment counts, None if some may."""
        if self._definition(definition) is None:
            return Reason("definition", f"there is no definition {definition!r}")
        solution, place = self._solution(name), self._place
        if solution is None:
            return Reason("solution", "there is no solution of this name")
        if solution.definition != definition:
            return Reason("solution", f"the solution is for definition {solution.definition!r}")
        if environment.hardware != place.hardware:
            return Reason("hardware", f"recorded on {environment.hardware}")
        if (reason := target_problem(solution, place.kind)) is not None:
            return reason
        language = str(solution.spec.language)
        text = toolchain_problem(language, environment.libs, on=place.kind, here=place.versions)
        return None if text is None else Reason("toolchain", text)

    def _open_place(self, name: str, workload: Workload) -> _Place:
        definition = self._source.definition(name)
        key = self._build_key(definition, workload)
        slot: Union[_Slot, Reason]
        if isinstance(key, Reason):
            slot = key
        else:
            slot = self._slots.setdefault(name, {}).setdefault(key, _Slot())
        place = _Place(workload, slot, self._limits_of(definition, workload))
        self._places[name, id(workload)] = place
        return place

    def _limits_of(self, definition: Definition, workload: Workload) -> Limits:
        config = self._configs.get(definition.name)
        if workload.tolerance is not None:
            return limits_for(definition, config, workload)
        if definition.name not in self._limits:
            self._limits[definition.name] = limits_for(definition, config)
        return self._limits[definition.name]

    def _definition(self, name: str) -> Optional[Definition]:
        try:
            return self._source.definition(name)
        except (UnknownNameError, DataError):
            return None

    def _solution(self, name: str) -> Union[Solution, SolutionHead, None]:
        try:
            return self._source.head(name)
        except (UnknownNameError, DataError):
            return None

    def _hash(self, name: str) -> str:
        if name not in self._hashes:
            self._hashes[name] = self._source.solution_hash(name)
        return self._hashes[name]

    def _build_key(self, definition: Definition, workload: Workload) -> ApplyKey | Reason:
        try:
            builder = self._builders.get(definition.name)
            if builder is None:
                builder = self._builders[definition.name] = ApplyKeyFactory.specialize(definition)
            return builder.build_from_workload(workload, self._source.root)
        except FibError as error:
            return Reason("key", error.message[:200])
        except Exception as error:  # noqa: BLE001 - a plugin's key builder may raise anything
            return Reason("key", f"{type(error).__name__}: {error}"[:200])

    # ------------------------------------------------------------------------------ the outcome

    def outcome(self) -> dict[str, Candidates]:
        """Return what all runs so far come to, by definition."""
        found: dict[str, Candidates] = {}
        for (name, solution, _), pair in self._pairs.items():
            one = found.setdefault(name, Candidates())
            if pair.refusal is not None:
                one.refuse(solution, pair.refusal, pair.refused)
            for reason, runs in pair.reasons.items():
                one.refuse(solution, reason, runs)
            one.runs[solution] += pair.refused + pair.reasons.total() + pair.counted
        for name, slots in self._slots.items():
            _rank(slots, found[name])
        return found


def _add_runs(group: Runs, pair: _Pair, place: _Place) -> None:
    """Decide about the runs of a group that may count."""
    slot, counting = place.slot, []
    assert isinstance(slot, _Slot)
    runs: Iterable[Other] = group.others
    if group.figures and _all_fit(group, place.limits):
        counting = group.latencies()
    else:
        runs = (*group.plain(), *group.others)
    for run in runs:
        if run.status == PASSED:
            reason = run_problem(passed(run, is_judged=group.is_judged), place.limits)
        else:
            reason = Reason("status", run.status)
            if run.status.startswith("INCORRECT"):
                slot.wrong.add(group.solution)
        if reason is None:
            counting.append(run.latency_ms)
        else:
            pair.reasons[reason] += 1
    if counting:
        pair.counted += len(counting)
        slot.add(group.solution, place.workload, counting)


def _all_fit(group: Runs, limits: Limits) -> bool:
    """Return whether all plain runs of a group have errors that are small enough.

    No rule forbids a run what it allows one with larger errors, so that it is enough to look at the
    largest ones. False means that each run has to be looked at.
    """
    worst = group.worst()
    if worst.absolute <= limits.atol and worst.relative <= limits.rtol:
        return True
    return error_problem(passed(worst, is_judged=group.is_judged), limits) is None


def _rank(slots: dict[ApplyKey, _Slot], one: Candidates) -> None:
    """Set rankings, best and keys of `one`."""
    for key in sorted(slots, key=_order):
        slot = slots[key]
        one.keys.append(key)
        standings = []
        for solution, own in slot.latencies.items():
            if solution not in slot.wrong:
                standings.append(standing(solution, own))
                continue
            runs = sum(map(len, own.values()))
            one.refuse(solution, Reason("incorrect", "incorrect in another run"), runs)
        if standings:
            one.rankings[key] = ranked(standings)
        else:
            one.barred[key] = frozenset(slot.tried)
    never = frozenset().union(*(slot.wrong for slot in slots.values()))
    one.best = best_of_all(one.rankings.values(), never)


def _order(key: ApplyKey) -> tuple[tuple[tuple[str, int], ...], str]:
    return key.axes, repr(key.feats)
