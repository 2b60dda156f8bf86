"""Samples that cannot be latencies, by no chance: durations, clocks, timers, floors."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import pytest

from flashinfer_bench.bench.judge.floor import Floor
from flashinfer_bench.bench.judge.samples import (
    find_floor_problem,
    find_frozen_clock,
    find_impossible,
    find_wrong_timer,
    shortest_call_ms,
)
from flashinfer_bench.bench.judge.shots import TimedCall
from flashinfer_bench.bench.timing.pair_cost import LEAST_MS
from flashinfer_bench.bench.timing.wall import WallClockTimer


def call(sample: float = 1.0, version: str = "1") -> TimedCall:
    return TimedCall(sample, 0.2, sample + 0.1, 1.0, "clock", version)


class TestSamples:
    @pytest.mark.parametrize(
        ("sample", "text"),
        [
            (math.nan, "a sample of nan ms is not a duration"),
            (math.inf, "a sample of inf ms"),
            (-0.5, "a sample of -0.5 ms"),
        ],
    )
    def test_no_durations(self, sample: float, text: str) -> None:
        found = find_impossible([call(), replace(call(), sample_ms=sample), call()])
        assert found is not None
        assert text in found

    def test_longer_than_the_judge_has_waited(self) -> None:
        found = find_impossible([call(), TimedCall(4.0, 0.5, 1.5, 1.0, "clock", "1")])
        assert found == "a sample of 4 ms in a call (timed call 1) that took 2 ms"

    def test_clocks_may_disagree_a_little(self) -> None:
        assert find_impossible([TimedCall(2.1, 0.0, 2.0, 1.0, "clock", "1")]) is None

    def test_the_judge_may_hear_late_that_a_call_begins(self) -> None:
        assert find_impossible([TimedCall(2.0, 2.1, 0.0, 1.0, "clock", "1")]) is None

    def test_time_until_the_call_has_returned_counts(self) -> None:
        waits = replace(call(), sample_ms=2.0, change_ms=0.1, wall_ms=0.1, enqueue_ms=1.9)
        assert find_impossible([waits]) is None
        assert find_impossible([replace(waits, enqueue_ms=0.9)]) is not None

    def test_zeros(self) -> None:
        found = find_impossible([call(0.0), call(0.0), call(1.0)])
        assert found == "the timer 'clock' cannot tell the latency from zero"

    def test_shorter_than_any_call(self) -> None:
        """A nanosecond is no latency, however quick the work is."""
        found = find_impossible([call(1e-6)] * 5, shortest_call_ms("cpu"))
        assert found == "a latency of 1e-06 ms; a call of nothing takes 1e-05 ms at least"
        assert find_impossible([call(1e-6)] * 5) is None  # nothing is known of what a call takes

    def test_single_short_samples_are_noise(self) -> None:
        assert find_impossible([call(1e-6), call(), call()], shortest_call_ms("cpu")) is None

    def test_a_call_of_nothing_takes_longer_than_that(self) -> None:
        """Or honest solutions that are called quickly would be refused."""
        timer = WallClockTimer()
        samples = [timer.time_call(len, ("",), device="cpu")[0] for _ in range(2001)]
        assert median(samples) >= shortest_call_ms("cpu")
        assert shortest_call_ms("cuda:1") > shortest_call_ms("cpu")


class TestFrozenClock:
    SAME = (call(0.5),) * 50

    def test_same_sample_every_time(self) -> None:
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
    def test_that_may_be(self, calls: tuple[TimedCall, ...], resolution: float | None) -> None:
        assert find_frozen_clock(calls, resolution) is None

    @pytest.mark.parametrize(("sample", "found"), [(1e-4, True), (4e-5, False)])
    def test_small_samples_too(self, sample: float, found: bool) -> None:
        """With a clock of a nanosecond, 100 ns do not come twenty times in a row."""
        assert (find_frozen_clock([call(sample)] * 20, 1e-6) is not None) is found

    def test_calls_of_nothing_on_a_device(self) -> None:
        """Timers show the least that they can, every time; that is no lie of the clock."""
        least = [call(LEAST_MS)] * 50
        assert find_frozen_clock(least, 1e-6) is None
        assert find_impossible(least, shortest_call_ms("cuda:0")) is None
        for other in (0.9 * LEAST_MS, 1.1 * LEAST_MS):
            assert find_frozen_clock([call(other)] * 50, 1e-6) is not None

    def test_nothing_is_shorter_than_what_timers_show(self) -> None:
        assert shortest_call_ms("cuda:0") == LEAST_MS
        assert find_impossible([call(0.99 * LEAST_MS)] * 3, LEAST_MS) is not None


class TestTimer:
    def test_the_right_one(self) -> None:
        assert find_wrong_timer([call(1.0 + i * 1e-4) for i in range(40)], "clock", "1") is None
        assert find_wrong_timer([call(1.0 + i * 1e-4) for i in range(40)], "clock", None) is None

    @pytest.mark.parametrize(
        ("calls", "timer", "version"),
        [
            ([call()], "other", "1"),
            ([call()], "clock", "2"),
            ([call(), call(version="2")], "clock", "1"),
            ([call(), call(version="2")], "clock", None),
        ],
    )
    def test_another(self, calls: list[TimedCall], timer: str, version: str | None) -> None:
        assert find_wrong_timer(calls, timer, version) is not None


class TestFloor:
    FLOOR = Floor(0.5, 4096, 100, "bytes")

    def test_below(self) -> None:
        assert find_floor_problem(0.5, self.FLOOR) is None
        assert find_floor_problem(0.1, None) is None
        found = find_floor_problem(0.1, self.FLOOR)
        assert found is not None
        assert "at least 0.5 ms here (limited by bytes)" in found
