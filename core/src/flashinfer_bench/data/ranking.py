"""Scores and rankings: pure functions over the content of a dataset.

The score of a solution is its mean speedup over the baseline, a solution of the same definition
by a chosen author: for each workload that both passed, the lowest latency of the baseline over the
lowest of the solution. One failed trace makes the score zero. The score of an author is the mean,
over definitions, of the best score among the author's solutions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Optional, Protocol

from pydantic import Field

from flashinfer_bench.data.base import SchemaModel
from flashinfer_bench.data.trace import EvaluationStatus
from flashinfer_bench.errors import ConfigError, DataError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flashinfer_bench.data.definition import Definition
    from flashinfer_bench.data.run_source import RunDigests
    from flashinfer_bench.data.solution import Solution
    from flashinfer_bench.data.trace import Trace

_PASSED = EvaluationStatus.PASSED


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


class Dataset(Protocol):
    """What ranking needs of a `TraceSet`."""

    definitions: dict[str, Definition]
    solutions: dict[str, list[Solution]]

    @property
    def run_source(self) -> RunDigests:
        """Where the runs are to be had."""

    def get_solution(self, name: str) -> Optional[Solution]:
        """Return the solution of that name."""


class Runs(NamedTuple):
    """The traces of one definition, digested."""

    best_ms: dict[str, dict[str, float]]  # solution -> uuid of workload -> lowest passing latency
    failed: set[str]  # solutions with a failed trace


# ------------------------------------------------------------------------------------- selection


def filter_traces(traces: Iterable[Trace], atol: float, rtol: float) -> list[Trace]:
    """Return the traces that passed with errors of at most `atol` and `rtol`."""
    return [trace for trace in traces if _within(trace, atol, rtol)]


def best_trace(
    traces: Iterable[Trace], axes: Optional[Mapping[str, int]], atol: float, rtol: float
) -> Optional[Trace]:
    """Return the trace with the highest speedup factor; of equals the first.

    Parameters
    ----------
    traces : iterable of Trace
        Candidates.
    axes : mapping of str to int, optional
        If given, only workloads with exactly these axis values count.
    atol, rtol : float
        Largest absolute and relative error.
    """
    best: Optional[Trace] = None
    best_speedup = -math.inf
    for trace in traces:
        if axes is not None and trace.workload.axes != axes:
            continue
        if not _within(trace, atol, rtol):
            continue
        speedup = trace.evaluation.performance.speedup_factor  # type: ignore[union-attr]
        if speedup > best_speedup:
            best, best_speedup = trace, speedup
    return best


def _within(trace: Trace, atol: float, rtol: float) -> bool:
    evaluation = trace.evaluation
    if evaluation is None or evaluation.status is not _PASSED:
        return False
    errors = evaluation.correctness
    if errors is None or evaluation.performance is None:
        return False
    return errors.max_absolute_error <= atol and errors.max_relative_error <= rtol


def select_definitions(
    data: Dataset, op_type: Optional[str] = None, definition_name: Optional[str] = None
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


# ---------------------------------------------------------------------------------------- scores


def digest_runs(traces: Iterable[Trace]) -> Runs:
    """Collect the lowest passing latency of each (solution, workload), and who failed.

    Raises
    ------
    DataError
        If a passing trace has no latency, or one that is not positive and finite.
    """
    runs = Runs({}, set())
    for trace in traces:
        evaluation, solution = trace.evaluation, trace.solution
        if evaluation is None or solution is None:
            continue
        if evaluation.status is not _PASSED:
            runs.failed.add(solution)
            continue
        latency = evaluation.performance.latency_ms if evaluation.performance else math.nan
        if not 0.0 < latency < math.inf:
            refuse_latency(solution, latency)
        by_workload = runs.best_ms.setdefault(solution, {})
        uuid = trace.workload.uuid
        if latency < by_workload.get(uuid, math.inf):
            by_workload[uuid] = latency
    return runs


def refuse_latency(solution: str, latency_ms: float) -> NoReturn:
    """Raise the error of a passing trace whose latency is of no use.

    Raises
    ------
    DataError
        Always.
    """
    raise DataError(
        f"a passing trace of solution '{solution}' has a latency of {latency_ms} ms",
        field="evaluation.performance.latency_ms",
    )


def find_baseline(definition: str, solutions: Sequence[Solution], baseline_author: str) -> Solution:
    """Return the one solution by the baseline author.

    Raises
    ------
    DataError
        If there is none, or more than one.
    """
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


def score_runs(solution: str, baseline: str, runs: Runs) -> Optional[SpeedupMetrics]:
    """Score a solution against a baseline, from digested traces.

    Returns
    -------
    SpeedupMetrics or None
        None if nothing can be compared.
    """
    if solution in runs.failed:
        return SpeedupMetrics(avg_speedup=0.0)
    mine, theirs = runs.best_ms.get(solution, {}), runs.best_ms.get(baseline, {})
    speedups = [theirs[uuid] / latency for uuid, latency in mine.items() if uuid in theirs]
    if not speedups:
        return None
    return SpeedupMetrics(
        avg_speedup=math.fsum(speedups) / len(speedups), n_workloads=len(speedups)
    )


def score_solution(data: Dataset, name: str, baseline_author: str) -> Optional[SpeedupMetrics]:
    """Score one solution; see `TraceSet.get_solution_score`."""
    solution = data.get_solution(name)
    if solution is None:
        return None
    definition = solution.definition
    baseline = find_baseline(definition, data.solutions.get(definition, []), baseline_author)
    if baseline.name == name:
        return None
    return score_runs(name, baseline.name, data.run_source.runs(definition))


def score_definition(
    data: Dataset, definition: str, baseline_author: str, *, author: Optional[str] = None
) -> dict[str, SpeedupMetrics]:
    """Return the best score of each author (or of one) on one definition.

    Raises
    ------
    DataError
        If the definition has solutions, but not exactly one by the baseline author; or if a
        passing trace has a latency that is not positive and finite.
    """
    solutions = data.solutions.get(definition, [])
    scored = [one for one in solutions if author is None or one.author == author]
    if not scored:
        return {}
    baseline = find_baseline(definition, solutions, baseline_author)
    runs = data.run_source.runs(definition)
    best: dict[str, SpeedupMetrics] = {}
    for solution in scored:
        if solution.name == baseline.name:
            continue
        score = score_runs(solution.name, baseline.name, runs)
        known = best.get(solution.author)
        if score is not None and (known is None or score.avg_speedup > known.avg_speedup):
            best[solution.author] = score
    return best


def combine(scores: Sequence[SpeedupMetrics]) -> SpeedupMetrics:
    """Return the mean of an author's scores on several definitions."""
    return SpeedupMetrics(
        avg_speedup=math.fsum(score.avg_speedup for score in scores) / len(scores),
        n_workloads=sum(score.n_workloads for score in scores),
        n_definitions=len(scores),
    )


