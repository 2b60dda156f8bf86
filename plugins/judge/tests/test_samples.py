"""Samples that cannot be latencies, by no chance: durations, clocks, timers, floors."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import pytest

from fib_judge.integrity import (
    find_frozen_clock,
    shortest_call_ms,
)
from flashinfer_bench.bench.calls import TimedCall, find_impossible
from flashinfer_bench.bench.timing.wall import WallClockTimer

LEAST_MS = 0.0005


def call(sample=1.0, version="1"):
    return TimedCall(sample, 0.2, sample + 0.1, 1.0, "clock", version)


WAITS = replace(call(), sample_ms=2.0, change_ms=0.1, wall_ms=0.1, enqueue_ms=1.9)


class TestSamples:
    @pytest.mark.parametrize(
        ("calls", "text"),
        [
            ([call(), call(math.nan), call()], "a sample of nan ms is not a duration"),
            ([call(), call(math.inf), call()], "a sample of inf ms"),
            ([call(), call(-0.5), call()], "a sample of -0.5 ms"),
            (
                [call(), TimedCall(4.0, 0.5, 1.5, 1.0, "clock", "1")],
                "(timed call 1) that took 2 ms",
            ),
            ([call(0.0), call(0.0), call(1.0)], "'clock' cannot tell the latency from zero"),
            # A nanosecond is no latency, however quick the work is.
            ([call(1e-6)] * 5, "a latency of 1e-06 ms; a call of nothing takes 1e-05 ms at least"),
            ([replace(WAITS, enqueue_ms=0.9)], "that took"),
        ],
    )
    def test_no_durations(self, calls, text):
        assert text in find_impossible(calls, shortest_call_ms("cpu"))

    @pytest.mark.parametrize(
        "calls",
        [
            [TimedCall(2.1, 0.0, 2.0, 1.0, "clock", "1")],  # clocks may disagree a little
            [TimedCall(2.0, 2.1, 0.0, 1.0, "clock", "1")],  # the judge may hear late of a call
            [WAITS],  # time until the call has returned counts
            [call(1e-6), call(), call()],  # single short samples are noise
        ],
    )
    def test_that_may_be(self, calls):
        assert find_impossible(calls, shortest_call_ms("cpu")) is None

    def test_a_call_of_nothing_takes_longer_than_that(self):
        """Or honest solutions that are called quickly would be refused."""
        timer = WallClockTimer()
        samples = [timer.time_call(len, ("",), device="cpu")[0] for _ in range(2001)]
        assert median(samples) >= shortest_call_ms("cpu")
        assert shortest_call_ms("cuda:1") > shortest_call_ms("cpu")


def test_the_least_that_timers_of_gpus_show_is_known():
    timers = pytest.importorskip("fib_timing_cuda.driver")
    assert timers.LEAST_MS == LEAST_MS


class TestFrozenClock:
    SAME = (call(0.5),) * 50

    def test_same_sample_every_time(self):
        found = find_frozen_clock(self.SAME, 1e-5)
        assert found == "all 50 samples are 0.5 ms to the last digit"

    @pytest.mark.parametrize(
        ("calls", "resolution"),
        [
            (SAME[:19], 1e-5),  # chance, with so few
            (SAME, 0.025),  # the clock is coarse: a twentieth of what it shows
            (SAME, None),
            ((*SAME, call(0.50001)), 1e-5),
        ],
    )
    def test_that_may_be(self, calls, resolution):
        assert find_frozen_clock(calls, resolution) is None

    def test_calls_of_nothing_on_a_device(self):
        """Timers show the least that they can, every time; that is no lie of the clock."""
        least = [call(LEAST_MS)] * 50
        assert find_frozen_clock(least, 1e-6) is None
        assert find_impossible(least, shortest_call_ms("cuda:0")) is None
        for other in (0.9 * LEAST_MS, 1.1 * LEAST_MS):
            assert find_frozen_clock([call(other)] * 50, 1e-6) is not None
