"""Which samples nobody believes: rules beyond those that hold for all latencies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fib_judge.floor import Floor
    from flashinfer_bench.bench.calls import TimedCall

_SHORTEST_ON_CPU_MS = 10e-6
# What timers show for a call of nothing on a GPU, as `timing.pair_cost.LEAST_MS`.
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
