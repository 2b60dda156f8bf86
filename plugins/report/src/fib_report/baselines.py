"""Comparison of solutions with a baseline: a solution, or an author's fastest in each task."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Optional

from fib_report.results import split_by_setting
from fib_report.scores import Measured, latency_of, mean_of, ratio_of
from flashinfer_bench.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fib_report.results import Result
    from fib_report.scores import SolutionScore

Task = tuple[str, str, str]
"""Definition, workload and device."""


def speedup_over(baseline: Measured, own: Measured) -> Measured:
    """Return the latency of a baseline over another latency; exactly 1 for the baseline itself."""
    if baseline == own:  # the same run: errors cancel out
        return Measured(1.0, (1.0, 1.0) if own.ends is not None else None)
    return ratio_of(baseline, own)


@dataclass(frozen=True)
class Against:
    """How a solution compares with the baseline, unpaired: from separate runs of both.

    Attributes
    ----------
    speedup : Measured
        Latency of the baseline over that of the solution: geometric mean over the workloads that
        both solved.
    workloads : int
        Number of these workloads.
    """

    speedup: Measured
    workloads: int


class NamedBaseline:
    """The solution, or the solutions of the author, that others are compared with.

    Parameters
    ----------
    results : sequence of Result
        As `latest_results` returns them, including those of the baseline.
    name : str
        Name of a solution, or else of an author, whose fastest counts on each workload.

    Raises
    ------
    UnknownNameError
        If no solution or author of that name has results.
    """

    def __init__(self, results: Sequence[Result], name: str) -> None:
        authors = {one.author for one in results}
        known = {one.solution for one in results} | authors
        if name not in known:
            close = get_close_matches(name, known, n=3) or sorted(authors)[:8]
            raise UnknownNameError(
                f"no results of a solution or author {name!r} to compare with",
                hint=f"similar or available names: {', '.join(close)}",
                unknown=(name,),
            )
        self._settings = split_by_setting(results)
        self._latencies = {
            setting: baseline_latencies(here, name) for setting, here in self._settings.items()
        }

    def against(self, score: SolutionScore) -> Optional[Against]:
        """Return how a solution compares; None if they have no solved workload in common."""
        setting = (score.hardware, (score.timer, score.cache))
        baseline, ratios = self._latencies.get(setting, {}), []
        for result in self._settings.get(setting, ()):
            if (result.solution, result.definition) == (score.solution, score.definition):
                mine, theirs = latency_of(result), baseline.get(task_of(result))
                if mine is not None and theirs is not None:
                    ratios.append(speedup_over(theirs, mine))
        mean = mean_of(ratios)
        return Against(mean, len(ratios)) if mean is not None else None


def task_of(result: Result) -> Task:
    """Return the task that a result is about."""
    return result.definition, result.workload, result.hardware


def baseline_latencies(results: Iterable[Result], name: str) -> dict[Task, Measured]:
    """Return the lowest latency of a baseline in each task that it solved, in milliseconds.

    Parameters
    ----------
    results : iterable of Result
        Results with the same timer and cache mode.
    name : str
        Name of a solution, or else of an author, whose fastest counts in each task.
    """
    given = list(results)
    mine = [one for one in given if one.solution == name]
    return fastest_of(mine or [one for one in given if one.author == name])


def fastest_of(results: Iterable[Result]) -> dict[Task, Measured]:
    """Return the lowest latency of each solved task."""
    fastest: dict[Task, Measured] = {}
    for result in results:
        latency, task = latency_of(result), task_of(result)
        if latency is not None and (task not in fastest or latency.value < fastest[task].value):
            fastest[task] = latency
    return fastest
