"""Timed calls: each an exchange of its own, in batches, and what they say together."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.executors.base import CandidateMisbehaved, CandidateTimeout
from flashinfer_bench.bench.stopping import Step, TimingPlan
from flashinfer_bench.data.trace import rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flashinfer_bench.bench.evaluators.base import Trial
    from flashinfer_bench.bench.executors.base import Candidate, Stage
    from flashinfer_bench.bench.measurement import DeviceBaseline
    from flashinfer_bench.bench.pool import Worker
    from flashinfer_bench.bench.session import Session
    from flashinfer_bench.data import Solution
    from flashinfer_bench.tensors.vary import Variation

SHORTEST_MS = 1e-9
"""A picosecond: nothing is faster, and quotients stay finite."""

_MS = 1e3
_CLOCK_SLACK = 1.1  # between the timer's clock and the judge's
_CLOCK_SLACK_MS = 0.05
_LONGEST_MS = 1e30  # what is claimed may be anything, and has to be stored
_SETTLING = 2
"""Uncounted calls after a look. The process was stopped, and its caches have gone to others: the
first call afterwards takes 5-20 % longer on a CPU, the third 1-5 %, as measured."""


class Deadline:
    """Seconds that may still be spent; the clock can be stopped while others are waited for.

    Parameters
    ----------
    seconds : float
        The budget.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        """Return the seconds left; negative once the budget is exceeded."""
        return self._end - time.monotonic()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Do not count the time that the body takes."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._end += time.monotonic() - began


@dataclass(frozen=True)
class TimedCall:
    """What is known of one timed call.

    Attributes
    ----------
    sample_ms : float
        Its latency in milliseconds, as the candidate tells it: untrusted.
    change_ms : float
        Milliseconds from before the judge sent the last of the inputs until it was told that they
        are in place.
    wall_ms : float
        Milliseconds from then until it had the answer: the call, and what cannot be separated from
        it.
    stage_ms : float
        Milliseconds that the candidate took to get ready for it, by the judge's clock.
    timer, timer_version : str
        What took the latency, as the candidate tells it.
    notes : tuple of str
        Remarks of the timer.
    enqueue_ms, describe_ms : float
        Where the device works by itself, milliseconds before and after `wall_ms`, which is then the
        device's: until the call had returned to the host, and from the end until the judge had the
        answer. Elsewhere 0.
    """

    sample_ms: float
    change_ms: float
    wall_ms: float
    stage_ms: float
    timer: str
    timer_version: str
    notes: tuple[str, ...] = ()
    enqueue_ms: float = 0.0
    describe_ms: float = 0.0

    @property
    def overhead_ms(self) -> float:
        """Milliseconds that the judge waited for the call beyond the latency that it was told.

        Not below 0 where the device works by itself: it may have done so before the call returned.
        """
        beyond = self.wall_ms - self.sample_ms
        return max(beyond, 0.0) if self.enqueue_ms else beyond

    @property
    def exchange_ms(self) -> float:
        """Milliseconds of the whole exchange beyond that latency."""
        return self.change_ms + self.overhead_ms + self.describe_ms


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
class Variations:
    """Draws what each call is to see.

    Attributes
    ----------
    baseline : DeviceBaseline
        The workload: its input sets, and how inputs may vary.
    rng : random.Random
        The only source of chance.
    """

    baseline: DeviceBaseline
    rng: random.Random

    def draw(self) -> Variation:
        """Return a fresh variation of one of the input sets."""
        from flashinfer_bench.tensors.vary import draw_variation

        baseline = self.baseline
        slot = self.rng.randrange(len(baseline.trials))
        inputs = baseline.trials[slot].inputs
        drawn = draw_variation(baseline.freedoms, inputs, slot, self.rng)
        return replace(drawn, warm=baseline.config.cache == "warm")


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
        seconds = self.deadline.remaining()
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
        axes, ways = self.baseline.axes, [item.way for item in self.baseline.freedoms]
        left = self.left("inputs")
        self.candidate.put_inputs(trial.index, trial.inputs, axes, ways=ways, timeout_s=left)

    def shoot(self, variation: Variation) -> TimedCall:
        """Have the candidate make and time one call.

        The candidate learns the final values of the inputs when the judge's clock runs. Nothing
        comes between the two requests, so that it has no time to itself after it has learned the
        addresses.

        Raises
        ------
        CandidateError
            If it fails, or no time is left.
        """
        left = self.left("time")
        stage_s = self.candidate.stage(variation, timeout_s=left)
        shot = self.candidate.fire(variation, timer=self.session.timer, timeout_s=left)
        return TimedCall(
            sample_ms=shot.sample_ms,
            change_ms=shot.change_s * _MS,
            wall_ms=shot.wall_s * _MS,
            stage_ms=stage_s * _MS,
            timer=shot.timer,
            timer_version=shot.timer_version,
            notes=shot.notes,
            enqueue_ms=shot.enqueue_s * _MS,
            describe_ms=shot.describe_s * _MS,
        )


