"""What a latency has to agree with. Pure functions of what the judge has seen itself.

On the CPU a latency is the judge's own: the time from before the last of the inputs are written
until what the call has left is secured, less what the same exchange takes without a call. There is
nothing to be believed.

On devices that work by themselves the timer of the candidate's process takes it, from the device's
own clock. It may lie, so the judge's clock bounds it: what a call has taken *beyond* its sample and
the time that it needed to return to the host, up to when its outputs were secured, may exceed what
the reference's calls took beyond theirs by a margin. More may be a busy host, and is measured
again; if it comes again, the latency is disputed, and reaches up to what it is with all that the
timer has not seen. A call that needs far longer than the reference to return to the host has a
latency that includes this time: nobody can tell what the device did meanwhile.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple, Optional

from flashinfer_bench.bench.calls import find_impossible
from flashinfer_bench.stats.samples import quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fib_judge.floor import Floor
    from flashinfer_bench.bench.executors.base import TimedCall

Rule = Literal["unaccounted time", "overlap", "floor", "samples", "timer"]

_MOST_EXCHANGE_MS = 0.05  # 10 to 20 us where nothing else runs
_MOST_WAKING_MS = 0.1
_LATE_MS = 0.02  # that a process goes on later than usual
_DISTURBED = 0.02  # of a call, that it was held up
_CLEAN_SHARE = 0.5  # of the calls has to be undisturbed, or all count
_SLACK_MS = 0.05
_SHARE = 0.05
_SPREADS = 3.0
_COPIED = 0.75
_LOW = 0.25  # of exchanges without a call is the quantile that counts
_FREE_MS, _TIMES_ENQUEUED = 0.1, 2.0  # of what a call may take to return to the host
# Of spreads, of what is usual above the least, and of what exchanges take longer in the end.
_MOST_MS, _MORE_USUAL = 0.1, 0.1
_SHORTEST_ON_CPU_MS = 0.0005  # what the judge can tell from nothing
# What timers show for a call of nothing on a GPU, as `LEAST_MS` of the timers.
_SHORTEST_ON_DEVICE_MS = 0.0005
_SLACK_ALONE_MS = 0.03
_TIMES_ALONE, _MORE_ALONE_MS = 1.5, 0.003  # of what calls take that follow others
_NOTHING = 1.01  # times that is no work of the device's


@dataclass(frozen=True)
class Violation:
    """A claim that is not believed.

    Attributes
    ----------
    rule : str
        Which rule it breaks.
    message : str
        The figures.
    unseen_ms : float
        What a call may have taken beyond its latency; 0 if a busy machine cannot be the reason.
    """

    rule: Rule
    message: str
    unseen_ms: float = 0.0

    @property
    def disputable(self) -> bool:
        """Whether a disturbance of the machine could look the same."""
        return self.unseen_ms > 0.0

    def __str__(self) -> str:
        return f"integrity: {self.rule}: {self.message}"


class Mode(NamedTuple):
    """How calls are made on a GPU; see `flashinfer_bench.bench.executors.base.Round`.

    Attributes
    ----------
    gated : bool
        Whether they are enqueued before they are released.
    calls : int
        How many there are in an exchange.
    """

    gated: bool
    calls: int


def whole(calls: Sequence[TimedCall]) -> list[TimedCall]:
    """Return the calls of each exchange as one, which has taken as long as they claim together."""
    found, start = [], 0
    while start < len(calls):
        end = start + calls[start].shared
        claimed = sum(call.sample_ms for call in calls[start:end])
        found.append(replace(calls[start], sample_ms=claimed))
        start = end
    return found


@dataclass(frozen=True)
class Overhead:
    """What an exchange takes beyond a call, as the reference shows.

    Attributes
    ----------
    exchange_ms, into_ms : float
        From a release until an answer is secured, without a call, if outputs are returned, and if
        they are written into memory of the judge's; the least of several.
    beyond_ms, spread_ms : float
        Median and robust standard deviation of what calls took beyond their samples, up to when
        their outputs were secured; the first at least what exchanges without a call do, and at most
        0.1 ms or 10 % above the least, however busy the machine.
    enqueued_ms : float
        Median of what they took to return to the host.
    woken_ms : float
        Median of what a process needs to go on after it has stood still.
    on_host : bool
        Whether the reference's calls do nothing on the device either.
    copied_ms : float
        How much of that goes into copies of outputs that are returned.
    bare_ms : float
        What an exchange without a call takes beyond the timer's samples, if outputs are returned.
    """

    exchange_ms: float
    into_ms: float = 0.0
    beyond_ms: float = 0.0
    spread_ms: float = 0.0
    enqueued_ms: float = 0.0
    woken_ms: float = 0.0
    on_host: bool = False
    copied_ms: float = 0.0
    bare_ms: float = 0.0

    @classmethod
    def of(cls, empty: Mapping[bool, Sequence[TimedCall]], calls: Sequence[TimedCall]) -> Overhead:
        """Sum up exchanges without a call, and with one; at least one of each.

        Parameters
        ----------
        empty : mapping
            Those without a call: False as if outputs were returned, True as if they were written.
        calls : sequence of TimedCall
            Those of the reference; where several were made in an exchange, as of `whole`.
        """
        # More than a low figure is never taken out, however busy the machine.
        least, into = (
            min(_MOST_EXCHANGE_MS, *(call.secured_ms for call in empty[kind]))
            for kind in (False, True)
        )
        woken = median(call.woken_ms for some in empty.values() for call in some)
        half = lower_half(calls)
        beyond = list(map(_beyond_ms, half))
        middle = median(beyond)
        spread = 1.4826 * median(abs(one - middle) for one in beyond)
        enqueued = median(call.enqueued_ms for call in half)
        low = {kind: _near_least(map(_beyond_ms, some), _LOW) for kind, some in empty.items()}
        # What the device waits for runs while it is enqueued: no time is beyond such calls.
        usual = max(_near_least(beyond, 0.5), *low.values())
        return cls(
            *(least, into, usual, spread, enqueued, min(woken, _MOST_WAKING_MS)),
            on_host=_is_nothing(calls),
            copied_ms=max(0.0, low[False] - low[True]),
            bare_ms=low[False],
        )

    def timed(self, call: TimedCall, *, into: bool) -> TimedCall:
        """Return a call with the judge's own time, on the CPU, as its sample."""
        late_ms = max(0.0, call.woken_ms - self.woken_ms)
        # An answer may come before the work is done: until the first look, nobody can tell. So the
        # time of this look is not taken out, though an exchange without a call has it, too.
        exchange_ms = max(0.0, (self.into_ms if into else self.exchange_ms) - call.glance_ms)
        own_ms = call.secured_ms - exchange_ms + late_ms
        return replace(call, sample_ms=max(own_ms, shortest_call_ms("cpu")))

    def disturbed(self, calls: Sequence[TimedCall]) -> list[int]:
        """Return the places of calls that others held up; none if too few would be left."""
        held = self._held_up(calls)
        return held if self._enough(len(calls) - len(held), calls) else []

    def least_ms(self, calls: Sequence[TimedCall]) -> Optional[float]:
        """Return what the latency may be if others held up nearly all calls; None if they did not.

        It is not the latency, as a process could wait for a helper that it has started itself.
        """
        if self._enough(len(calls) - len(self._held_up(calls)), calls):
            return None
        return median(max(0.0, call.sample_ms - self._held_ms(call)) for call in calls)

    @staticmethod
    def _enough(clean: int, calls: Sequence[TimedCall]) -> bool:
        return clean >= _CLEAN_SHARE * len(calls)

    def _held_up(self, calls: Sequence[TimedCall]) -> list[int]:
        pairs = enumerate(calls)
        return [place for place, one in pairs if self._held_ms(one) > _DISTURBED * one.wall_ms]

    def _held_ms(self, call: TimedCall) -> float:
        """Return how long it waited for a core, and went on too late after it had stood still."""
        late_ms = call.woken_ms - self.woken_ms
        return call.waited_ms + (late_ms if late_ms > _LATE_MS else 0.0)

    def holds_host(self, calls: Sequence[TimedCall]) -> bool:
        """Return whether these calls need far longer to return to the host, or work only there."""
        limit = _FREE_MS + _TIMES_ENQUEUED * self.enqueued_ms
        long = median(call.enqueued_ms for call in calls) > limit
        return long or (_is_nothing(calls) and not self.on_host)

    def for_outputs(self, *, into: bool) -> Overhead:
        """Return it for a solution that writes into the judge's memory, or returns its outputs.

        The copies of an exchange without a call come from memory, and those of a call from the
        device's caches: they may take less.
        """
        if not into:
            return self
        beyond_ms = self.beyond_ms - _COPIED * self.copied_ms
        return replace(self, beyond_ms=beyond_ms, bare_ms=self.bare_ms - self.copied_ms)

    def timed_on_host(self, calls: Sequence[TimedCall]) -> list[TimedCall]:
        """Return calls that wait for the device with the judge's own time as samples.

        Of those in one exchange it is the mean. Nothing is to be believed then, as with `timed`.
        """
        least = shortest_call_ms("cuda")
        found = []
        for call in calls:
            mean_ms = (call.secured_ms - self.bare_ms) / call.shared
            found.append(replace(call, sample_ms=max(mean_ms, least)))
        return found

    def growth_ms(self, empty: Sequence[TimedCall], calls: Sequence[TimedCall]) -> float:
        """Return how much longer later exchanges took, as of `of`: on a GPU with more processes.

        A solution could have slowed them down: they count so far.
        """
        kinds = empty, lower_half(calls) if calls else ()
        beyond = [median(map(_beyond_ms, some)) for some in kinds if some]
        return min(max(0.0, min(beyond) - self.beyond_ms), _MOST_MS)

    def longer(self, growth_ms: float) -> Overhead:
        """Return it for exchanges that take longer by so much."""
        return replace(self, beyond_ms=self.beyond_ms + growth_ms)

    @property
    def allowed_ms(self) -> float:
        """How much longer any call may take, whatever it claims."""
        return max(_SLACK_MS, min(_MOST_MS, _SPREADS * self.spread_ms))


