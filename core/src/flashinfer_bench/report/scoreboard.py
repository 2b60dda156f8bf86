"""How authors or solutions stand on each device, by every measure at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.errors import DataError
from flashinfer_bench.report.conditions import mixtures, split_by_setting
from flashinfer_bench.report.devices import split_by_device
from flashinfer_bench.report.ratings import THRESHOLDS, by_author, by_solution, rate_authors
from flashinfer_bench.report.results import choose_runs, flatten, latest_results, with_intervals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.report.devices import DevicePart
    from flashinfer_bench.report.ratings import Rating
    from flashinfer_bench.report.results import Conditions, Result, Selection


@dataclass(frozen=True)
class Standing:
    """How one author or solution stands on one device.

    Attributes
    ----------
    hardware : str
        The device.
    timer, cache : str
        What latencies were taken with; empty where traces do not tell it.
    rating : Rating
        Measures over tasks.
    score : float or None
        The score of `TraceSet.get_author_score` or `TraceSet.get_solution_score`: the mean speed-up
        over the baseline author, 0 for a solution that failed anywhere. None for the baseline
        itself and where there is nothing to compare with.
    """

    hardware: str
    timer: str
    cache: str
    rating: Rating
    score: Optional[float]


@dataclass(frozen=True)
class Scoreboard:
    """All standings.

    Attributes
    ----------
    standings : tuple of Standing
        By device, timer and cache mode, the best first.
    baseline_author : str or None
        Author or solution with which speed-ups compare; None if it is the definition's reference.
    mixtures : mapping
        Devices with several timers or cache modes, and these: they are rated apart.
    """

    standings: tuple[Standing, ...]
    baseline_author: Optional[str]
    mixtures: Mapping[str, list[Conditions]]


def make_scoreboard(
    trace_set: TraceSet,
    selection: Selection,
    baseline_author: Optional[str] = "baseline",
    thresholds: Sequence[float] = THRESHOLDS,
    solutions: bool = False,
) -> Scoreboard:
    """Rate everyone by the latest results.

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
        The p at which fast_p and win rates are told.
    solutions : bool
        Whether to rate solutions instead of authors.

    Raises
    ------
    UnknownNameError
        If the selection names what the dataset does not have.
    """
    chosen = choose_runs(trace_set, selection)
    results = with_intervals(latest_results(flatten(trace_set, chosen)))
    if not any(is_of(result, baseline_author) for result in results):
        baseline_author = None
    parts = split_by_device(trace_set, chosen)
    settings = split_by_setting(results)
    standings: list[Standing] = []
    for setting, here in settings.items():
        group = by_solution if solutions else by_author
        rated = rate_authors(here, baseline_author, thresholds, group)
        scores = _scores(parts.get(setting), here, baseline_author, solutions)
        hardware, conditions = setting
        standings += [Standing(hardware, *conditions, one, scores.get(one.name)) for one in rated]
    return Scoreboard(tuple(standings), baseline_author, mixtures(settings))


def is_of(result: Result, name: Optional[str]) -> bool:
    """Return whether a result passed and is of the solution or author of that name."""
    return result.passed and name in (result.solution, result.author)


def _scores(
    part: Optional[DevicePart],
    results: Sequence[Result],
    baseline_author: Optional[str],
    solutions: bool,
) -> dict[str, float]:
    authors = {result.author for result in results}
    if part is None or baseline_author not in authors:  # a solution has no score over another
        return {}
    if not solutions:
        ranked = part.summary(baseline_author=baseline_author).rankings
        return {author: score.avg_speedup for author, score in ranked}
    found = {}
    for name in {result.solution for result in results}:
        try:
            score = part.get_solution_score(name, baseline_author)
        except (ValueError, DataError):  # its definition has no solution of theirs, or several
            continue
        if score is not None:
            found[name] = score.avg_speedup
    return found
