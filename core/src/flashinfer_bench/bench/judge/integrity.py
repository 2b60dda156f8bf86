"""What a claimed latency has to agree with. Pure functions of what the judge has seen itself.

The candidate tells how long each call took, and may lie. The judge knows how long it waited for
each answer (*wall*), and for the preparation before it (*stage*). The reference, which has no
reason to lie, went through the same exchange with the same inputs. Hence, over the timed calls:

* ``typical(v) = median { v(i) : sample(i) <= median(sample) }``, for v = wall − sample, or stage.
  A false median needs a false claim in (nearly) every call of the lower half of the claims. So
  these are looked at, in whatever phase of the run they lie; calls that the machine disturbed are
  mostly in the other half, and do not count.
* ``hidden = typical(wall − sample) − usual(wall − sample of the reference)``, where *usual* is the
  median, unless the fastest calls show that it is disturbed, see `Normal.usual_ms`
* hidden time: ``hidden <= min(noise, slack + half of the claim)``, where
  ``noise = max(slack, share × claimed, spreads × spread of the reference, …)``, see `Margins`
* stage time: likewise, with far wider margins, and room for outputs that only the candidate gets.
* samples, floor, timer: what holds for sure; see `judge.samples`.

Noise makes the first two fail now and then, so `Violation.disputable` tells that the calls have to
be made again, in a fresh process, before anyone is convicted. Where the reference itself varies by
as much (``hidden <= noise``), nobody is: `Violation.undecided`. What the timer has not seen is then
added to the latency (`Inquiry.added_ms`), so that nobody gains by it either.

The same goes for a device that works by itself, such as a GPU: the wait beyond the samples is the
device's *or* the host's, and a solution that makes the host work for long has hidden nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Literal, Optional

from flashinfer_bench.bench.judge.samples import (
    find_floor_problem,
    find_frozen_clock,
    find_impossible,
    find_wrong_timer,
    shortest_call_ms,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.bench.judge.floor import Floor
    from flashinfer_bench.bench.judge.shots import TimedCall

Rule = Literal["hidden time", "stage time", "floor", "samples", "timer"]


_FEWEST_CALLS = 8  # of fewer, half may be disturbed by chance


@dataclass(frozen=True)
class Violation:
    """A claim that is not believed.

    Attributes
    ----------
    rule : str
        Which rule it breaks.
    message : str
        The figures.
    disputable : bool
        Whether a disturbance of the machine could look the same.
    undecided : bool
        Whether this proves nothing: calls are few, or the reference itself varies so much.
    """

    rule: Rule
    message: str
    disputable: bool = False
    undecided: bool = False

    def __str__(self) -> str:
        return f"integrity: {self.rule}: {self.message}"


@dataclass(frozen=True)
class Margins:
    """By how much a candidate may exceed the reference.

    Attributes
    ----------
    slack_ms : float
        Milliseconds in any case.
    share : float
        Share of the claimed latency.
    spreads : float
        Robust standard deviations of the reference's calls; but no more than their median, however
        much they spread.
    normal_share : float
        Share of the reference's own median.
    most_share : float
        Share of the claimed latency that is the most, beside the slack. The others depend on how
        busy the machine is, and on nothing that a liar claims: whatever they come to, nobody wins
        more than this.
    """

    slack_ms: float
    share: float
    spreads: float
    normal_share: float
    most_share: float

    def noise_ms(self, claimed_ms: float, normal: Normal) -> float:
        """Return the largest excess, in milliseconds, that chance alone may bring about here."""
        return max(
            self.slack_ms,
            self.share * claimed_ms,
            min(self.spreads * normal.spread_ms, normal.median_ms),
            self.normal_share * normal.median_ms,
        )

    def allowed_ms(self, claimed_ms: float, normal: Normal) -> float:
        """Return the largest excess, in milliseconds, with which a claim is believed."""
        most = self.slack_ms + self.most_share * claimed_ms
        return min(self.noise_ms(claimed_ms, normal), most)


HIDDEN = Margins(slack_ms=0.025, share=0.1, spreads=3.0, normal_share=0.25, most_share=0.5)
"""For time that is not in the samples.

On small inputs the exchange costs 0.06-0.2 ms, of which a quarter to a half is how fast idle cores
wake up. Two honest processes differ by that. Nobody wins more than half of what is claimed: a true
latency is at most 1.5 × the claimed one, and the slack."""

STAGE = Margins(slack_ms=1.0, share=1.0, spreads=5.0, normal_share=0.5, most_share=2.0)
"""For time spent on getting ready.

