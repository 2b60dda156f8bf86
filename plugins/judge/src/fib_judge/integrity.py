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
* samples, floor, timer: what holds for sure; see `judge.samples`.

Noise makes the first three fail now and then, so `Violation.disputable` tells that the calls have
to be made again, in a fresh process, before anyone is convicted. Where the machine might be the
reason (``excess <= noise``), nobody is: `Violation.undecided`. What the timer has not seen is then
added to the latency (`Inquiry.added_ms`), so that nobody gains by it either. So *allowed* can be
tight where *noise* is not. Noise is what the reference shows of it, and what the system tells of
this very process: how long others had the cores while it could have run.

The same goes for a device that works by itself, such as a GPU: the wait beyond the samples is the
device's *or* the host's, and a solution that makes the host work for long has hidden nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal, Optional

from fib_judge.margins import (
    DESCRIBE,
    EXCHANGE,
    EXCHANGE_ON_DEVICES,
    HIDDEN,
    HIDDEN_ON_DEVICES,
    STAGE,
)
from fib_judge.normals import lower_half
from fib_judge.samples import (
    find_floor_problem,
    find_frozen_clock,
    find_wrong_timer,
    shortest_call_ms,
)
from flashinfer_bench.bench.calls import find_impossible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fib_judge.floor import Floor
    from fib_judge.margins import Margins
    from fib_judge.normals import Normal, Normals
    from flashinfer_bench.bench.calls import TimedCall

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

    def noisier(self, ms: float) -> Excess:
        """Return it with more room for noise."""
        return replace(self, noise_ms=self.noise_ms + ms)

    @property
    def may_be_noise(self) -> bool:
        """Whether honest solutions may vary by as much."""
        return self.ms <= self.noise_ms


_NO_EXCESS = Excess(0.0, 0.0)


def hidden_time(
    calls: Sequence[TimedCall], claimed_ms: float, normals: Normals, device: str = "cpu"
) -> Excess:
    """Return how much longer a typical call took, by the judge's clock, than the claims explain."""
    typical = median(call.overhead_ms for call in lower_half(calls))
    margins = HIDDEN if device == "cpu" else HIDDEN_ON_DEVICES
    return _excess(typical, margins, claimed_ms, normals.overhead)


def exchange_time(
    calls: Sequence[TimedCall], claimed_ms: float, normals: Normals, device: str = "cpu"
) -> Excess:
    """Return how much longer a typical exchange took as a whole than the claims explain."""
    typical = median(call.exchange_ms for call in lower_half(calls))
    margins = EXCHANGE if device == "cpu" else EXCHANGE_ON_DEVICES
    return _excess(typical, margins, claimed_ms, normals.exchange)


def describe_time(calls: Sequence[TimedCall], claimed_ms: float, normals: Normals) -> Excess:
    """Return how much longer than the reference's a typical answer was in coming after the end."""
    typical = median(call.describe_ms for call in lower_half(calls))
    return _excess(typical, DESCRIBE, claimed_ms, normals.describe)


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
    hidden, exchanged, staged, described : Excess
        Time beyond the samples in the calls, in the whole exchanges, before these, and after a
        device's work; zero if it has not come to count.
    """

    violation: Optional[Violation]
    hidden: Excess = _NO_EXCESS
    exchanged: Excess = _NO_EXCESS
    staged: Excess = _NO_EXCESS
    described: Excess = _NO_EXCESS

    @property
    def added_ms(self) -> float:
        """What the latency lacks in milliseconds, if it is the claim; 0 if that is believed."""
        # What is hidden in a call, and after it, is part of the exchange: it is added once.
        parts = self.hidden.unseen_ms + self.described.unseen_ms
        return max(parts, self.exchanged.unseen_ms) + self.staged.unseen_ms


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
    hidden = hidden_time(calls, latency, normals, claim.device)
    exchanged = exchange_time(calls, latency, normals, claim.device)
    staged = stage_time(calls, latency, normals, claim.poisoned_bytes)
    described = describe_time(calls, latency, normals)
    times = (each.noisier(claim.waited_ms) for each in (hidden, exchanged, staged, described))
    inquiry = Inquiry(None, *times)
    found = _disputed(latency, inquiry)
    if found is not None and len(calls) < _FEWEST_CALLS:
        found = replace(found, undecided=True)
    return replace(inquiry, violation=found)


def _disputed(claimed_ms: float, times: Inquiry) -> Optional[Violation]:
    """Return what is wrong with any of the times, rather what is beyond all noise."""
    claim = f"the claimed {claimed_ms:g} ms"
    texts: tuple[tuple[Rule, str, Excess, str], ...] = (
        ("hidden time", "calls take", times.hidden, f"{claim} and the exchange"),
        ("exchange time", "exchanges take", times.exchanged, f"{claim} and usual changes"),
        ("stage time", "getting ready for a call takes", times.staged, "the reference needs"),
        ("hidden time", "answers come", times.described, "the reference's after the end"),
    )
    found = [
        Violation(
            rule, f"{what} {_beyond(excess)} {than}", disputable=True, undecided=excess.may_be_noise
        )
        for rule, what, excess, than in texts
        if excess.too_much
    ]
    return min(found, key=lambda violation: violation.undecided, default=None)


def _beyond(excess: Excess) -> str:
    return f"{excess.ms:.4g} ms (allowed: {excess.allowed_ms:.4g} ms) longer than"
