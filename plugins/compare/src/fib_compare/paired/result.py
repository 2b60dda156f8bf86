"""What comes of comparing two solutions, on each workload and over all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal, Optional

from fib_compare.stats import Comparison, Launch, Overall, Verdict, compare_unpaired, overall
from fib_compare.targets import Target, latest, read_targets
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload
from flashinfer_bench.errors import ConflictError, DatasetNotFoundError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from fib_compare.paired.comparer import CompareSettings


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


_FEWEST_SAMPLES = 5  # of which a median's interval can be told
_UNPAIRED = "unpaired: taken at different times, whatever the machine did meanwhile is in it"


def read_traces(path: Path) -> list[Trace]:
    """Return the runs of a dataset, or of one file of traces, from the oldest to the latest.

    Raises
    ------
    DatasetNotFoundError
        If there is neither.
    SelectionError
        If there is no run.
    StorageError
        If a file cannot be read.
    """
    if path.is_file():
        targets = read_targets(path)
    elif not path.is_dir():
        raise DatasetNotFoundError(
            f"{path}: there is neither a dataset nor a file of traces",
            hint="name a dataset's folder, or one of the files in its folder traces",
        )
    else:
        traces = TraceSet.from_path(path, on_error="collect").traces
        targets = [Target(trace) for group in traces.values() for trace in group]
    runs = [one.trace for one in latest(targets) if one.trace is not None]
    if not runs:
        raise SelectionError(f"{path}: no runs are recorded there", hint="'fib run' records them")
    return runs


Key = tuple[str, str, str]
"""Definition, uuid of the workload, and what is compared."""


def compare_recorded(
    baseline: Iterable[Trace],
    candidate: Iterable[Trace],
    settings: CompareSettings,
    names: Optional[tuple[str, str]] = None,
    *,
    force: bool = False,
) -> list[ContestResult]:
    """Compare the latest recorded runs of solutions on each workload.

    Parameters
    ----------
    baseline, candidate : iterable of Trace
        From the oldest to the latest.
    settings : CompareSettings
        What counts as a difference.
    names : tuple of str, optional
        The solution of either side to compare; by default each is compared with itself.
    force : bool
        Compare even what was taken on other hardware, by another timer, or of another definition;
        the results then have a note.

    Raises
    ------
    SelectionError
        If there is nothing that both sides have.
    ConflictError
        If the two cannot be compared, and `force` is False.
    """
    first = _latest(baseline, names and names[0])
    second = _latest(candidate, names and names[1])
    keys = [key for key in first if key in second]
    if not keys:
        raise SelectionError(
            f"nothing to compare: the baseline has {len(first)} runs and the candidate "
            f"{len(second)} that fit, and none on the same workload",
            hint="name the solutions with --baseline and --candidate if they differ",
        )
    pairs = [(first[key], second[key]) for key in keys]
    return [_compare(*pair, _differences(pair, force=force), settings) for pair in pairs]


def _latest(traces: Iterable[Trace], name: Optional[str]) -> dict[Key, Trace]:
    return {
        (one.definition, one.workload.uuid, one.solution or "" if name is None else ""): one
        for one in traces
        if one.evaluation is not None and name in (None, one.solution)
    }


def _differences(pair: tuple[Trace, Trace], *, force: bool) -> list[str]:
    """Return remarks on what differs.

    Raises
    ------
    ConflictError
        If something does that makes a comparison worthless, and `force` is False.
    """
    notes = [_UNPAIRED]
    facts = [_facts(trace) for trace in pair]
    for name, before in facts[0].items():
        after = facts[1][name]
        if before == after:
            continue
        if before is None or after is None:
            notes.append(f"{name}: not recorded on both sides")
            continue
        text = f"{name}: {before!r} in the baseline, {after!r} in the candidate"
        if not force:
            where = f"{pair[0].definition} / {pair[0].workload.uuid}"
            raise ConflictError(
                f"{where}: {text}: their latencies say nothing about the solutions",
                hint="--force compares them nevertheless",
            )
        notes.append(f"forced, although they differ in {text}")
    return notes


def _facts(trace: Trace) -> dict[str, Optional[str]]:
    evaluation = trace.evaluation
    assert evaluation is not None
    told = evaluation.provenance
    return {
        "hardware": evaluation.environment.hardware,
        "timer": told.timer if told is not None else None,
        "timer version": told.timer_version if told is not None else None,
        "definition": told.definition_hash if told is not None else None,
    }


def _compare(
    first: Trace, second: Trace, notes: Sequence[str], settings: CompareSettings
) -> ContestResult:
    facts = _facts(second)
    result = ContestResult(
        definition=first.definition,
        workload=first.workload.uuid,
        baseline=first.solution or "",
        candidate=second.solution or "",
        notes=tuple(notes),
        timer=facts["timer"] or "",
        hardware=facts["hardware"] or "",
    )
    problem = _obstacle("baseline", first) or _obstacle("candidate", second)
    if problem is not None:
        return replace(result, obstacle=problem)
    samples = _samples(first), _samples(second)
    if not all(median(side) for side in samples):
        text = "a median of 0 has no ratio: the timer could not tell the latency from zero"
        return replace(result, obstacle=Obstacle("both", "not recorded", text))
    comparison = compare_unpaired(*samples, min_effect=settings.min_effect, alpha=settings.alpha)
    return replace(result, comparison=comparison, recorded=samples)


def _samples(trace: Trace) -> tuple[float, ...]:
    performance = trace.evaluation.performance if trace.evaluation is not None else None
    return tuple(performance.samples_ms or ()) if performance is not None else ()


def _obstacle(role: Literal["baseline", "candidate"], trace: Trace) -> Optional[Obstacle]:
    assert trace.evaluation is not None
    if not trace.is_successful():
        status = trace.evaluation.status.value
        return Obstacle(role, "wrong", f"the latest run of {trace.solution!r} ended in {status}")
    count = len(_samples(trace))
    if count < _FEWEST_SAMPLES:
        text = f"{count} samples are recorded, and {_FEWEST_SAMPLES} are needed"
        return Obstacle(role, "not recorded", text)
    return None