def take_calls(
    attempt: Attempt,
    plan: TimingPlan,
    variation_of: Callable[[Optional[int]], Variation],
    *,
    visit: Callable[[int], bool] = lambda place: False,
    begin: Callable[[int, int, bool], object] = lambda first, count, closing: None,
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
    variation_of : callable
        Returns what a call is to see; it is told the call's number among the timed ones, or None.
    visit : callable
        Called after each timed call with its number; returns whether that has disturbed the
        candidate.
    begin : callable
        Called before each batch, with the number of its first timed call, how many there are to be,
        and whether it is the closing one: a single call that follows when time has run out.

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
        for _ in range(step.warmup):
            if plan.out_of_time(time.monotonic() - began):
                break  # a call is timed all the same
            attempt.shoot(variation_of(None))
            disturbed = False
        for number in range(step.calls):
            if number and plan.out_of_time(time.monotonic() - began):
                return
            for _ in range(min(_SETTLING, plan.warmup) if disturbed else 0):
                attempt.shoot(variation_of(None))
            place = len(calls)
            calls.append(attempt.shoot(variation_of(place)))
            disturbed = visit(place)

    with attempt.session.device_to_itself(attempt.deadline):
        began = time.monotonic()
        ending = None
        while ending is None:
            step = plan.step(len(calls))
            begin(len(calls), step.calls, False)
            take(step, began)
            samples = [call.sample_ms for call in calls]
            ending = plan.ending(samples, time.monotonic() - began)
        if ending == "max_seconds":  # there may have been no look so far
            begin(len(calls), 1, True)
            take(Step(warmup=0, calls=1), time.monotonic())
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
        # The judge may have been late to hear that the inputs were in place, and not the call.
        waited = call.change_ms + call.enqueue_ms + call.wall_ms
        if call.sample_ms > waited * _CLOCK_SLACK + _CLOCK_SLACK_MS:
            return (
                f"a sample of {call.sample_ms:g} ms in a call (timed call {number}) "
                f"that took {waited:g} ms"
            )
    latency = median(call.sample_ms for call in calls)
    if latency < SHORTEST_MS:
        return f"the timer {calls[0].timer!r} cannot tell the latency from zero"
    if latency < shortest_ms:
        return f"a latency of {latency:g} ms; a call of nothing takes {shortest_ms:g} ms at least"
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
    """

    samples_ms: tuple[float, ...]
    timer: str
    timer_version: str
    notes: tuple[str, ...] = ()
    ending: str = ""
    dropped: tuple[tuple[int, int], ...] = ()
    unseen_ms: float = 0.0

    @property
    def counted_ms(self) -> tuple[float, ...]:
        """The samples that count."""
        out = {number for first, end in self.dropped for number in range(first, end)}
        return tuple(one for number, one in enumerate(self.samples_ms) if number not in out)

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
    enqueued_ms = median(call.enqueue_ms for call in calls)
    if enqueued_ms > median(call.sample_ms for call in calls):
        notes.append(f"the host takes {enqueued_ms:.3g} ms to enqueue a call: longer than it runs")
    if taken.ending == "max_seconds":
        notes.append(f"the time for timing was over after {whole} timed calls")
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

    The calls are made like those of a solution that is not trusted, with inputs that vary in the
    same way, so that latencies compare: a call at an address that was used before is 1-2 % quicker.
    But nothing is looked at, and nobody keeps the variations secret.

    Parameters
    ----------
    attempt : Attempt
        Has been given its inputs, with their ways to vary.
    plan : TimingPlan
        How many calls.
    visit : callable
        As of `take_calls`.

    Raises
    ------
    CandidateError
        If the candidate fails, or answers with something that cannot be a measurement.
    """
    variations = Variations(attempt.baseline, random.Random(attempt.session.seed))
    taken = take_calls(attempt, plan, lambda place: variations.draw(), visit=visit)
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
