"""What a claimed latency has to agree with. Pure functions of what the judge has seen itself.

The candidate tells how long each call took, and may lie. The judge knows how long it waited: for
the preparation (*stage*), from telling the last of the inputs until they were in place (*change*),
and from then until it had the answer (*wall*). The reference, which has no reason to lie, went
through the same with the same inputs. Hence, over the timed calls:

* ``typical(v) = median { v(i) : sample(i) <= median(sample) }``, for some time v.
  A false median needs a false claim in (nearly) every call of the lower half of the claims. So
  these are looked at, in whatever phase of the run they lie; calls that the machine disturbed are
  mostly in the other half, and do not count.
* ``excess(v) = typical(v) − usual(v of the reference)``, where *usual* is the median, unless the
  fastest calls show that it is disturbed, see `Normal.usual_ms`
* hidden time: ``excess(wall − sample) <= allowed``, and
  ``allowed = min(chance, slack + most × claimed)``, where
  ``chance = max(slack, share × claimed, spreads × spread of the reference, …)``, see `Margins`
* exchange time: likewise for ``change + wall − sample``, with wider margins. To change the inputs
  takes several times as long as all the rest, and varies as much more. But *change* ends when the
  candidate says so: this rule is for those who say it late.
* Devices that work by themselves have two more parts: until the call is back at the host
  (*enqueue*, which is nobody's lie), and from the device's end to the answer (*describe*). *wall*
  is what lies between, and ``excess(describe)`` is hidden time, too, with margins of its own.
* stage time: likewise, with far wider margins, and room for outputs that only the candidate gets.
* samples, floor, timer: what holds for sure.

Noise makes the first three fail now and then, so `Violation.disputable` tells that the calls have
to be made again, in a fresh process, before anyone is convicted. Where the machine might be the
reason (``excess <= noise``), nobody is: `Violation.undecided`. The latency is then disputed, and
reaches up to what it is with all that the timer has not seen (`Inquiry.unseen_ms`), so that nobody
gains by it either. So *allowed* can be tight where *noise* is not. Noise is what the reference
shows of it, and what the system tells of this very process: how long others had the cores while it
could have run.

The same goes for a device that works by itself, such as a GPU: the wait beyond the samples is the
device's *or* the host's, and a solution that makes the host work for long has hidden nothing.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, Optional

from flashinfer_bench.bench.calls import TimedCall, find_impossible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fib_judge.floor import Floor


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
    doubt : float
        How many times as large an excess has to be to prove something.
    """

    slack_ms: float
    share: float
    spreads: float
    normal_share: float
    most_share: float
    doubt: float = 1.0

    def noise_ms(self, claimed_ms: float, normal: Normal) -> float:
        """Return the largest excess, in milliseconds, that proves nothing here."""
        return self.doubt * self._chance_ms(claimed_ms, normal)

    def _chance_ms(self, claimed_ms: float, normal: Normal) -> float:
        return max(
            self.slack_ms,
            self.share * claimed_ms,
            min(self.spreads * normal.spread_ms, normal.median_ms),
            self.normal_share * normal.median_ms,
        )

    def allowed_ms(self, claimed_ms: float, normal: Normal) -> float:
        """Return the largest excess, in milliseconds, with which a claim is believed."""
        most = self.slack_ms + self.most_share * claimed_ms
        return min(self._chance_ms(claimed_ms, normal), most)


HIDDEN = Margins(
    slack_ms=0.05, share=0.1, spreads=3.0, normal_share=0.25, most_share=0.05, doubt=1.5
)
"""For time that is in the calls and not in the samples.

To describe what came out and to wake the judge costs 0.04-0.25 ms, depending on how much of both
processes is still in the caches and on whether cores have gone idle. Two honest solutions differ in
that by up to 0.05 ms. Nobody wins more than a twentieth of what is claimed, and the slack."""

EXCHANGE = Margins(slack_ms=0.025, share=0.1, spreads=3.0, normal_share=0.25, most_share=0.5)
"""For time that is in the exchanges and not in the samples.

To change inputs of some megabytes takes 0.2-0.7 ms, and how fast it is depends on what the solution
has left behind, such as threads that have gone to sleep: honest ones differ by a quarter of it, and
now and then by half, but hardly three times in a row. Nobody wins more than half of what is
claimed: a true latency is at most 1.5 × the claimed one, and the slack. There is no doubt beyond
chance: of a latency that is told as nearly nothing, what would be added is too uncertain."""

HIDDEN_ON_DEVICES = replace(HIDDEN, slack_ms=0.02)
"""The same on devices that work by themselves. The judge spares a core to hear without delay that a
call has been enqueued; after that only the device and a few steps of the host are waited for."""

EXCHANGE_ON_DEVICES = replace(EXCHANGE, slack_ms=1.0, share=1.0, most_share=2.0)
"""The same there. The host takes its time to have the inputs changed, an allocation of memory now
and then included: honest solutions differed by 0.6 ms on a GPU that changed them in 0.1 ms."""

