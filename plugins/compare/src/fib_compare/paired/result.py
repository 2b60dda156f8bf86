"""What comes of comparing two solutions, on each workload and over all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal, Optional

from fib_compare.stats.compare import Verdict, overall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fib_compare.stats.compare import Comparison, Launch, Overall
    from flashinfer_bench.data import Definition, Solution, Workload

Role = Literal["baseline", "candidate", "reference", "both"]
ObstacleKind = Literal[
    "wrong", "failed", "not believed", "unavailable", "workload", "too slow", "not recorded"
]
Stopped = Literal["decided", "time", ""]


@dataclass(frozen=True)
class Contest:
    """Two solutions of one definition, and the workload that they are compared on.

    Attributes
    ----------
    definition, workload
        What is computed, on what.
    baseline, candidate : Solution
        Who is compared; they may be the same.
    """

    definition: Definition
    workload: Workload
    baseline: Solution
    candidate: Solution


@dataclass(frozen=True)
class Obstacle:
    """Why two solutions cannot be compared on a workload.

    Attributes
    ----------
    role : str
        Who is to blame: ``baseline``, ``candidate``, ``reference`` or ``both``.
    kind : str
        ``wrong``: its outputs are. ``failed``: it raised, died or took too long. ``not believed``:
        its latency is not. ``unavailable``: this machine lacks what it needs. ``workload``: the
        inputs cannot be made, or decide nothing. ``too slow``: not one launch was finished in the
        time given. ``not recorded``: a trace lacks what a comparison needs.
    message : str
        What happened.
    """

    role: Role
    kind: ObstacleKind
    message: str


@dataclass(frozen=True)
class ContestResult:
    """What has come of one contest.

    Attributes
    ----------
    definition, workload : str
        Name and uuid.
    baseline, candidate : str
        Names of the solutions.
    comparison : Comparison, optional
        None if there is an obstacle.
    launches : tuple of Launch
        The samples that it is about, in milliseconds, in the order taken.
    obstacle : Obstacle, optional
        Why there is no comparison.
    stopped : str
        ``decided``: more launches would change nothing. ``time``: no time was left. Empty for what
        was not run.
    seconds : float
        Wall time that it took.
    notes : tuple of str
        What else is to be known about it.
    timer, cache, hardware : str
        What took the samples, how the caches of the device were before each, and where.
    recorded : tuple, optional
        Instead of launches: the samples of the baseline's trace, and of the candidate's.
    p_adjusted : float, optional
        The p-value corrected for the number of workloads; see `answer`.
    verdict : Verdict, optional
        With that p-value; None if there is an obstacle.
    """

    definition: str
    workload: str
    baseline: str
    candidate: str
    comparison: Optional[Comparison] = None
    launches: tuple[Launch, ...] = ()
    obstacle: Optional[Obstacle] = None
    stopped: Stopped = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    timer: str = ""
    cache: str = ""
    hardware: str = ""
    recorded: Optional[tuple[tuple[float, ...], tuple[float, ...]]] = None
    p_adjusted: Optional[float] = None
    verdict: Optional[Verdict] = None

    @property
    def samples_ms(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """All samples of the baseline, and of the candidate, in milliseconds."""
        if self.recorded is not None:
            return self.recorded
        return (
            tuple(value for launch in self.launches for value in launch.baseline),
            tuple(value for launch in self.launches for value in launch.candidate),
        )

    @property
    def baseline_ms(self) -> Optional[float]:
        """Median latency of the baseline in milliseconds."""
        return _median(self.samples_ms[0])

    @property
    def candidate_ms(self) -> Optional[float]:
        """Median latency of the candidate in milliseconds."""
        return _median(self.samples_ms[1])


def _median(samples: Sequence[float]) -> Optional[float]:
    return median(samples) if samples else None


@dataclass(frozen=True)
class Answer:
    """The answer to "is it slower", on each workload and overall.

    Attributes
    ----------
    results : tuple of ContestResult
        With corrected p-values, and the verdicts that follow from them.
    overall : Overall, optional
        Over all workloads that could be compared; None if there is none.
    min_effect, alpha : float
        What counts as a difference, and how often it may be claimed by chance.
    """

    results: tuple[ContestResult, ...]
    overall: Optional[Overall]
    min_effect: float
    alpha: float

    @property
    def verdicts(self) -> set[Verdict]:
        """Those of all workloads, and that of their mean."""
        judged = (*self.results, self.overall)
        return {one.verdict for one in judged if one is not None and one.verdict is not None}

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """Everything that stood in the way."""
        return tuple(one.obstacle for one in self.results if one.obstacle is not None)


def answer(results: Sequence[ContestResult], *, min_effect: float, alpha: float) -> Answer:
    """Return what contests say together.

    The p-values of the workloads, and of their mean, are corrected by Holm's method [1]_: the
    chance of calling *any* of them slower or faster by accident is at most `alpha`, however many
    there are. Intervals are those of each workload by itself.

    Parameters
    ----------
    results : sequence of ContestResult
        One for each workload.
    min_effect : float
        Smallest relative difference that counts.
    alpha : float
        Chance of a false alarm.

    References
    ----------
    .. [1] S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6
       (1979), 65-70.
    """
    comparisons = [one.comparison for one in results if one.comparison is not None]
    if not comparisons:
        return Answer(tuple(results), None, min_effect, alpha)
    total = overall(comparisons, min_effect=min_effect, alpha=alpha)
    corrected = iter(total.comparisons)
    judged = []
    for one in results:
        if one.comparison is not None:
            found = next(corrected)
            one = replace(one, p_adjusted=found.p_value, verdict=found.verdict)
        judged.append(one)
    return Answer(tuple(judged), total, min_effect, alpha)
