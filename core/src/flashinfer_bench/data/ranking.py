"""Scores and rankings of solutions and authors by their recorded runs.

The score of a solution is its mean speedup over the baseline, a solution of the same definition
by a chosen author: for each workload that both passed, the lowest latency of the baseline over the
lowest of the solution. One failed trace makes the score zero. The score of an author is the mean,
over definitions, of the best score among the author's solutions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from pydantic import Field

from flashinfer_bench.data.base import SchemaModel
from flashinfer_bench.data.trace import EvaluationStatus
from flashinfer_bench.errors import ConfigError, DataError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flashinfer_bench.data.run_source import RunRow
    from flashinfer_bench.data.solution import Solution
    from flashinfer_bench.data.trace import Trace
    from flashinfer_bench.data.trace_set import TraceSet


class SpeedupMetrics(SchemaModel):
    """The score of a solution or an author.

    Parameters
    ----------
    avg_speedup : float
        Mean speedup over the baseline; 0 for a solution with a failed trace.
    n_workloads : int
        How many workloads were compared.
    n_definitions : int
        How many definitions that is: 1 for a solution.
    """

    avg_speedup: float
    n_workloads: int = 0
    n_definitions: int = 1


class TraceSetSummary(SchemaModel):
    """Counts of traces, and the ranking of authors.

    Parameters
    ----------
    total, passed, failed : int
        Number of traces of runs.
    rankings : list of (str, SpeedupMetrics)
        Authors, best first.
    unranked : dict of str to str
        Definitions that do not enter the ranking, with the reason.
    """

    total: int
    passed: int
    failed: int
    rankings: list[tuple[str, SpeedupMetrics]] = Field(default_factory=list)
    unranked: dict[str, str] = Field(default_factory=dict)


@dataclass
class Runs:
    """The runs of one definition, digested.

    Attributes
    ----------
    best_ms : dict
        Solution, then uuid of a workload, to the lowest latency in milliseconds that passed.
    failed : set of str
        Solutions of which a run failed.
    total, passed : int
        Number of runs.
    unusable : (str, float), optional
        Solution and latency of the first passing run whose latency is not positive and finite.
    """

    best_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    total: int = 0
    passed: int = 0
    unusable: Optional[tuple[str, float]] = None

    def add(self, solution: str, workload: str, latency_ms: Optional[float]) -> None:
        """Add a run, whose latency is None if it failed."""
        self.total += 1
        if latency_ms is None:
            self.failed.add(solution)
            return
        self.passed += 1
        if not 0.0 < latency_ms < math.inf:
            self.unusable = self.unusable or (solution, latency_ms)
            return
        times = self.best_ms.setdefault(solution, {})
        if latency_ms < times.get(workload, math.inf):
            times[workload] = latency_ms

    def update(self, more: Runs) -> None:
        """Add the runs of another file, which come after those of this one."""
        self.total += more.total
        self.passed += more.passed
        self.failed |= more.failed
        self.unusable = self.unusable or more.unusable
        for solution, times in more.best_ms.items():
            mine = self.best_ms.setdefault(solution, {})
            for workload, latency in times.items():
                mine[workload] = min(latency, mine.get(workload, math.inf))

    def usable(self) -> Runs:
        """Return the runs, if all that passed can be ranked.

        Raises
        ------
        DataError
            If a passing run has a latency that is not positive and finite.
        """
        if self.unusable is not None:
            solution, latency_ms = self.unusable
            raise DataError(
                f"a passing trace of solution '{solution}' has a latency of {latency_ms} ms",
                field="evaluation.performance.latency_ms",
            )
        return self


def digest(rows: Iterable[RunRow]) -> defaultdict[str, Runs]:
    """Return what rankings need of some runs, by definition in the order in which they are met."""
    found: defaultdict[str, Runs] = defaultdict(Runs)
    for row in rows:
        latency = row.latency_ms if row.passed else None
        found[row.task.definition].add(row.task.solution, row.task.workload, latency)
    return found


def digest_traces(traces: Iterable[Trace]) -> Runs:
    """Return what rankings need of the runs of one definition."""
    found = Runs()
    for trace in traces:
        run = trace.evaluation
        if run is not None and trace.solution is not None:
            times = run.performance if run.status is EvaluationStatus.PASSED else None
            latency = None if times is None else times.latency_ms
            found.add(trace.solution, trace.workload.uuid, latency)
    return found


def passing(
    traces: Iterable[Trace], axes: Optional[Mapping[str, int]], atol: float, rtol: float
) -> list[Trace]:
    """Return the traces that passed within both tolerances, on workloads with exactly `axes`."""
    found = []
    for trace in traces:
        run = trace.evaluation
        if run is None or run.status is not EvaluationStatus.PASSED or run.performance is None:
            continue
        errors = run.correctness
        errors = errors if axes is None or trace.workload.axes == axes else None
        if (
            errors is not None
            and errors.max_absolute_error <= atol
            and errors.max_relative_error <= rtol
        ):
            found.append(trace)
    return found


def select_definitions(
    data: TraceSet, op_type: Optional[str] = None, definition_name: Optional[str] = None
) -> list[str]:
    """Return the names of the definitions in scope.

    Raises
    ------
    ConfigError
        If both `op_type` and `definition_name` are given.
    UnknownNameError
        If there is no such definition.
    """
    if op_type is not None and definition_name is not None:
        raise ConfigError("give op_type or definition_name, not both")
    if definition_name is not None:
        if definition_name not in data.definitions:
            raise UnknownNameError(
                f"there is no definition '{definition_name}' in the dataset",
                unknown=(definition_name,),
            )
        return [definition_name]
    if op_type is not None:
        return [name for name, one in data.definitions.items() if one.op_type == op_type]
    return list(dict.fromkeys([*data.definitions, *data.solutions, *data.run_source.names()]))


class Ranking:
    """Scores and ranks by some runs.

    Parameters
    ----------
    solutions : mapping of str to sequence of Solution
        By definition.
    runs_of : callable
        Returns the runs of a definition, digested.
    """

    def __init__(
        self,
        solutions: Mapping[str, Sequence[Solution]],
        runs_of: Callable[[str], Runs],
    ) -> None:
        self._solutions, self._runs_of = solutions, runs_of

    def score(self, solution: Solution, baseline_author: str) -> Optional[SpeedupMetrics]:
        """Score one solution; see `TraceSet.get_solution_score`."""
        name = solution.definition
        baseline = _find_baseline(name, self._solutions.get(name, ()), baseline_author)
        if baseline.name == solution.name:
            return None
        return _score(solution.name, baseline.name, self._runs_of(name).usable())

    def score_definition(
        self, definition: str, baseline_author: str, author: Optional[str] = None
    ) -> dict[str, SpeedupMetrics]:
        """Return the best score of each author (or of one) on one definition.

        Raises
        ------
        DataError
            If the definition has solutions, but not exactly one by the baseline author; or if a
            passing trace has a latency that is not positive and finite.
        """
        best: dict[str, SpeedupMetrics] = {}
        for solution in self._solutions.get(definition, ()):
            if author in (None, solution.author):
                score = self.score(solution, baseline_author)
                known = best.get(solution.author)
                if score is not None and (known is None or score.avg_speedup > known.avg_speedup):
                    best[solution.author] = score
        return best

    def rank(
        self, definitions: Iterable[str], baseline_author: str, author: Optional[str] = None
    ) -> list[tuple[str, SpeedupMetrics]]:
        """Rank all authors, or one; see `TraceSet.rank_authors`."""
        return _ranked(self.score_definition(name, baseline_author, author) for name in definitions)

    def summarize(self, definitions: Iterable[str], baseline_author: str) -> TraceSetSummary:
        """Count traces and rank authors; see `TraceSet.summary`."""
        total = passed = 0
        scores: list[Mapping[str, SpeedupMetrics]] = []
        unranked: dict[str, str] = {}
        for name in definitions:
            runs = self._runs_of(name)
            total, passed = total + runs.total, passed + runs.passed
            try:
                scores.append(self.score_definition(name, baseline_author))
            except DataError as error:
                unranked[name] = error.message
        return TraceSetSummary(
            total=total,
            passed=passed,
            failed=total - passed,
            rankings=_ranked(scores),
            unranked=unranked,
        )


def _find_baseline(
    definition: str, solutions: Sequence[Solution], baseline_author: str
) -> Solution:
    found = [solution for solution in solutions if solution.author == baseline_author]
    if len(found) == 1:
        return found[0]
    names = ", ".join(solution.name for solution in found)
    count = f"{len(found)} solutions ({names})" if found else "no solution"
    raise DataError(
        f"definition '{definition}' has {count} by the baseline author '{baseline_author}'; "
        "exactly one is needed",
        hint="name another baseline author, or add a baseline solution",
    )


def _score(solution: str, baseline: str, runs: Runs) -> Optional[SpeedupMetrics]:
    """Score a solution against a baseline; None if nothing can be compared."""
    if solution in runs.failed:
        return SpeedupMetrics(avg_speedup=0.0)
    mine, theirs = runs.best_ms.get(solution, {}), runs.best_ms.get(baseline, {})
    speedups = [theirs[uuid] / latency for uuid, latency in mine.items() if uuid in theirs]
    if not speedups:
        return None
    return SpeedupMetrics(
        avg_speedup=math.fsum(speedups) / len(speedups), n_workloads=len(speedups)
    )


def _ranked(
    per_definition: Iterable[Mapping[str, SpeedupMetrics]],
) -> list[tuple[str, SpeedupMetrics]]:
    """Combine the scores on single definitions into a ranking: best first, equals by name."""
    by_author: dict[str, list[SpeedupMetrics]] = {}
    for scores in per_definition:
        for author, score in scores.items():
            by_author.setdefault(author, []).append(score)
    ranked = [
        (
            author,
            SpeedupMetrics(
                avg_speedup=math.fsum(score.avg_speedup for score in scores) / len(scores),
                n_workloads=sum(score.n_workloads for score in scores),
                n_definitions=len(scores),
            ),
        )
        for author, scores in by_author.items()
    ]
    return sorted(ranked, key=lambda entry: (-entry[1].avg_speedup, entry[0]))