def score_author(
    data: Dataset,
    author: str,
    baseline_author: str,
    op_type: Optional[str] = None,
    definition_name: Optional[str] = None,
) -> Optional[SpeedupMetrics]:
    """Score one author; see `TraceSet.get_author_score`."""
    names = select_definitions(data, op_type, definition_name)
    found = [score_definition(data, name, baseline_author, author=author) for name in names]
    scores = [scores[author] for scores in found if author in scores]
    return combine(scores) if scores else None


def rank_authors(
    data: Dataset,
    baseline_author: str,
    op_type: Optional[str] = None,
    definition_name: Optional[str] = None,
) -> list[tuple[str, SpeedupMetrics]]:
    """Rank all authors; see `TraceSet.rank_authors`."""
    names = select_definitions(data, op_type, definition_name)
    return rank_scores(score_definition(data, name, baseline_author) for name in names)


def rank_scores(
    per_definition: Iterable[Mapping[str, SpeedupMetrics]],
) -> list[tuple[str, SpeedupMetrics]]:
    """Combine the scores on single definitions into a ranking: best first, equals by name."""
    by_author: dict[str, list[SpeedupMetrics]] = {}
    for scores in per_definition:
        for author, score in scores.items():
            by_author.setdefault(author, []).append(score)
    ranked = [(author, combine(scores)) for author, scores in by_author.items()]
    return sorted(ranked, key=lambda entry: (-entry[1].avg_speedup, entry[0]))


def summarize(
    data: Dataset,
    baseline_author: str,
    op_type: Optional[str] = None,
    definition_name: Optional[str] = None,
) -> TraceSetSummary:
    """Count traces and rank authors; see `TraceSet.summary`."""
    total = passed = 0
    scores: list[Mapping[str, SpeedupMetrics]] = []
    unranked: dict[str, str] = {}
    for name in select_definitions(data, op_type, definition_name):
        runs, good = data.run_source.counts(name)
        total, passed = total + runs, passed + good
        try:
            scores.append(score_definition(data, name, baseline_author))
        except DataError as error:
            unranked[name] = error.message
    return TraceSetSummary(
        total=total,
        passed=passed,
        failed=total - passed,
        rankings=rank_scores(scores),
        unranked=unranked,
    )
