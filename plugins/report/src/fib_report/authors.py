"""Scores and rankings of solutions and authors by their recorded runs.

The score of a solution is its mean speedup over the baseline, a solution of the same definition
by a chosen author: for each workload that both passed, the lowest latency of the baseline over the
lowest of the solution. One failed trace makes the score zero. The score of an author is the mean,
over definitions, of the best score among the author's solutions.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Optional

from pydantic import Field

from flashinfer_bench.data.base import SchemaModel
from flashinfer_bench.errors import ConfigError, DataError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fib_report.results import Result, Setting
    from flashinfer_bench.data import Solution, TraceSet
    from flashinfer_bench.data.run_source import RunRow


class SpeedupMetrics(SchemaModel):
    """The score of a solution or an author.

    Parameters
    ----------
    avg_speedup : float
        Mean speedup over the baseline; 0 for a solution with a failed trace.
    definitions : int
        Number of definitions; 1 for a solution.
    workloads : int
        Number of workloads that were compared.
    success_rate : float
        Share of the traces of these solutions that passed.
    win_rate : float
        Share of the compared workloads on which it was faster than the baseline.
    best_solutions : dict of str to str
        The solution that counts, by definition.
    """

    avg_speedup: float
    definitions: int = 1
    workloads: int = 0
    success_rate: float = 0.0
    win_rate: float = 0.0
    best_solutions: dict[str, str] = Field(default_factory=dict)


class TraceSetSummary(SchemaModel):
    """Counts of traces, and the ranking of authors.

    Parameters
    ----------
    total, passed, failed : int
        Number of traces of runs.
    rankings : list of (str, SpeedupMetrics)
        Authors, best first.
    unranked : dict of str to str
        Definitions that are not in the ranking, with the reason.
    """

    total: int
    passed: int
    failed: int
    rankings: list[tuple[str, SpeedupMetrics]] = Field(default_factory=list)
    unranked: dict[str, str] = Field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """Return a field, as from the mapping that the first release had."""
        if name not in type(self).model_fields:
            raise KeyError(name)
        return getattr(self, name)


class Ranking:
    """Scores and ranks solutions and authors.

    Parameters
    ----------
    solutions : mapping of str to sequence of Solution
        By definition.
    rows : iterable of RunRow
        The runs.
    definitions : iterable of str
        The definitions to rank.
    """

    def __init__(
        self,
        solutions: Mapping[str, Sequence[Solution]],
        rows: Iterable[RunRow],
        definitions: Iterable[str] = (),
    ) -> None:
        self._solutions, self._definitions = solutions, dict.fromkeys(definitions)
        self._failed: Counter[tuple[str, str]] = Counter()
        self._passed: Counter[tuple[str, str]] = Counter()
        self._unusable: dict[str, RunRow] = {}
        self._best_ms: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for row in rows:
            key, latency = (row.definition, row.solution), row.latency_ms
            (self._passed if row.passed else self._failed)[key] += 1
            if not row.passed or row.disputed:
                continue
            if latency is None or not 0.0 < latency < math.inf:
                self._unusable.setdefault(row.definition, row)
            else:
                times = self._best_ms[key]
                times[row.workload] = min(latency, times.get(row.workload, latency))

    @classmethod
    def of(
        cls, data: TraceSet, op_type: Optional[str] = None, definition_name: Optional[str] = None
    ) -> Ranking:
        """Return the ranking by all runs of a dataset, or by those in scope.

        Raises
        ------
        ConfigError
            If both `op_type` and `definition_name` are given.
        UnknownNameError
            If there is no such definition.
        """
        if op_type is not None and definition_name is not None:
            raise ConfigError("give op_type or definition_name, not both")
        if definition_name not in (None, *data.definitions):
            raise UnknownNameError(
                f"the dataset has no definition '{definition_name}'",
                unknown=(str(definition_name),),
            )
        if op_type is not None:
            names = [name for name, one in data.definitions.items() if one.op_type == op_type]
        elif definition_name is not None:
            names = [definition_name]
        else:
            names = [*data.definitions, *data.solutions, *data.run_source.names()]
        return cls(data.solutions, data.run_rows(definition_name), names)

    def score(self, solution: Solution, baseline_author: str) -> Optional[SpeedupMetrics]:
        """Score one solution; see `TraceSet.get_solution_score`."""
        name = solution.definition
        baseline = _find_baseline(name, self._solutions.get(name, ()), baseline_author)
        if baseline.name == solution.name:
            return None
        if row := self._unusable.get(name):
            raise DataError(
                f"a passing trace of solution '{row.solution}' has a latency of "
                f"{row.latency_ms} ms",
                field="evaluation.performance.latency_ms",
            )
        failed, passed = (each[name, solution.name] for each in (self._failed, self._passed))
        known = {"best_solutions": {name: solution.name}}
        if failed:
            return SpeedupMetrics(avg_speedup=0.0, success_rate=passed / (failed + passed), **known)
        mine, theirs = self._best_ms[name, solution.name], self._best_ms[name, baseline.name]
        speedups = [theirs[uuid] / latency for uuid, latency in mine.items() if uuid in theirs]
        if not speedups:
            return None
        return SpeedupMetrics(
            avg_speedup=math.fsum(speedups) / len(speedups),
            workloads=len(speedups),
            success_rate=1.0,
            win_rate=sum(each > 1.0 for each in speedups) / len(speedups),
            **known,
        )

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
        self, baseline_author: str, author: Optional[str] = None
    ) -> list[tuple[str, SpeedupMetrics]]:
        """Rank all authors, or one; see `TraceSet.rank_authors`."""
        names = self._definitions
        return _ranked(self.score_definition(name, baseline_author, author) for name in names)

    def summarize(self, baseline_author: str) -> TraceSetSummary:
        """Count traces and rank authors; see `TraceSet.summary`."""
        scores: list[Mapping[str, SpeedupMetrics]] = []
        unranked: dict[str, str] = {}
        for name in self._definitions:
            try:
                scores.append(self.score_definition(name, baseline_author))
            except DataError as error:
                unranked[name] = error.message
        passed, failed = (
            sum(count for (name, _), count in counts.items() if name in self._definitions)
            for counts in (self._passed, self._failed)
        )
        return TraceSetSummary(
            total=passed + failed,
            passed=passed,
            failed=failed,
            rankings=_ranked(scores),
            unranked=unranked,
        )


def rankable(trace_set: TraceSet, results: Sequence[Result]) -> dict[Setting, Ranking]:
    """Return the rankings on each device with each timer and cache mode, which are not compared."""
    from fib_report.results import split_by_setting  # a summary needs no reports

    names = [one.definition for one in results]
    return {
        setting: Ranking(trace_set.solutions, here, names)
        for setting, here in split_by_setting(results).items()
    }


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
        hint="name another baseline author, or add a solution by this one",
    )


def _ranked(
    per_definition: Iterable[Mapping[str, SpeedupMetrics]],
) -> list[tuple[str, SpeedupMetrics]]:
    """Combine the scores on single definitions into a ranking: best first, ties by name."""
    by_author: dict[str, list[SpeedupMetrics]] = {}
    for scores in per_definition:
        for author, score in scores.items():
            by_author.setdefault(author, []).append(score)
    ranked = [
        (
            author,
            SpeedupMetrics(
                avg_speedup=math.fsum(score.avg_speedup for score in scores) / len(scores),
                definitions=len(scores),
                workloads=sum(score.workloads for score in scores),
                success_rate=math.fsum(score.success_rate for score in scores) / len(scores),
                win_rate=math.fsum(score.win_rate * score.workloads for score in scores)
                / max(1, sum(score.workloads for score in scores)),
                best_solutions={
                    name: one for score in scores for name, one in score.best_solutions.items()
                },
            ),
        )
        for author, scores in by_author.items()
    ]
    return sorted(ranked, key=lambda entry: (-entry[1].avg_speedup, entry[0]))
