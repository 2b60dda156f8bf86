"""Results of comparing two solutions, on each workload and overall."""

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
        The definition and the workload.
    baseline, candidate : Solution
        The solutions; may be the same.
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
        The cause: ``baseline``, ``candidate``, ``reference`` or ``both``.
    kind : str
        ``wrong``: its outputs are wrong. ``failed``: it raised, died or timed out. ``not
        believed``: its latencies are disputed. ``unavailable``: this machine lacks something that
        it needs. ``workload``: the inputs cannot be generated, or cannot tell right from wrong.
        ``too slow``: too few launches finished in the given time. ``not recorded``: a trace lacks
        something that a comparison needs.
    message : str
        What happened.
    """

    role: Role
    kind: ObstacleKind
    message: str


@dataclass(frozen=True)
class ContestResult:
    """The result of one contest.

    Attributes
    ----------
    definition, workload : str
        Name of the definition and uuid of the workload.
    baseline, candidate : str
        Names of the solutions.
    comparison : Comparison, optional
        None if there is an obstacle.
    launches : tuple of Launch
        The samples in milliseconds, in the order taken.
    obstacle : Obstacle, optional
        Why there is no comparison.
    stopped : str
        Why it ended. ``decided``: the verdict is clear. ``time``: no time was left. Empty for
        recorded traces.
    seconds : float
        Duration.
    notes : tuple of str
        Remarks for the user.
    timer, cache, hardware : str
        Timer, cache mode and device of the samples.
    recorded : tuple, optional
        Samples of the baseline's and the candidate's trace, instead of launches.
    p_adjusted : float, optional
        The p-value corrected for the number of workloads; see `answer`.
    verdict : Verdict, optional
        By the corrected p-value; None if there is an obstacle.
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
        """All samples of the baseline and of the candidate, in milliseconds."""
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
    """The verdicts on each workload and overall.

    Attributes
    ----------
    results : tuple of ContestResult
        With corrected p-values and the resulting verdicts.
    overall : Overall, optional
        Over all workloads that could be compared; None if there are none.
    """

    results: tuple[ContestResult, ...]
    overall: Optional[Overall]

    @property
    def verdicts(self) -> set[Verdict]:
        """The verdicts on all workloads, and on their mean."""
        judged = (*self.results, self.overall)
        return {one.verdict for one in judged if one is not None and one.verdict is not None}

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """The obstacles of all results."""
        return tuple(one.obstacle for one in self.results if one.obstacle is not None)


def answer(results: Sequence[ContestResult], *, min_effect: float, alpha: float) -> Answer:
    """Combine the results of contests.

    The p-values of the workloads and of their mean are corrected by Holm's method [1]_: the
    probability of calling *any* of them slower or faster by chance is at most `alpha`, for any
    number of workloads. The intervals of the workloads are not corrected.

    Parameters
    ----------
    results : sequence of ContestResult
        One for each workload.
    min_effect : float
        Smallest relative difference that counts.
    alpha : float
        Probability of a false alarm.

    References
    ----------
    .. [1] S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6
       (1979), 65-70.
    """
    comparisons = [one.comparison for one in results if one.comparison is not None]
    if not comparisons:
        return Answer(tuple(results), None)
    total = overall(comparisons, min_effect=min_effect, alpha=alpha)
    corrected = iter(total.comparisons)
    judged = []
    for one in results:
        if one.comparison is not None:
            found = next(corrected)
            one = replace(one, p_adjusted=found.p_value, verdict=found.verdict)
        judged.append(one)
    return Answer(tuple(judged), total)


_FEWEST_SAMPLES = 5  # for the interval of a median
_UNPAIRED = "unpaired: taken at different times, so that changes of the machine are included"


def read_traces(path: Path) -> list[Trace]:
    """Return the runs of a dataset, or of one trace file, from the oldest to the latest.

    Raises
    ------
    DatasetNotFoundError
        If the path is neither.
    SelectionError
        If it has no runs.
    StorageError
        If a file cannot be read.
    """
    if path.is_file():
        targets = read_targets(path)
    elif not path.is_dir():
        raise DatasetNotFoundError(
            f"{path} is neither a dataset nor a trace file",
            hint="give the folder of a dataset, or a file in its folder traces",
        )
    else:
        traces = TraceSet.from_path(path, on_error="collect").traces
        targets = [Target(trace) for group in traces.values() for trace in group]
    runs = [one.trace for one in latest(targets) if one.trace is not None]
    if not runs:
        raise SelectionError(f"{path} has no recorded runs", hint="record some with 'fib run'")
    return runs


Key = tuple[str, str, str]
"""Definition, uuid of the workload, and name of the solution if it is the same on both sides."""


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
        The smallest difference that counts, and the probability of a false alarm.
    names : tuple of str, optional
        The solution on each side; by default each solution is compared with itself.
    force : bool
        Compare even results with different hardware, timers or definitions, and add a note.

    Raises
    ------
    SelectionError
        If the sides have nothing in common.
    ConflictError
        If the traces are not comparable and `force` is False.
    """
    first = _latest(baseline, names and names[0])
    second = _latest(candidate, names and names[1])
    keys = [key for key in first if key in second]
    if not keys:
        raise SelectionError(
            f"nothing to compare: of {len(first)} matching runs of the baseline and {len(second)} "
            "of the candidate, none are on the same workload",
            hint="if the solutions differ, name them with --baseline and --candidate",
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
    """Return notes on what differs.

    Raises
    ------
    ConflictError
        If a difference makes the comparison meaningless and `force` is False.
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
                f"{where}: {text}: the latencies are not comparable",
                hint="--force compares them anyway",
            )
        notes.append(f"compared by --force despite different {text}")
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
        text = "a median latency is 0, below the resolution of the timer"
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
        return Obstacle(role, "wrong", f"the latest run of {trace.solution!r} has status {status}")
    count = len(_samples(trace))
    if count < _FEWEST_SAMPLES:
        text = f"only {count} of the required {_FEWEST_SAMPLES} samples are recorded"
        return Obstacle(role, "not recorded", text)
    return None
