"""From the runs of a dataset to the standing of each solution for each key, with all refusals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.apply.hardware import toolchain_problem
from flashinfer_bench.apply.key_factory import ApplyKeyFactory
from flashinfer_bench.apply.records import Passed, status_of
from flashinfer_bench.apply.selection import (
    Reason,
    Standing,
    best_of_all,
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
    from flashinfer_bench.apply.records import Run
    from flashinfer_bench.apply.selection import Limits
    from flashinfer_bench.apply.source import Source
    from flashinfer_bench.data import Definition, Environment, Solution, Workload


class _Cell:
    """The runs of one solution on one workload, in one environment."""

    __slots__ = ("incorrect", "key", "latencies", "limits", "workload")

    def __init__(self, workload: Workload, key: ApplyKey | Reason, limits: Limits) -> None:
        self.workload = workload  # held: cells are found by its address
        self.key = key
        self.limits = limits
        self.latencies: list[float] = []
        self.incorrect = False


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
    cells : dict of int to _Cell
        By address of the workload.
    """

    __slots__ = ("cells", "environment", "reasons", "refusal", "refused")

    def __init__(self, environment: Environment, refusal: Optional[Reason]) -> None:
        self.environment = environment  # held: pairs are found by its address
        self.refusal = refusal
        self.refused = 0
        self.reasons: Counter[Reason] = Counter()
        self.cells: dict[int, _Cell] = {}


@dataclass
class Refusals:
    """Why runs of one solution do not count.

    Attributes
    ----------
    counts : Counter of str
        Number of runs by the kind of reason.
    examples : dict of str to str
        For each kind the words of the first run that was met.
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
    """Takes runs, one after the other, and decides about each.

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
        self._keys: dict[tuple[str, int], ApplyKey | Reason] = {}
        self._limits: dict[str, Limits] = {}
        self._hashes: dict[str, str] = {}

    def add(self, runs: Iterable[Run]) -> None:
        """Take runs into account."""
        pairs, only = self._pairs, self._only
        for run in runs:
            if only is not None and run.definition != only:
                continue
            evaluation = run.evaluation
            identity = run.definition, run.solution, id(evaluation.environment)  # type: ignore[union-attr]
            pair = pairs.get(identity)  # type: ignore[arg-type]
            if pair is None:
                pair = pairs[identity] = self._open_pair(run)  # type: ignore[index]
            if pair.refusal is not None:
                pair.refused += 1
                continue
            cell = pair.cells.get(id(run.workload))
            if cell is None:
                cell = pair.cells[id(run.workload)] = self._open_cell(run)
            reason = self._problem(run, cell)
            if reason is None:
                cell.latencies.append(evaluation.performance.latency_ms)  # type: ignore[union-attr]
            else:
                pair.reasons[reason] += 1

    def _problem(self, run: Run, cell: _Cell) -> Optional[Reason]:
        evaluation = run.evaluation
        if type(cell.key) is Reason:
            return cell.key
        assert evaluation is not None
        if evaluation.provenance is not None:
            recorded = evaluation.provenance.extra.solution_hash
            if recorded and recorded != self._hash(run.solution or ""):
                return Reason("stale", "recorded with another content of the solution")
        if type(evaluation) is Passed:
            return run_problem(evaluation, cell.limits)
        status = status_of(run)
        cell.incorrect |= status.startswith("INCORRECT")
        return Reason("status", status)

    # ------------------------------------------------------------ what holds for several runs

    def _open_pair(self, run: Run) -> _Pair:
        assert run.evaluation is not None
        environment = run.evaluation.environment
        return _Pair(environment, self._refusal(run.definition, run.solution or "", environment))

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

    def _open_cell(self, run: Run) -> _Cell:
        definition = self._source.definition(run.definition)
        identity = definition.name, id(run.workload)
        key = self._keys.get(identity)
        if key is None:
            key = self._keys[identity] = self._build_key(definition, run.workload)
        return _Cell(run.workload, key, self._limits_of(definition, run.workload))

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

    def _solution(self, name: str) -> Optional[Solution]:
        try:
            return self._source.solution(name)
        except (UnknownNameError, DataError):
            return None

    def _hash(self, name: str) -> str:
        if name not in self._hashes:
            self._hashes[name] = self._source.solution(name).hash()
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
        results: dict[str, _Results] = {}
        for (name, solution, _), pair in self._pairs.items():
            one = found.setdefault(name, Candidates())
            if pair.refusal is not None:
                one.refuse(solution, pair.refusal, pair.refused)
            for reason, runs in pair.reasons.items():
                one.refuse(solution, reason, runs)
            one.runs[solution] += pair.refused + pair.reasons.total()
            result = results.setdefault(name, _Results())
            for cell in pair.cells.values():
                one.runs[solution] += len(cell.latencies)
                result.add(solution, cell)
        for name, result in results.items():
            result.rank(found[name])
        return found


class _Results:
    """Latencies of the solutions of one definition, by key, solution and uuid of the workload."""

    def __init__(self) -> None:
        self._latencies: dict[ApplyKey, dict[str, dict[str, list[float]]]] = {}
        self._wrong: set[tuple[str, ApplyKey]] = set()
        self._tried: dict[ApplyKey, set[str]] = {}

    def add(self, solution: str, cell: _Cell) -> None:
        """Add the runs of a solution on a workload."""
        if isinstance(cell.key, Reason):
            return
        self._tried.setdefault(cell.key, set()).add(solution)
        by_solution = self._latencies.setdefault(cell.key, {})
        if cell.incorrect:
            self._wrong.add((solution, cell.key))
        if cell.latencies:
            own = by_solution.setdefault(solution, {})
            own.setdefault(cell.workload.uuid, []).extend(cell.latencies)

    def rank(self, one: Candidates) -> None:
        """Set rankings, best and keys of `one`."""
        for key in sorted(self._latencies, key=_order):
            one.keys.append(key)
            standings = []
            for solution, own in self._latencies[key].items():
                if (solution, key) not in self._wrong:
                    standings.append(standing(solution, own))
                    continue
                runs = sum(map(len, own.values()))
                one.refuse(solution, Reason("incorrect", "incorrect in another run"), runs)
            if standings:
                one.rankings[key] = ranked(standings)
            else:
                one.barred[key] = frozenset(self._tried[key])
        never = frozenset(solution for solution, _ in self._wrong)
        one.best = best_of_all(one.rankings.values(), never)


def _order(key: ApplyKey) -> tuple[tuple[tuple[str, int], ...], str]:
    return key.axes, repr(key.feats)
