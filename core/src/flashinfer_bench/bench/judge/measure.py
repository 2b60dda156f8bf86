"""Timing a loaded candidate: rounds of warm-up and timed calls, and what they say together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.executors.base import CandidateMisbehaved, CandidateTimeout

if TYPE_CHECKING:
    from flashinfer_bench.bench.executors.base import Candidate, Stage, Timing
    from flashinfer_bench.bench.judge.deadline import Deadline
    from flashinfer_bench.bench.judge.session import Session

_SIGNIFICANT_DIGITS = 7  # 0.1 µs in a second
_SHORTEST_MS = 1e-9  # a picosecond: nothing is faster, and quotients stay finite
_CLOCK_SLACK = 1.1  # between the timer's clock and the judge's


@dataclass(frozen=True)
class Rounds:
    """How often something is called to time it.

    Attributes
    ----------
    count : int
        Number of rounds.
    warmup : int
        Untimed calls at the beginning of each.
    iterations : int
        Timed calls of each.
    """

    count: int
    warmup: int
    iterations: int

    def within(self, budget_s: float, call_s: float) -> Rounds:
        """Return as many rounds of fewer calls, if these would take longer than `budget_s`.

        Parameters
        ----------
        budget_s : float
            Seconds that all rounds together may take.
        call_s : float
            Seconds that one call takes.
        """
        cost = self.count * (self.warmup + self.iterations) * call_s
        if cost <= budget_s:
            return self
        share = max(budget_s, 0.0) / cost
        return Rounds(self.count, int(self.warmup * share), max(1, int(self.iterations * share)))


@dataclass(frozen=True)
class Measurement:
    """Latencies of one solution on one workload.

    Attributes
    ----------
    samples_ms : tuple of float
        Milliseconds of every timed call, in the order taken.
    rounds : Rounds
        How they were taken.
    timer, timer_version : str
        What took them: the one asked for, and the version that the candidate tells.
    notes : tuple of str
        Remarks of the timer.
    """

    samples_ms: tuple[float, ...]
    rounds: Rounds
    timer: str
    timer_version: str
    notes: tuple[str, ...] = ()

    @property
    def latency_ms(self) -> float:
        """The median over all samples of all rounds, in milliseconds."""
        return median(self.samples_ms)


def time_left(deadline: Deadline, candidate: Candidate, stage: Stage) -> float:
    """Return the seconds left for a request.

    Raises
    ------
    CandidateTimeout
        If there are none; the candidate is ended.
    """
    seconds = deadline.remaining()
    if seconds <= 0.0:
        candidate.close()
        raise CandidateTimeout(f"no time left of {deadline.seconds:g} s", stage=stage)
    return seconds


def measure(
    session: Session, candidate: Candidate, slots: int, rounds: Rounds, deadline: Deadline
) -> Measurement:
    """Time the loaded solution on the input sets 0 … `slots` - 1.

    Each round goes round all sets, so that the same input does not come twice in a row. No other
    process times on the device meanwhile.

    Raises
    ------
    CandidateError
        If the candidate fails, or answers with something that cannot be a measurement.
    """
    with session.device_to_itself(deadline):
        timings = [
            candidate.time(
                range(slots),
                timer=session.timer,
                warmup=rounds.warmup,
                iterations=rounds.iterations,
                timeout_s=time_left(deadline, candidate, "time"),
            )
            for _ in range(rounds.count)
        ]
    for timing in timings:
        problem = find_timing_problem(timing, rounds.iterations)
        if problem is not None:
            candidate.close()
            raise CandidateMisbehaved(problem, stage="time")
    return _merged(timings, rounds, session.timer)


def find_timing_problem(timing: Timing, iterations: int) -> Optional[str]:
    """Return why `timing` cannot be a measurement of `iterations` calls, or None.

    Parameters
    ----------
    timing : Timing
        What a candidate answered: untrusted.
    iterations : int
        How many samples were asked for.
    """
    samples = timing.samples_ms
    if len(samples) != iterations:
        return f"{len(samples)} samples instead of {iterations}"
    impossible = [sample for sample in samples if not (math.isfinite(sample) and sample >= 0.0)]
    if impossible:
        return f"a sample of {impossible[0]} ms is not a duration"
    longest = max(samples)
    if longest > timing.wall_s * 1e3 * _CLOCK_SLACK + 1.0:
        return f"a sample of {longest:g} ms in a request that took {timing.wall_s * 1e3:g} ms"
    if median(samples) < _SHORTEST_MS:
        return f"the timer {timing.timer!r} cannot tell the latency from zero"
    return None


def _merged(timings: list[Timing], rounds: Rounds, timer: str) -> Measurement:
    samples = [sample for timing in timings for sample in timing.samples_ms]
    notes = dict.fromkeys(note for timing in timings for note in timing.notes)
    return Measurement(
        samples_ms=tuple(_rounded(sample) for sample in samples),
        rounds=rounds,
        timer=timer,
        timer_version=timings[0].timer_version,
        notes=tuple(notes),
    )


def _rounded(sample: float) -> float:
    """Return `sample` as it is stored, so that the latency can be recomputed from the trace."""
    return float(f"{sample:.{_SIGNIFICANT_DIGITS}g}")