def _is_nothing(calls: Sequence[TimedCall]) -> bool:
    return median(call.sample_ms for call in calls) <= _NOTHING * _SHORTEST_ON_DEVICE_MS


def _near_least(times_ms: Iterable[float], share: float) -> float:
    """Return a quantile, or a little more than the least where that is far below.

    Others may have kept the machine busy, and a solution's compiler is one of them.
    """
    ordered = sorted(times_ms)
    return min(quantile(ordered, share), ordered[0] + max(_MOST_MS, _MORE_USUAL * ordered[0]))


def _beyond_ms(call: TimedCall) -> float:
    enqueued_ms = 0.0 if call.gated else call.enqueued_ms
    return max(0.0, call.secured_ms - call.sample_ms - enqueued_ms)


def lower_half(calls: Sequence[TimedCall]) -> list[TimedCall]:
    """Return the calls whose claimed latency is at most the median of the claims.

    A false median needs a false claim in nearly all of these; those that the machine has disturbed
    are mostly among the others.
    """
    middle = median(call.sample_ms for call in calls)
    return [call for call in calls if call.sample_ms <= middle]


def shortest_call_ms(device: str) -> float:
    """Return how long a call of nothing takes at least, in milliseconds, as timers show it.

    On the CPU half a microsecond is nothing to the judge. On a GPU timers take out what a pair of
    events costs, and leave so much at least. Machines that have been calibrated have a
    better bound, their shortest call, as their floor.

    Parameters
    ----------
    device : str
        Where calls run.
    """
    least = _SHORTEST_ON_CPU_MS if device == "cpu" else _SHORTEST_ON_DEVICE_MS
    return max(least, time.get_clock_info("perf_counter").resolution * 1e3)


