"""What the wall clock costs and what is done about it, and what holds for any timer."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.timing import Timer
from flashinfer_bench.bench.timing.wall import WallClockTimer
from flashinfer_bench.errors import ConfigError


def measure(timer: Timer, function, *, warmup=2, iterations=5):
    return timer.measure(
        function, lambda index: (), warmup=warmup, iterations=iterations, device="cpu"
    )


class Clock:
    """Stands for `time.perf_counter_ns`: each reading is a microsecond after the last."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1000
        return self.now


class TestReadingTheClock:
    """What that costs is taken out of samples, and batches make it small."""

    @pytest.fixture
    def clock(self, monkeypatch):
        clock = Clock()
        monkeypatch.setattr(time, "perf_counter_ns", clock)
        return clock

    def advance(self, clock, nanoseconds):
        return lambda: setattr(clock, "now", clock.now + nanoseconds)

    def test_it_is_measured_where_the_timer_is_made(self, clock):
        timer = WallClockTimer()
        assert timer.removed_ms == 0.001
        sample, _ = timer.time_call(self.advance(clock, 5_000), (), device="cpu")
        assert sample == 0.005

    def test_the_least_of_many_readings_is_taken(self, monkeypatch):
        slow = iter([5000] * 101 + [40] + [9000] * 1000)
        now = 0

        def clock():
            nonlocal now
            now += next(slow)
            return now

        monkeypatch.setattr(time, "perf_counter_ns", clock)
        assert WallClockTimer().removed_ms == 40 / 1e6

    def test_a_sample_is_never_negative(self, clock):
        timer = WallClockTimer()
        timer._reading_ns = 10**9
        assert timer.time_call(lambda: None, (), device="cpu") == (0.0, None)
        assert timer.time_batch(lambda: None, (), 3, device="cpu") == 0.0

    def test_a_call_of_nothing_is_shorter_than_a_microsecond(self):
        """And longer than nothing: the call itself is part of it."""
        samples = measure(WallClockTimer(), lambda: None, iterations=200)
        assert 0.0 < sorted(samples)[100] < 0.001

    def test_a_batch_is_timed_as_a_whole(self, clock):
        calls = []

        def function(*given):
            calls.append(given)
            clock.now += 300

        found = WallClockTimer().time_batch(function, (1,), 10, device="cpu")
        assert found == pytest.approx(300e-6)
        assert calls == [(1,)] * 10

    @pytest.mark.parametrize(
        ("latency", "count"),
        [(5.0, 1), (1e-3, 1), (5e-4, 20), (1e-4, 100), (1e-9, 1000), (0, 1000)],
    )
    def test_only_short_calls_make_a_batch(self, latency, count):
        assert WallClockTimer().batch_of(latency) == count

    @given(st.floats(0.0, 1e6))
    def test_a_batch_is_neither_empty_nor_endless(self, latency):
        count = WallClockTimer().batch_of(latency)
        assert 1 <= count <= 1000
        assert count * latency <= max(latency, 0.011)


class TestAnyTimer:
    class Half(Timer):
        name = "half"

        def time_call(self, function, arguments, *, device):
            return 0.5, function(*arguments)

    def test_what_it_is_like_unless_it_says_otherwise(self):
        timer = self.Half()
        assert (timer.resolution_ms, timer.repeats, timer.caches) == (None, False, ("cold", "warm"))
        assert (timer.removed_ms, timer.batch_of(0.0), timer.take_notes()) == (0.0, 1, [])

    def test_a_batch_is_made_of_single_calls(self):
        calls = []
        assert self.Half().time_batch(calls.append, (7,), 4, device="cpu") == 0.5
        assert calls == [7] * 4

    @pytest.mark.parametrize(("warmup", "iterations"), [(0, 0), (-1, 1), (3, -2)])
    def test_no_timed_call_is_no_measurement(self, warmup, iterations):
        calls = []
        with pytest.raises(ConfigError, match=f"warmup={warmup}, iterations={iterations}"):
            measure(self.Half(), lambda: calls.append(1), warmup=warmup, iterations=iterations)
        assert calls == []
