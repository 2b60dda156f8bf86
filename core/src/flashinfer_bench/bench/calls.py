"""Timed calls: each a separate exchange, in batches, and their combined result."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.executors.base import CandidateMisbehaved, CandidateTimeout
from flashinfer_bench.bench.stopping import Step, TimingPlan
from flashinfer_bench.data.trace import dropped_numbers, rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.bench.evaluators.base import Trial
    from flashinfer_bench.bench.executors.base import Candidate, Release, Round, Stage, TimedCall
    from flashinfer_bench.bench.measurement import DeviceBaseline
    from flashinfer_bench.bench.pool import Worker
    from flashinfer_bench.bench.session import Session
    from flashinfer_bench.bench.transport.deadline import Deadline
    from flashinfer_bench.data import Solution

SHORTEST_MS = 1e-9
"""A picosecond: nothing is faster, and quotients stay finite."""

_CLOCK_SLACK = 1.1  # between the timer's clock and the judge's
_CLOCK_SLACK_MS = 0.05
_LONGEST_MS = 1e30  # what is claimed may be anything, and has to be stored
_SETTLING = 2
"""Uncounted calls after a look. The process was stopped, and its caches have gone to others: the
first call afterwards takes 5-20 % longer on a CPU, the third 1-5 %, as measured."""


@dataclass(frozen=True)
class Taken:
    """Timed calls, and why there are no more.

    Attributes
    ----------
    calls : tuple of TimedCall
        All of them, in the order taken.
    ending : str
        What ended them: ``rule``, ``max_samples`` or ``max_seconds``.
    """

    calls: tuple[TimedCall, ...]
    ending: str


@dataclass(frozen=True)
class Attempt:
    """A solution, or a reference, in a process, and what it is called on.

    Attributes
    ----------
    session : Session
        The run.
    solution : Solution
        What the process loads.
    baseline : DeviceBaseline
        The workload. For a reference, its trials expect nothing yet.
    worker : Worker
        The process.
    deadline : Deadline
        Time for everything together.
    """

    session: Session
    solution: Solution
    baseline: DeviceBaseline
    worker: Worker
    deadline: Deadline

    @property
    def candidate(self) -> Candidate:
        """The process, as it is asked."""
        return self.worker.candidate

    def left(self, stage: Stage) -> float:
        """Return the seconds left for a request.

        Raises
        ------
        CandidateTimeout
            If there are none; the candidate is ended.
        """
        seconds = self.deadline.remaining
        if seconds <= 0.0:
            self.candidate.close()
            raise CandidateTimeout(f"no time left of {self.deadline.seconds:g} s", stage=stage)
        return seconds

    @property
    def plan(self) -> TimingPlan:
        """How often a solution is to be called."""
        return TimingPlan.of(self.baseline.config)

    def put(self, trial: Trial) -> None:
        """Send an input set."""
        left = self.left("inputs")
        self.candidate.put_inputs(trial.index, trial.inputs, self.baseline.axes, timeout_s=left)

    def fire(
        self, slot: int, *, release: Optional[Release] = None, empty: Optional[bool] = None
    ) -> TimedCall:
        """Have the candidate make and time one call; see `Candidate.fire`.

        Raises
        ------
        CandidateError
            If it fails, or no time is left.
        """
        return self.candidate.fire(
            slot,
            timer=self.session.timer,
            timeout_s=self.left("time"),
            release=release,
            cold=self.baseline.config.cache == "cold",
            empty=empty,
        )

    def fire_round(
        self, calls: Round, *, release: Release, empty: Optional[bool] = None
    ) -> list[TimedCall]:
        """Have the candidate make and time calls; see `Candidate.fire_round`.

        Raises
        ------
        CandidateError
            As of `fire`.
        """
        return self.candidate.fire_round(
            calls,
            timer=self.session.timer,
            timeout_s=self.left("time"),
            release=release,
            empty=empty,
        )


def take_calls(
    attempt: Attempt,
    plan: TimingPlan,
    fire: Callable[[Sequence[Optional[int]]], Sequence[TimedCall]],
    *,
    at_once: Callable[[], int] = lambda: 1,
    visit: Callable[[int], bool] = lambda place: False,
    begin: Callable[[int, int], object] = lambda first, count: None,
) -> Taken:
    """Make calls until the plan ends. No other process times on the device meanwhile.

    What is looked at is disturbed by it. So calls follow a look that are like the others, but not
    counted, unless those of a warm-up follow anyway.

    Parameters
    ----------
    attempt : Attempt
        Has loaded a solution, and been given all input sets.
    plan : TimingPlan
        How many calls.
    fire : callable
        Makes calls in one exchange; it is told the number of each among the timed ones, or None.
    at_once : callable
        Returns how many calls an exchange may have.
    visit : callable
        Called after each timed call with its number; returns whether that has disturbed the
        candidate.
    begin : callable
        Called before each batch, with the number of its first timed call, and how many there are to
        be; returns whether that has disturbed the candidate. It costs no time of the plan's.

    Raises
    ------
    CandidateError
        If the candidate fails.
    """
    calls: list[TimedCall] = []
    disturbed = False

    def take(step: Step, began: float) -> None:
        """Make the calls of a batch, at least one, as long as there is time."""
        nonlocal disturbed
        left = step.warmup
        while left and not plan.out_of_time(time.monotonic() - began):
            left -= settle(left)
            disturbed = False
        end = len(calls) + step.calls
        while len(calls) < end:
            if len(calls) > end - step.calls and plan.out_of_time(time.monotonic() - began):
                return
            left = min(_SETTLING, plan.warmup) if disturbed else 0
            while left:
                left -= settle(left)
            places = range(len(calls), min(len(calls) + at_once(), end))
            calls.extend(fire(places))
            disturbed = False
            for place in places:
                disturbed = visit(place) or disturbed

    def settle(left: int) -> int:
        count = min(left, at_once())
        fire([None] * count)
        return count

    with attempt.session.device_to_itself(attempt.deadline):
        began = time.monotonic()
        ending = None
        while ending is None:
            step = plan.step(len(calls))
            paused = time.monotonic()
            disturbed = bool(begin(len(calls), step.calls)) or disturbed
            began += time.monotonic() - paused  # that is no time of the solution's
            take(step, began)
            samples = [call.sample_ms for call in calls]
            ending = plan.ending(samples, time.monotonic() - began)
    return Taken(tuple(calls), ending)


def find_impossible(calls: Sequence[TimedCall], shortest_ms: float = SHORTEST_MS) -> Optional[str]:
    """Return why the samples cannot be the latencies of these calls, or None.

    Parameters
    ----------
    calls : sequence of TimedCall
        Timed calls, at least one.
    shortest_ms : float
        What a call takes at least, in milliseconds.
    """
    for number, call in enumerate(calls):
        if not (math.isfinite(call.sample_ms) and call.sample_ms >= 0.0):
            return f"a sample of {call.sample_ms} ms is not a duration"
        waited = call.secured_ms + call.woken_ms
        if call.sample_ms > waited * _CLOCK_SLACK + _CLOCK_SLACK_MS:
            return (
                f"a sample of {call.sample_ms:g} ms in a call (timed call {number}) "
                f"that took {waited:g} ms"
            )
    latency = median(call.sample_ms for call in calls)
    if latency < SHORTEST_MS:
        return f"the timer {calls[0].timer!r} cannot tell the latency from zero"
    if latency < shortest_ms:
        return f"a latency of {latency:g} ms; an empty call takes at least {shortest_ms:g} ms"
    return None


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
    unseen_ms : float
        What a call may have taken beyond its sample: not 0 if the latency is disputed.
    processes : tuple of int
        How many samples come from each process, in order; empty if all come from one.
    least_ms : float, optional
        What the latency may be at least, if others held up so many calls that none were left out.
    """

    samples_ms: tuple[float, ...]
    timer: str
    timer_version: str
    notes: tuple[str, ...] = ()
    ending: str = ""
    dropped: tuple[tuple[int, int], ...] = ()
    unseen_ms: float = 0.0
    processes: tuple[int, ...] = ()
    least_ms: Optional[float] = None

    @property
    def dropped_numbers(self) -> set[int]:
        """Numbers of the samples that do not count."""
        return dropped_numbers(self.dropped, len(self.samples_ms))

    @property
    def by_process_ms(self) -> tuple[tuple[float, ...], ...]:
        """The samples that count, by process; only of those that have any."""
        out, found, start = self.dropped_numbers, [], 0
        for count in self.processes or (len(self.samples_ms),):
            places = range(start, start + count)
            found.append(tuple(self.samples_ms[n] for n in places if n not in out))
            start += count
        return tuple(filter(None, found))

    @property
    def counted_ms(self) -> tuple[float, ...]:
        """The samples that count."""
        return tuple(one for group in self.by_process_ms for one in group)

    @property
    def latency_ms(self) -> float:
        """The median over all samples that count, in milliseconds, and what they may lack."""
        return median(self.counted_ms) + self.unseen_ms


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
    enqueued_ms = median(call.enqueued_ms for call in calls)
    if enqueued_ms > median(call.sample_ms for call in calls):
        notes.append(f"the host takes {enqueued_ms:.3g} ms to enqueue a call: longer than it runs")
    if taken.ending == "max_seconds":
        notes.append(f"time for timing ran out after {whole} timed calls")
    return Measurement(
        # As they are stored, so that the latency can be recomputed from the trace.
        samples_ms=rounded(min(call.sample_ms, _LONGEST_MS) for call in calls),
        timer=calls[0].timer,
        timer_version=calls[0].timer_version,
        notes=tuple(notes),
        ending=taken.ending,
    )


def measure(
    attempt: Attempt, plan: TimingPlan, visit: Callable[[int], bool] = lambda place: False
) -> Measurement:
    """Time what is loaded in a process, trusting what it tells.

    Its calls see the input sets that it has been given, in turn.

    Parameters
    ----------
    attempt : Attempt
        Has been given its inputs.
    plan : TimingPlan
        How many calls.
    visit : callable
        As of `take_calls`.

    Raises
    ------
    CandidateError
        If the candidate fails, or answers with something that cannot be a measurement.
    """
    slots = cycle(range(len(attempt.baseline.trials)))
    taken = take_calls(attempt, plan, lambda places: [attempt.fire(next(slots))], visit=visit)
    refuse_impossible(attempt, taken.calls)
    return measurement_of(taken)


def refuse_impossible(attempt: Attempt, calls: Sequence[TimedCall]) -> None:
    """End the candidate if its samples cannot be latencies.

    Raises
    ------
    CandidateMisbehaved
        In that case.
    """
    problem = find_impossible(calls)
    if problem is not None:
        attempt.candidate.close()
        raise CandidateMisbehaved(problem, stage="time")