DESCRIBE = replace(HIDDEN, slack_ms=0.1)
"""For time between the end of a device's work and the answer, which the host takes to describe what
came out: honest solutions differ in it by up to 0.1 ms."""

STAGE = Margins(slack_ms=1.0, share=1.0, spreads=5.0, normal_share=0.5, most_share=2.0)
"""For time spent on getting ready.

Memory is allocated, freed, filled and flushed there, which honest processes do at very different
speeds: compiled code and outputs that are handed in came to several milliseconds on a busy machine.
And little is won there: signs or columns and the patches, which change every row of the inputs, are
told only with the call. So this rule is for gross cases: more than a millisecond, more than all of
the claim, and more than the reference's own calls spread."""


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
    overhead, exchange, stage : Normal
        Waiting beyond the claimed latency: for the call, and in the whole exchange; preparation.
    resolution_ms : float, optional
        Smallest difference of two samples; None if all were the same.
    describe : Normal
        Waiting for the answer after a device has finished.
    """

    overhead: Normal
    exchange: Normal
    stage: Normal
    resolution_ms: Optional[float] = None
    describe: Normal = Normal(0.0, 0.0, 0)

    @classmethod
    def of(cls, calls: Sequence[TimedCall]) -> Normals:
        """Sum up calls of the reference; at least one."""
        steps = sorted({call.sample_ms for call in calls})
        gaps = [after - before for before, after in pairwise(steps)]
        half = lower_half(calls)
        return cls(
            # The least is found where the judge was late to hear that a call begins.
            replace(Normal.of([call.overhead_ms for call in half]), low_ms=math.inf),
            Normal.of([call.exchange_ms for call in half]),
            Normal.of([call.stage_ms for call in half]),
            min(gaps, default=None),
            Normal.of([call.describe_ms for call in half]),
        )

    def or_slower(self, other: Normals) -> Normals:
        """Return the slower of both for each time: what the machine is like when it is busier."""
        return replace(self, **self.slower_parts(other))

    def slower_parts(self, other: Normals) -> dict[str, Any]:
        """Return the slower of both for each time, by its name."""
        parts = ("overhead", "exchange", "stage", "describe")
        return {part: getattr(self, part).or_slower(getattr(other, part)) for part in parts}


def lower_half(calls: Sequence[TimedCall]) -> list[TimedCall]:
    """Return the calls whose claimed latency is at most the median of the claims."""
    middle = median(call.sample_ms for call in calls)
    return [call for call in calls if call.sample_ms <= middle]


_SHORTEST_ON_CPU_MS = 10e-6
# What timers show for a call of nothing on a GPU, as `LEAST_MS` of the timers.
_SHORTEST_ON_DEVICE_MS = 0.0005
_MANY_SAMPLES = 20
_FINE = 0.02  # of the latency: a clock that tells such differences does not repeat itself


def shortest_call_ms(device: str) -> float:
    """Return how long a call of nothing takes at least, in milliseconds, as timers show it.

    On the CPU a call takes 20 to 60 ns, the readings of the clock taken out; half of that is
    impossible. On a GPU timers take out what a pair of events costs, and leave so much at least.
    Machines that have been calibrated have a better bound, their shortest call, as their floor.

    Parameters
    ----------
    device : str
        Where calls run.
    """
    least = _SHORTEST_ON_CPU_MS if device == "cpu" else _SHORTEST_ON_DEVICE_MS
    return max(least, time.get_clock_info("perf_counter").resolution * 1e3)


def find_frozen_clock(calls: Sequence[TimedCall], resolution_ms: Optional[float]) -> Optional[str]:
    """Return that many samples are one and the same, though the clock tells finer differences.

    Calls with other values at other addresses, after the caches were flushed, do not take the same
    time to within a fiftieth, twenty times and more. Calls of nothing on a GPU do: timers show the
    least that they can.

    Parameters
    ----------
    calls : sequence of TimedCall
        The candidate's timed calls; fewer than 20 prove nothing.
    resolution_ms : float, optional
        Smallest difference between samples of the reference; None if it had only one.
    """
    samples = {call.sample_ms for call in calls}
    if len(calls) < _MANY_SAMPLES or len(samples) > 1 or resolution_ms is None:
        return None
    sample = samples.pop()
    if sample == _SHORTEST_ON_DEVICE_MS:
        return None
    if resolution_ms > _FINE * sample:
        return None
    return f"all {len(calls)} samples are {sample:g} ms to the last digit"


def find_wrong_timer(
    calls: Sequence[TimedCall], timer: str, version: Optional[str]
) -> Optional[str]:
    """Return which other timer than the one asked for has answered, or None.

    Parameters
    ----------
    calls : sequence of TimedCall
        The candidate's timed calls.
    timer : str
        Name of the timer.
    version : str, optional
        Its version, as this process knows it; None if it does not.
    """
    for call in calls:
        wanted = version if version is not None else calls[0].timer_version
        if (call.timer, call.timer_version) != (timer, wanted):
            answered = f"{call.timer} {call.timer_version}"
            return f"timer {answered!r} answered instead of {f'{timer} {wanted}'!r}"
    return None


def find_floor_problem(claimed_ms: float, floor: Optional[Floor]) -> Optional[str]:
    """Return why no device of this kind can be so fast, or None."""
    if floor is None or claimed_ms >= floor.ms:
        return None
    return (
        f"a latency of {claimed_ms:g} ms; moving {floor.nbytes} bytes and computing {floor.flops} "
        f"operations takes at least {floor.ms:g} ms here (limited by {floor.limited_by})"
    )


Rule = Literal["hidden time", "exchange time", "stage time", "floor", "samples", "timer"]


_FILL_BYTES_PER_MS = 1e6  # a slow machine fills new pages with poison at 1 GB/s
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
        Whether this proves nothing: calls are few, or honest solutions may vary by as much.
    """

    rule: Rule
    message: str
    disputable: bool = False
    undecided: bool = False

    def __str__(self) -> str:
        return f"integrity: {self.rule}: {self.message}"


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
        Up to how much it proves nothing either: honest solutions may vary by as much.
    """

    ms: float
    allowed_ms: float
    noise_ms: float = 0.0

    @property
    def too_much(self) -> bool:
        """Whether it is more than allowed."""
        return self.ms > self.allowed_ms

    @property
    def unseen_ms(self) -> float:
        """What there is of it, if it is more than allowed; otherwise 0."""
        return self.ms if self.too_much else 0.0

    @property
    def may_be_noise(self) -> bool:
        """Whether honest solutions may vary by as much."""
        return self.ms <= self.noise_ms


_NO_EXCESS = Excess(0.0, 0.0)


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
        Size of the outputs that are allocated and filled for this candidate, and were not for the
        reference.
    device : str
        Where the calls ran.
    waited_ms : float
        As of `Taken`: how long others held up an exchange.
    """

    calls: tuple[TimedCall, ...]
    timer: str
    timer_version: Optional[str] = None
    floor: Optional[Floor] = None
    poisoned_bytes: int = 0
    device: str = "cpu"
    waited_ms: float = 0.0

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
    overhead, exchange, stage, describe : Excess
        Time beyond the samples in the calls, in the whole exchanges, before these, and after a
        device's work; zero if it has not come to count.
    """

    violation: Optional[Violation]
    overhead: Excess = _NO_EXCESS
    exchange: Excess = _NO_EXCESS
    stage: Excess = _NO_EXCESS
    describe: Excess = _NO_EXCESS

    @property
    def unseen_ms(self) -> float:
        """What the latency lacks in milliseconds, if it is the claim; 0 if that is believed."""
        # What is hidden in a call, and after it, is part of the exchange: it is added once.
        parts = self.overhead.unseen_ms + self.describe.unseen_ms
        return max(parts, self.exchange.unseen_ms) + self.stage.unseen_ms


# Rule, which time of a call, margins on the CPU and on other devices, and how it is told.
_PARTS: tuple[tuple[Rule, str, Margins, Margins, str], ...] = (
    (
        *("hidden time", "overhead", HIDDEN, HIDDEN_ON_DEVICES),
        "calls take {excess} longer than the claimed {claimed:g} ms and the exchange",
    ),
    (
        *("exchange time", "exchange", EXCHANGE, EXCHANGE_ON_DEVICES),
        "exchanges take {excess} longer than the claimed {claimed:g} ms and usual changes",
    ),
    (
        *("stage time", "stage", STAGE, STAGE),
        "getting ready for a call takes {excess} longer than the reference needs",
    ),
    (
        *("hidden time", "describe", DESCRIBE, DESCRIBE),
        "answers come {excess} longer than the reference's after the end",
    ),
)


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
    half, few = lower_half(calls), len(calls) < _FEWEST_CALLS
    excesses: dict[str, Excess] = {}
    found = []
    for rule, part, on_cpu, on_devices, text in _PARTS:
        margins = on_cpu if claim.device == "cpu" else on_devices
        normal: Normal = getattr(normals, part)
        typical_ms = median(getattr(call, f"{part}_ms") for call in half)
        # Outputs that were made and filled for the candidate, and not for the reference.
        more_ms = claim.poisoned_bytes / _FILL_BYTES_PER_MS if part == "stage" else 0.0
        allowed_ms = margins.allowed_ms(latency, normal) + more_ms
        noise_ms = math.inf if normal.is_noisy else margins.noise_ms(latency, normal)
        noise_ms += normal.median_ms - normal.usual_ms + more_ms + claim.waited_ms
        excess = Excess(typical_ms - normal.usual_ms, allowed_ms, noise_ms)
        excesses[part] = excess
        if excess.too_much:
            told = f"{excess.ms:.4g} ms (allowed: {allowed_ms:.4g} ms)"
            message = text.format(excess=told, claimed=latency)
            found.append(Violation(rule, message, True, few or excess.may_be_noise))
    # Rather what is beyond all noise.
    worst = min(found, key=lambda violation: violation.undecided, default=None)
    return Inquiry(worst, **excesses)
