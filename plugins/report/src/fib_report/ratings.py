"""Ratings of authors and solutions: fast_p, win rates and means over tasks.

A task is one workload of one definition on one device. A task that one author was evaluated on
counts for all who are compared on that device, so that skipping hard tasks gives no advantage.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Optional

from fib_report.authors import rankable
from fib_report.baselines import Task, baseline_latencies, fastest_of, speedup_over, task_of
from fib_report.results import (
    collect_results,
    grouped,
    latest_results,
    split_by_setting,
    with_intervals,
)
from fib_report.scores import latency_of, mean_of, rank_labels, speedup_of
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fib_report.authors import Ranking
    from fib_report.results import Result
    from fib_report.scores import Measured
    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.data.selection import Selection


Curve = list[tuple[float, float]]

THRESHOLDS = (1.0, 1.5, 2.0)
"""The default p of fast_p and win rates."""


@dataclass(frozen=True)
class Rating:
    """Results of one author or solution over all tasks.

    Attributes
    ----------
    name : str
        Of the author or solution.
    tasks, tried, solved : int
        Number of all tasks, of those evaluated, and of those solved.
    definitions : int
        Number of definitions with at least one solved task.
    speedup : Measured or None
        Geometric mean of the speed-ups over the baseline in the compared tasks.
    mean_speedup : float or None
        Their arithmetic mean.
    compared : int
        Number of solved tasks that have a speed-up.
    fast : mapping of float to float
        fast_p: share of all tasks that were solved more than p times as fast.
    wins : mapping of float to float
        Win rate at p: share of the compared tasks in which it is at least p times as fast.
    first : int
        Number of tasks in which it is the fastest.
    without_interval : int
        Number of speed-ups without an interval.
    rank : str
        Place by fast_p at the first threshold, then by the geometric mean: ``1``, or ``=2`` where
        intervals overlap, so that the means cannot be told apart.
    samples, dropped : int
        Number of all samples, and of the dropped ones among them.
    reference_before : int
        Number of passing results whose reference was timed before the solution and not alternating
        with it; 0 unless the reference is the baseline.
    """

    name: str
    tasks: int
    tried: int
    solved: int
    definitions: int
    speedup: Optional[Measured]
    mean_speedup: Optional[float]
    compared: int
    fast: Mapping[float, float] = field(default_factory=dict)
    wins: Mapping[float, float] = field(default_factory=dict)
    first: int = 0
    without_interval: int = 0
    rank: str = ""
    samples: int = 0
    dropped: int = 0
    reference_before: int = 0


def _speedups(
    results: Sequence[Result], baseline: Optional[Mapping[Task, Measured]]
) -> dict[Task, Measured]:
    """Return the highest speed-up of each task; over the reference if there is no baseline."""
    best: dict[Task, Measured] = {}
    for result in results:
        task, speedup = task_of(result), speedup_of(result)
        if baseline is not None:
            found, latency = baseline.get(task), latency_of(result)
            speedup = speedup_over(found, latency) if found and latency else None
        if speedup is not None:
            best[task] = max(speedup, best.get(task, speedup), key=lambda figure: figure.value)
    return best


def _countable(
    results: Iterable[Result], baseline: Optional[Mapping[Task, Measured]]
) -> list[Result]:
    """Leave out passing results that have no baseline to compare with."""
    known = [result for result in results if not result.disputed]
    if baseline is not None:
        return [result for result in known if task_of(result) in baseline]
    return [result for result in known if not result.passed or result.speedup is not None]


def rate_authors(
    results: Sequence[Result],
    baseline_author: Optional[str] = None,
    thresholds: Sequence[float] = THRESHOLDS,
    group: str = "author",
) -> list[Rating]:
    """Rate authors, or solutions, by their results.

    Parameters
    ----------
    results : sequence of Result
        At most one for each solution, workload and device, as `latest_results` returns them, with
        the same timer and cache mode; see `split_by_setting`.
    baseline_author : str, optional
        Compare with the fastest solution of this author, or with the solution of this name, in the
        tasks that they solved; by default with the definition's reference, as it was timed with
        each solution.
    thresholds : sequence of float
        The p of fast_p and win rates.
    group : str
        What to rate: ``author`` or ``solution``. The tasks of a solution are those of its
        definition.

    Returns
    -------
    list of Rating
        By fast_p at the first threshold, then by the geometric mean, the best first.
    """
    baseline = None if baseline_author is None else baseline_latencies(results, baseline_author)
    counted = _countable(results, baseline)
    tasks = {task_of(result) for result in counted}
    leaders = fastest_of(counted)
    rated = []
    for name, one in grouped(counted, group).items():
        # The tasks of other definitions do not count for a solution.
        own = {result.definition for result in one}
        total = sum(group == "author" or task[0] in own for task in tasks)
        rated.append(_rate(name, one, total, leaders, baseline, thresholds))
    return _with_ranks(sorted(rated, key=lambda one: (*_order(one), one.name)))


def _with_ranks(ratings: Sequence[Rating]) -> list[Rating]:
    """Return ordered ratings with their ranks: one more than the number of better ones."""
    places: list[int] = []
    for _, group in groupby(ratings, key=lambda one: _order(one)[0]):
        alike = list(group)
        begin = len(places)
        lows = sorted(one.speedup.low for one in alike if one.speedup is not None)
        for one in alike:
            worse = 0 if one.speedup is None else bisect_right(lows, one.speedup.high)
            places.append(1 + begin + len(lows) - worse)
    labels = rank_labels(places)
    return [replace(one, rank=label) for one, label in zip(ratings, labels, strict=True)]


def _order(rating: Rating) -> tuple[float, float]:
    first = next(iter(rating.fast.values()), 0.0)
    return -first, -(rating.speedup.value if rating.speedup is not None else 0.0)


def _rate(
    name: str,
    results: Sequence[Result],
    total: int,
    leaders: Mapping[Task, Measured],
    baseline: Optional[Mapping[Task, Measured]],
    thresholds: Sequence[float],
) -> Rating:
    speedups = _speedups(results, baseline)
    ordered = sorted(one.value for one in speedups.values())
    fastest = fastest_of(results)
    against_reference = [one for one in results if baseline is None and one.passed]
    solved = {task_of(result) for result in results if result.passed}
    more = {p: len(ordered) - bisect_right(ordered, p) for p in thresholds}
    at_least = {p: sum(value >= p for value in ordered) for p in thresholds}
    return Rating(
        name=name,
        tasks=total,
        tried=len({task_of(result) for result in results}),
        solved=len(solved),
        definitions=len({definition for definition, _, _ in solved}),
        speedup=mean_of(speedups.values()),
        mean_speedup=sum(ordered) / len(ordered) if ordered else None,
        compared=len(ordered),
        fast={p: count / total for p, count in more.items()},
        wins={p: count / len(ordered) if ordered else 0.0 for p, count in at_least.items()},
        first=sum(fastest[task].value <= leaders[task].value for task in fastest),
        without_interval=sum(one.ends is None for one in speedups.values()),
        samples=sum(one.sample_total for one in results),
        dropped=sum(one.dropped for one in results),
        reference_before=sum(one.clock.reference == "before" for one in against_reference),
    )


def fastp_curves(results: Sequence[Result]) -> dict[str, Curve]:
    """Return the fast_p curve of each author against the reference.

    Where an author has several solutions, the fastest that passed counts in each task.

    Parameters
    ----------
    results : sequence of Result
        At most one for each solution, workload and device.

    Returns
    -------
    dict
        Corners (p, share) by author, the highest fast_1 first.
    """
    counted = _countable(results, None)
    tasks = {task_of(result) for result in counted}
    curves = {
        name: fast_p([value for value, _ in _speedups(one, None).values()], len(tasks))
        for name, one in grouped(counted, "author").items()
    }
    return dict(sorted(curves.items(), key=lambda item: (-_share_at_one(item[1]), item[0])))


def _share_at_one(curve: Curve) -> float:
    """Return fast_1 plus a little of fast_0, which orders authors with the same fast_1."""
    fast_1 = [share for p, share in curve if p <= 1.0][-1]
    return fast_1 + 1e-3 * curve[0][1]


def fast_p(speedups: Sequence[float], total: int) -> Curve:
    """Return the fast_p curve: the share of tasks that were solved more than p times as fast.

    This is the measure of KernelBench; a task here is one workload of one definition.

    Parameters
    ----------
    speedups : sequence of float
        Speed-up of each task that was solved correctly, positive.
    total : int
        Number of tasks, solved or not; at least ``len(speedups)``.

    Returns
    -------
    list of (float, float)
        Corners (p, share) in ascending order of p. The share holds from its p up to the next one;
        the first corner is at p = 0. Empty if there are no tasks.
    """
    if total <= 0:
        return []
    shares = {0.0: len(speedups) / total}
    for index, speedup in enumerate(sorted(speedups)):
        shares[speedup] = (len(speedups) - index - 1) / total  # the last of equal ones counts
    return list(shares.items())


@dataclass(frozen=True)
class Standing:
    """Rating and score of one author or solution on one device.

    Attributes
    ----------
    hardware : str
        The device.
    timer, cache : str
        What latencies were measured with; empty if traces do not say.
    rating : Rating
        Measures over tasks.
    score : float or None
        The score of `TraceSet.get_author_score` or `TraceSet.get_solution_score`: the mean speed-up
        over the baseline author, 0 for a solution that failed anywhere. None for the baseline
        itself, and if there is nothing to compare with.
    """

    hardware: str
    timer: str
    cache: str
    rating: Rating
    score: Optional[float]


def make_scoreboard(
    trace_set: TraceSet,
    selection: Selection,
    baseline_author: Optional[str] = "baseline",
    thresholds: Sequence[float] = THRESHOLDS,
    solutions: bool = False,
) -> tuple[list[Standing], Optional[str]]:
    """Rate all authors, or all solutions, by the latest results.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    selection : Selection
        Definitions, op types and hardware to look at.
    baseline_author : str, optional
        Compare with the solution of this name, or the fastest of this author; with the definition's
        reference if it is None, or if they solved nothing.
    thresholds : sequence of float
        The p of fast_p and win rates.
    solutions : bool
        Whether to rate solutions instead of authors.

    Returns
    -------
    list of Standing
        By device, timer and cache mode, the best first.
    str or None
        The author or solution that speed-ups are over; None for the definition's reference.

    Raises
    ------
    UnknownNameError
        If the selection names what the dataset does not have.
    """
    everything = collect_results(trace_set, selection)
    results = with_intervals(latest_results(everything))
    if not any(one.passed and baseline_author in (one.solution, one.author) for one in results):
        baseline_author = None
    rankings = rankable(trace_set, everything)
    group = "solution" if solutions else "author"
    standings: list[Standing] = []
    for setting, here in split_by_setting(results).items():
        scores: dict[str, float] = {}
        # A score is over an author's solution, not over a named solution.
        if setting in rankings and baseline_author in {result.author for result in here}:
            if solutions:
                scores = _solution_scores(trace_set, rankings[setting], here, str(baseline_author))
            else:
                ranked = rankings[setting].summarize(str(baseline_author)).rankings
                scores = {author: score.avg_speedup for author, score in ranked}
        hardware, conditions = setting
        rated = rate_authors(here, baseline_author, thresholds, group)
        standings += [Standing(hardware, *conditions, one, scores.get(one.name)) for one in rated]
    return standings, baseline_author


def _solution_scores(
    trace_set: TraceSet, ranking: Ranking, results: Iterable[Result], baseline_author: str
) -> dict[str, float]:
    found = {}
    for name in {result.solution for result in results}:
        solution = trace_set.get_solution(name)
        # Its definition may have no solution of the baseline author, or several.
        with suppress(DataError):
            score = ranking.score(solution, baseline_author) if solution is not None else None
            if score is not None:
                found[name] = score.avg_speedup
    return found