def find_violation(
    calls: Sequence[TimedCall],
    *,
    device: str,
    timer: str,
    timer_version: Optional[str],
    floor: Optional[Floor],
    overhead: Overhead,
) -> Optional[Violation]:
    """Return why the latency of these calls is not believed, or None.

    Parameters
    ----------
    calls : sequence of TimedCall
        Timed calls, at least one; on the CPU with the judge's own times as samples.
    device : str
        Where they ran.
    timer : str
        Name of the timer.
    timer_version : str, optional
        Its version, as this process knows it; None if it does not.
    floor : Floor, optional
        What the device needs at least.
    overhead : Overhead
        What is normal.
    """
    latency = median(call.sample_ms for call in calls)
    certain: tuple[tuple[Rule, Optional[str]], ...] = (
        ("timer", find_wrong_timer(calls, timer, timer_version)),
        ("samples", find_impossible(calls, shortest_call_ms(device))),
        ("samples", find_impossible(whole(calls))),
        ("floor", find_floor_problem(latency, floor)),
    )
    for rule, message in certain:
        if message is not None:
            return Violation(rule, message)
    if device == "cpu":
        return None
    exchanges = longest(calls)
    count, half = exchanges[0].shared, lower_half(exchanges)
    excess = (median(map(_beyond_ms, half)) - overhead.beyond_ms) / count
    # Their sum is bounded, and their median is what counts.
    excess += max(0.0, median(one.sample_ms for one in half) / count - latency)
    allowed = overhead.allowed_ms / count + _SHARE * latency
    if excess <= allowed:
        return None
    message = (
        f"{1e3 * excess:.3g} us unaccounted for around a {1e3 * latency:.3g} us call "
        f"(limit {1e3 * allowed:.3g} us)"
    )
    return Violation("unaccounted time", message, excess)


