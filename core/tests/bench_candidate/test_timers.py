import gc
import time

import pytest

from flashinfer_bench.bench.candidate.start import make_timers
from flashinfer_bench.bench.timing import time_runnable
from flashinfer_bench.bench.timing.wall import WallClockTimer
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.plugins import Catalog, TimerSpec


def measure(timer, function, arguments=lambda index: (), *, warmup=2, iterations=5):
    return timer.measure(function, arguments, warmup=warmup, iterations=iterations, device="cpu")


class Clock:
    """Stands for `time.perf_counter_ns`: each reading is a microsecond after the last.

    So two readings in a row cost a microsecond, which the wall clock takes out of its samples.
    """

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 1000
        return self.now


class TestWallClock:
    def test_making_arguments_and_freeing_results_do_not_count(self, monkeypatch):
        clock = Clock()
        monkeypatch.setattr(time, "perf_counter_ns", clock)
        timer = WallClockTimer()

        class Result:
            def __init__(self):
                clock.now += 500

            def __del__(self):
                clock.now += 10**9

        def arguments(index):
            clock.now += 10**9
            return ()

        assert measure(timer, Result, arguments) == [0.0005] * 5

    @pytest.mark.parametrize("enabled", [True, False])
    def test_the_collector_pauses_and_is_left_as_it_was(self, enabled):
        seen = []
        before = gc.isenabled()
        try:
            gc.enable() if enabled else gc.disable()
            measure(WallClockTimer(), lambda: seen.append(gc.isenabled()), warmup=0)
            assert gc.isenabled() == enabled
        finally:
            gc.enable() if before else gc.disable()
        assert not any(seen)


class TestTimeRunnable:
    @pytest.mark.parametrize(("warmup", "iterations"), [(-1, 1), (0, 0)])
    def test_impossible_counts(self, warmup, iterations):
        with pytest.raises(ValueError, match="warmup"):
            time_runnable(lambda: None, [], warmup, iterations, "cpu")

    def test_a_timer_by_name(self):
        assert time_runnable(lambda: None, [], 1, 3, "cpu", timer="cpu") > 0

    @pytest.mark.plugin("timing_cuda")
    def test_a_timer_for_another_device(self):
        with pytest.raises(CapabilityError, match="'cuda_event' is for cuda, not for 'cpu'"):
            time_runnable(lambda: None, [], 1, 3, "cpu", timer="cuda_event")


def test_a_timer_that_is_broken_does_not_keep_the_others_out(monkeypatch):
    catalog = Catalog.of(
        TimerSpec(name="gone", devices=("cpu",), factory="no_such_module:Timer"),
        TimerSpec(
            name="good", devices=("cpu",), factory=f"{WallClockTimer.__module__}:WallClockTimer"
        ),
    )
    monkeypatch.setattr("flashinfer_bench.plugins.default_catalog", lambda: catalog)
    timers = make_timers("cpu")
    assert isinstance(timers["gone"], Exception)
    assert isinstance(timers["good"], WallClockTimer)
