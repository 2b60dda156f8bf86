"""One timed call: an exchange of its own, in which the judge looks at its own clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashinfer_bench.bench.executors.base import CandidateTimeout

if TYPE_CHECKING:
    from flashinfer_bench.bench.executors.base import Candidate, Stage
    from flashinfer_bench.bench.judge.deadline import Deadline
    from flashinfer_bench.tensors.vary import Variation

_MS = 1e3


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


def shoot(candidate: Candidate, variation: Variation, timer: str, deadline: Deadline) -> TimedCall:
    """Have the candidate make and time one call.

    The candidate learns the final values of the inputs when the judge's clock runs. Nothing comes
    between the two requests, so that it has no time to itself after it has learned the addresses.

    Raises
    ------
    CandidateError
        If it fails, or no time is left.
    """
    left = time_left(deadline, candidate, "time")
    stage_s = candidate.stage(variation, timeout_s=left)
    shot = candidate.fire(variation, timer=timer, timeout_s=left)
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