def least_alone_ms(alone: Sequence[TimedCall], overhead: Overhead) -> float:
    """Return the least that calls in exchanges of their own took, by what the judge has seen.

    Parameters
    ----------
    alone : sequence of TimedCall
        At least one.
    overhead : Overhead
        What is normal for such exchanges.
    """
    slack_ms = min(_MOST_MS, max(_SLACK_ALONE_MS, _SPREADS * overhead.spread_ms))
    usual = overhead.beyond_ms + slack_ms
    return min(call.sample_ms + max(0.0, _beyond_ms(call) - usual) for call in alone)


def find_overlap(latency_ms: float, alone_ms: float) -> Optional[Violation]:
    """Return why calls that followed one another cannot have taken so little; None if they can.

    On streams of their own several can run at a time: together they take no longer than one, and
    what each claims is not seen to be false. Then one takes longer alone.

    Parameters
    ----------
    latency_ms : float
        Of calls in a row.
    alone_ms : float
        The least of others, as of `least_alone_ms`.
    """
    most = _TIMES_ALONE * latency_ms + _MORE_ALONE_MS
    if alone_ms <= most:
        return None
    message = (
        f"a call takes {1e3 * alone_ms:.3g} us alone and {1e3 * latency_ms:.3g} us after others "
        f"(limit {1e3 * most:.3g} us)"
    )
    return Violation("overlap", message, alone_ms - latency_ms)


def longest(calls: Sequence[TimedCall]) -> list[TimedCall]:
    """Return the exchanges with the most calls: what one takes depends on how many there are."""
    exchanges = whole(calls)
    most = max(one.shared for one in exchanges)
    return [one for one in exchanges if one.shared == most]


def unaccounted_us(calls: Sequence[TimedCall], overhead: Overhead) -> dict[str, float]:
    """Return what calls on a GPU took beyond their samples, for the trace.

    Returns
    -------
    dict
        Microseconds of an exchange: ``low`` and ``median`` are the lower quartile and the median of
        those that `find_violation` looks at, ``usual`` is what the reference takes, and ``margin``
        how much more is allowed, but for a share of the latency. ``calls``: how many there are in
        an exchange.
    """
    exchanges = longest(calls)
    beyond = sorted(map(_beyond_ms, lower_half(exchanges)))
    found = {
        "low": quantile(beyond, _LOW),
        "median": quantile(beyond, 0.5),
        "usual": overhead.beyond_ms,
        "margin": overhead.allowed_ms,
    }
    rounded = {name: round(1e3 * value, 1) for name, value in found.items()}
    return {**rounded, "calls": exchanges[0].shared}


def find_wrong_timer(
    calls: Sequence[TimedCall], timer: str, version: Optional[str]
) -> Optional[str]:
    """Return which other timer than the one asked for has answered; see `find_violation`."""
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