Memory is allocated, freed, filled and flushed there, which honest processes do at very different
speeds: compiled code and outputs that are handed in came to several milliseconds on a busy machine.
And little is won there: signs or columns and the patches, which change every row of the inputs, are
told only with the call. So this rule is for gross cases: more than a millisecond, more than all of
the claim, and more than the reference's own calls spread."""

_FILL_BYTES_PER_MS = 1e6  # a slow machine fills new pages with poison at 1 GB/s

_BUSY = 2.0  # median over the fastest tenth; 1.1 to 1.7 where nothing else runs
_NOISY = 0.5  # spread over median; 0.03 to 0.35 where nothing else runs


@dataclass(frozen=True)
class Normal:
    """How a time is distributed over the reference's calls.

    Attributes
    ----------
    median_ms : float
        The median in milliseconds.
    spread_ms : float
        Robust standard deviation: the larger of 1.4826 × the median absolute deviation, and the
        interquartile range / 1.349. Both are a normal distribution's standard deviation; the second
        also sees two heaps of nearly the same size.
    count : int
        Number of calls.
    low_ms : float
        What a tenth of the calls stay below; infinite if that is not known.
    """

    median_ms: float
    spread_ms: float
    count: int
    low_ms: float = math.inf

    @property
    def usual_ms(self) -> float:
        """What may be put down to the exchange: the median, but at most twice what is possible.

        On a busy machine the median of the reference may be so much higher than that of a candidate
        which had a quiet moment that a whole latency could hide in between.
        """
        return min(self.median_ms, _BUSY * self.low_ms)

    @property
    def is_noisy(self) -> bool:
        """Whether the machine is so busy that even the reference waits for chance's sake mostly."""
        return self.spread_ms > _NOISY * self.median_ms

    @classmethod
    def of(cls, values: Sequence[float]) -> Normal:
        """Sum up `values`, in milliseconds; at least one."""
        middle = median(values)
        deviation = median(abs(value - middle) for value in values)
        ordered = sorted(values)
        last = len(ordered) - 1
        between = ordered[math.ceil(last * 0.75)] - ordered[math.floor(last * 0.25)]
        spread = max(1.4826 * deviation, between / 1.349)
        return cls(middle, spread, len(ordered), ordered[math.floor(last * 0.1)])

    def or_slower(self, other: Normal) -> Normal:
        """Return the one with the larger median, and what was possible at best in either."""
        slower = max(self, other, key=lambda normal: normal.median_ms)
        return replace(slower, low_ms=min(self.low_ms, other.low_ms))


@dataclass(frozen=True)
class Normals:
    """What is normal for the calls of one workload.

    Attributes
    ----------
    overhead, stage : Normal
        Waiting beyond the claimed latency, and preparation.
    resolution_ms : float, optional
        Smallest difference of two samples; None if all were the same.
    """

    overhead: Normal
    stage: Normal
    resolution_ms: Optional[float] = None

    @classmethod
    def of(cls, calls: Sequence[TimedCall]) -> Normals:
        """Sum up calls of the reference; at least one."""
        steps = sorted({call.sample_ms for call in calls})
        gaps = [after - before for before, after in pairwise(steps)]
        half = lower_half(calls)
        return cls(
            Normal.of([call.overhead_ms for call in half]),
            Normal.of([call.stage_ms for call in half]),
            min(gaps, default=None),
        )

    def or_slower(self, other: Normals) -> Normals:
        """Return the slower of both for each time: what the machine is like when it is busier."""
        return Normals(
            self.overhead.or_slower(other.overhead),
            self.stage.or_slower(other.stage),
            self.resolution_ms,
        )


@dataclass(frozen=True)
class Excess:
    """How much longer something took than it should.

    Attributes
    ----------
    ms : float
        The excess over the reference, in milliseconds; negative if it was quicker.
    allowed_ms : float
        With how much a claim is believed.
    noise_ms : float
        Up to how much it proves nothing either: the reference varies by as much.
    """

    ms: float
    allowed_ms: float
    noise_ms: float = 0.0

    @property
    def too_much(self) -> bool:
        """Whether it is more than allowed."""
        return self.ms > self.allowed_ms

    @property
    def may_be_noise(self) -> bool:
        """Whether the reference varies by as much."""
        return self.ms <= self.noise_ms


_NO_EXCESS = Excess(0.0, 0.0)


def lower_half(calls: Sequence[TimedCall]) -> list[TimedCall]:
    """Return the calls whose claimed latency is at most the median of the claims."""
    middle = median(call.sample_ms for call in calls)
    return [call for call in calls if call.sample_ms <= middle]


