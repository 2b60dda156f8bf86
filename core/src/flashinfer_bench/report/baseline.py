"""Solutions against a baseline that the user names."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.errors import UnknownNameError
from flashinfer_bench.report.conditions import Setting, split_by_setting
from flashinfer_bench.report.intervals import Measured, latency_of, mean_of, speedup_over
from flashinfer_bench.report.ratings import baseline_latencies, task_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flashinfer_bench.report.results import Result
    from flashinfer_bench.report.scores import SolutionScore


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
        require_baseline(results, name)
        self._settings: dict[Setting, list[Result]] = split_by_setting(results)
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


def require_baseline(results: Iterable[Result], name: str) -> None:
    """Refuse a baseline of which there is no result.

    Raises
    ------
    UnknownNameError
        With what is close to it, or what there is, in the hint.
    """
    given = list(results)
    known = {one.solution for one in given} | {one.author for one in given}
    if name in known:
        return
    close = get_close_matches(name, known, n=3) or sorted({one.author for one in given})[:8]
    raise UnknownNameError(
        f"there is no result of a solution or author {name!r} to compare with",
        hint=f"close to it or there: {', '.join(close)}",
        unknown=(name,),
    )
