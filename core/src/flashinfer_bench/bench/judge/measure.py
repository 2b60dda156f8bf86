"""Latencies: what timed calls say together, and timing a solution that is trusted."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.executors.base import CandidateMisbehaved
from flashinfer_bench.bench.judge.rounds import Variations, take_calls
from flashinfer_bench.bench.judge.samples import find_impossible
from flashinfer_bench.data.samples import rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from flashinfer_bench.bench.executors.base import Candidate
    from flashinfer_bench.bench.judge.deadline import Deadline
    from flashinfer_bench.bench.judge.rounds import Taken
    from flashinfer_bench.bench.judge.session import Session
    from flashinfer_bench.bench.judge.shots import TimedCall
    from flashinfer_bench.bench.stopping.plan import TimingPlan
    from flashinfer_bench.tensors.vary import Freedom

_LONGEST_MS = 1e30  # what is claimed may be anything, and has to be stored


@dataclass(frozen=True)
class Measurement:
    """Latencies of one solution on one workload.

    Attributes
    ----------
    samples_ms : tuple of float
        Milliseconds of every timed call, in the order taken.
    timer, timer_version : str
        What took them: the one asked for, and the version that the candidate tells.
    notes : tuple of str
        Remarks of the timer.
    ending : str
        What ended the run, as of `Taken`.
    dropped : tuple of (int, int)
        Samples that do not count: numbers of the first of a row, and of the one after its last.
    """

    samples_ms: tuple[float, ...]
    timer: str
    timer_version: str
    notes: tuple[str, ...] = ()
    ending: str = ""
    dropped: tuple[tuple[int, int], ...] = ()

    @property
    def counted_ms(self) -> tuple[float, ...]:
        """The samples that count."""
        out = {number for first, end in self.dropped for number in range(first, end)}
        return tuple(one for number, one in enumerate(self.samples_ms) if number not in out)

    @property
    def latency_ms(self) -> float:
        """The median over all samples that count, in milliseconds."""
        return median(self.counted_ms)


def measure(
    session: Session,
    candidate: Candidate,
    free: Sequence[Freedom],
    inputs: Sequence[Sequence[Any]],
    plan: TimingPlan,
    deadline: Deadline,
    visit: Callable[[int], bool] = lambda place: False,
) -> Measurement:
    """Time the loaded solution, trusting what it tells.

    The calls are made like those of a solution that is not trusted, with inputs that vary in the
    same way, so that latencies compare: a call at an address that was used before is 1-2 % quicker.
    But nothing is looked at, and nobody keeps the variations secret.

    Parameters
    ----------
    session : Session
        The run.
    candidate : Candidate
        Has loaded the solution, and been given the input sets with their ways to vary.
    free : sequence of Freedom
        For each input how it may vary.
    inputs : sequence
        The input sets, in the order of their slots.
    plan : TimingPlan
        How many calls.
    deadline : Deadline
        When to give up.
    visit : callable
        As of `take_calls`.

    Raises
    ------
    CandidateError
        If the candidate fails, or answers with something that cannot be a measurement.
    """
    variations = Variations(free, inputs, random.Random(session.seed), session.warm)
    taken = take_calls(
        session,
        candidate,
        plan,
        deadline,
        variation_of=lambda place: variations.draw(),
        visit=visit,
    )
    refuse_impossible(candidate, taken.calls)
    return measurement_of(taken)


def refuse_impossible(candidate: Candidate, calls: Sequence[TimedCall]) -> None:
    """End the candidate if its samples cannot be latencies.

    Raises
    ------
    CandidateMisbehaved
        In that case.
    """
    problem = find_impossible(calls)
    if problem is not None:
        candidate.close()
        raise CandidateMisbehaved(problem, stage="time")


def measurement_of(taken: Taken) -> Measurement:
    """Return what single timed calls, at least one, say together: their samples, unchanged.

    A note that is not on every call comes with the number of calls that it is on.
    """
    calls = taken.calls
    counts = Counter(note for call in calls for note in dict.fromkeys(call.notes))
    whole = len(calls)
    notes = [
        note if count == whole else f"{note} (in {count} of {whole} calls)"
        for note, count in counts.items()
    ]
    enqueued_ms = median(call.enqueue_ms for call in calls)
    if enqueued_ms > median(call.sample_ms for call in calls):
        notes.append(f"the host takes {enqueued_ms:.3g} ms to enqueue a call: longer than it runs")
    if taken.ending == "max_seconds":
        notes.append(f"the time for timing was over after {whole} timed calls")
    return Measurement(
        samples_ms=_as_stored(call.sample_ms for call in calls),
        timer=calls[0].timer,
        timer_version=calls[0].timer_version,
        notes=tuple(notes),
        ending=taken.ending,
    )


def raised(measurement: Measurement, by_ms: float, note: str) -> Measurement:
    """Return `measurement` with every sample longer by `by_ms` milliseconds, and a remark."""
    samples = _as_stored(sample + by_ms for sample in measurement.samples_ms)
    return replace(measurement, samples_ms=samples, notes=(*measurement.notes, note))


def _as_stored(samples: Iterable[float]) -> tuple[float, ...]:
    """Return `samples` as they are stored, so that the latency can be recomputed from the trace."""
    return rounded(min(sample, _LONGEST_MS) for sample in samples)
