"""Comparing solutions with a baseline: a solution, or the fastest of an author, in each task."""

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
    """Return the latency of a baseline over another; exactly 1 over that of itself."""
    if baseline == own:  # one and the same run, in which its errors cancel out
        return Measured(1.0, (1.0, 1.0) if own.ends is not None else None)
    return ratio_of(baseline, own)


@dataclass(frozen=True)
class Against:
    """How a solution compares with the baseline, by separate runs of both: unpaired.

    Attributes
    ----------
    speedup : Measured
        Latency of the baseline over that of the solution: geometric mean over what both solved.
    workloads : int
        Number of these.
    """

    speedup: Measured
    workloads: int


class NamedBaseline:
    """A solution, or the solutions of an author, with which others are compared.

    Parameters
    ----------
    results : sequence of Result
        As `latest_results` gives them; those of the baseline among them.
    name : str
        Of a solution, or of an author if no solution has it: their fastest counts on each workload.

    Raises
    ------
    UnknownNameError
        If there is neither a result of such a solution nor of such an author.
    """

    def __init__(self, results: Sequence[Result], name: str) -> None:
        authors = {one.author for one in results}
        known = {one.solution for one in results} | authors
        if name not in known:
            close = get_close_matches(name, known, n=3) or sorted(authors)[:8]
            raise UnknownNameError(
                f"there is no result of a solution or author {name!r} to compare with",
                hint=f"close to it or there: {', '.join(close)}",
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
        Of one timer and cache mode.
    name : str
        Of a solution, or of an author if no solution has it: their fastest counts in each task.
    """
    given = list(results)
    mine = [one for one in given if one.solution == name]
    return fastest_of(mine or [one for one in given if one.author == name])


def fastest_of(results: Iterable[Result]) -> dict[Task, Measured]:
    """Return the lowest latency in each task that was solved."""
    fastest: dict[Task, Measured] = {}
    for result in results:
        latency, task = latency_of(result), task_of(result)
        if latency is not None and (task not in fastest or latency.value < fastest[task].value):
            fastest[task] = latency
    return fastest