def hidden_time(calls: Sequence[TimedCall], claimed_ms: float, normals: Normals) -> Excess:
    """Return how much longer the judge waited than the claims explain, in a typical call."""
    typical = median(call.overhead_ms for call in lower_half(calls))
    return _excess(typical, HIDDEN, claimed_ms, normals.overhead)


def stage_time(
    calls: Sequence[TimedCall], claimed_ms: float, normals: Normals, poisoned_bytes: int
) -> Excess:
    """Return how much longer than the reference it took to get ready, in a typical call.

    Parameters
    ----------
    calls : sequence of TimedCall
        The candidate's timed calls.
    claimed_ms : float
        Its latency.
    normals : Normals
        The reference's times.
    poisoned_bytes : int
        Size of the outputs that are allocated and filled for this candidate, and were not for the
        reference.
    """
    typical = median(call.stage_ms for call in lower_half(calls))
    more_ms = poisoned_bytes / _FILL_BYTES_PER_MS
    return _excess(typical, STAGE, claimed_ms, normals.stage, more_ms)


def _excess(
    typical_ms: float, margins: Margins, claimed_ms: float, normal: Normal, more_ms: float = 0.0
) -> Excess:
    allowed = margins.allowed_ms(claimed_ms, normal)
    noise = math.inf if normal.is_noisy else margins.noise_ms(claimed_ms, normal)
    noise += normal.median_ms - normal.usual_ms
    return Excess(typical_ms - normal.usual_ms, allowed + more_ms, noise + more_ms)


@dataclass(frozen=True)
class Claim:
    """What a candidate says about its speed, and what the judge knows besides the reference.

    Attributes
    ----------
    calls : tuple of TimedCall
        Its timed calls; at least one.
    timer, timer_version : str
        As of `find_wrong_timer`.
    floor : Floor, optional
        What the device needs at least.
    poisoned_bytes : int
        As of `stage_time`.
    device : str
        Where the calls ran.
    """

    calls: tuple[TimedCall, ...]
    timer: str
    timer_version: Optional[str] = None
    floor: Optional[Floor] = None
    poisoned_bytes: int = 0
    device: str = "cpu"

    @property
    def latency_ms(self) -> float:
        """The median of the samples: the latency that would be reported."""
        return median(call.sample_ms for call in self.calls)


@dataclass(frozen=True)
class Inquiry:
    """What has come out of holding a claim against what is known.

    Attributes
    ----------
    violation : Violation, optional
        The first rule that is broken.
    hidden, staged : Excess
        Time beyond the samples, and before the calls; zero if these have not come to count.
    """

    violation: Optional[Violation]
    hidden: Excess = _NO_EXCESS
    staged: Excess = _NO_EXCESS

    @property
    def added_ms(self) -> float:
        """What the latency lacks in milliseconds, if it is the claim; 0 if that is believed."""
        return sum(excess.ms for excess in (self.hidden, self.staged) if excess.too_much)


def inquire(claim: Claim, normals: Normals) -> Inquiry:
    """Hold a claim against everything that is known, the reference's times included."""
    calls, latency = claim.calls, claim.latency_ms
    certain: tuple[tuple[Rule, Optional[str]], ...] = (
        ("timer", find_wrong_timer(calls, claim.timer, claim.timer_version)),
        ("samples", find_impossible(calls, shortest_call_ms(claim.device))),
        ("floor", find_floor_problem(latency, claim.floor)),
        ("samples", find_frozen_clock(calls, normals.resolution_ms)),
    )
    for rule, message in certain:
        if message is not None:
            return Inquiry(Violation(rule, message))
    hidden = hidden_time(calls, latency, normals)
    staged = stage_time(calls, latency, normals, claim.poisoned_bytes)
    found = _disputed(latency, hidden, staged)
    if found is not None and len(calls) < _FEWEST_CALLS:
        found = replace(found, undecided=True)
    return Inquiry(found, hidden, staged)


def _disputed(claimed_ms: float, hidden: Excess, staged: Excess) -> Optional[Violation]:
    """Return what is wrong with either time, rather what is beyond all noise."""
    beyond = f"calls take {_beyond(hidden)} the claimed {claimed_ms:g} ms and the exchange"
    ready = f"getting ready for a call takes {_beyond(staged)} the reference needs"
    texts: tuple[tuple[Rule, Excess, str], ...] = (
        ("hidden time", hidden, beyond),
        ("stage time", staged, ready),
    )
    found = [
        Violation(rule, text, disputable=True, undecided=excess.may_be_noise)
        for rule, excess, text in texts
        if excess.too_much
    ]
    return min(found, key=lambda violation: violation.undecided, default=None)


def _beyond(excess: Excess) -> str:
    return f"{excess.ms:.4g} ms (allowed: {excess.allowed_ms:.4g} ms) longer than"
