"""The watch around a timing: ranges, waiting, and that nothing ends a run."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_judge.watch import (
    EnvironmentWatch,
    Reading,
    Recovery,
    Summary,
    Watcher,
    WatchReport,
    keep,
    watchers_for,
)
from flashinfer_bench.errors import CapabilityError

HOT = Reading(throttled=("hw_thermal",))
FINE = Reading()
NEVER = Recovery(total_s=0.0)


class Scripted(Watcher):
    """Gives the readings of a list in turn; raises those that are exceptions."""

    name = "scripted"
    devices = ("cpu",)

    def __init__(self, *readings, summary=Summary(), at_start=None):  # noqa: B008
        self.readings = list(readings)
        self.summary, self.at_start = summary, at_start
        self.asked = self.stopped = 0

    def start(self, device):
        self.device = device
        if self.at_start:
            raise self.at_start

    def sample(self):
        self.asked += 1
        found = self.readings.pop(0) if self.readings else FINE
        if isinstance(found, BaseException):
            raise found
        return found

    def stop(self):
        self.stopped += 1
        return self.summary


class Clock:
    """Seconds that pass only when they are told to."""

    def __init__(self):
        self.now, self.slept = 0.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def watch(*watchers, recovery=NEVER, clock=None):
    clock = clock or Clock()
    return EnvironmentWatch("cpu", watchers, recovery=recovery, clock=clock, sleep=clock.sleep)


def run(watched, *marks):
    watched.before()
    for count in marks:
        watched.mark(count)
    return watched.after()


class TestRanges:
    def test_the_batch_before_and_the_one_after(self):
        report = run(watch(Scripted(FINE, FINE, HOT, FINE)), 10, 20, 30, 40)
        assert report.throttled == tuple(range(10, 30))
        assert report.notes[0] == (
            "20 of 40 samples were taken while the device was throttled (hw_thermal): "
            "they were dropped"
        )

    def test_a_look_that_tells_nothing_leaves_it_open(self):
        report = run(watch(Scripted(FINE, None, None, HOT)), 10, 20, 30, 40)
        assert report.throttled == tuple(range(40))

    @given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=20), st.booleans())
    def test_every_sample_beside_a_hot_look_and_no_other(self, batches, hot_first):
        looks = [hot_first, *(hot for _, hot in batches)]
        counts = [0]
        for size, _ in batches:
            counts.append(counts[-1] + size)
        script = Scripted(*(HOT if hot else FINE for hot in looks))
        report = run(watch(script), *counts[1:])
        expected = {
            sample
            for i in range(len(batches))
            if looks[i] or looks[i + 1]
            for sample in range(counts[i], counts[i + 1])
        }
        assert set(report.throttled) == expected


class TestRecovery:
    def test_waits_until_it_is_over(self):
        clock = Clock()
        watched = watch(Scripted(FINE, HOT, HOT, HOT, FINE), recovery=Recovery(), clock=clock)
        assert watched.before() == 0.0
        assert watched.mark(10) == pytest.approx(0.05 + 0.1 + 0.2)
        assert watched.mark(20) == 0.0
        report = watched.after()
        assert report.throttled == tuple(range(10))  # the next batch began when it was over
        assert report.waited_s == pytest.approx(0.35)
        assert clock.slept == pytest.approx([0.05, 0.1, 0.2])

    def test_gives_up_once_and_for_all(self):
        clock = Clock()
        watched = watch(Scripted(*[HOT] * 99), recovery=Recovery(longest_s=1.0), clock=clock)
        assert watched.before() == pytest.approx(1.0)
        assert [watched.mark(n) for n in (1, 2, 3)] == [0.0, 0.0, 0.0]
        report = watched.after()
        assert sum(clock.slept) == pytest.approx(1.0)
        assert report.throttled == (0, 1, 2)
        assert keep([1.0, 2.0, 3.0], report) == ((1.0, 2.0, 3.0), ())
        assert "did not recover in 1 s" in report.notes[-1]


def test_a_costly_watcher_is_asked_less_often():
    clock = Clock()

    class Slow(Scripted):
        def sample(self):
            clock.now += 0.001
            return super().sample()

    slow = Slow()
    watched = watch(slow, clock=clock)
    watched.before()
    for count in range(1000):
        clock.now += 0.002
        watched.mark(count)
    share = (slow.asked * 0.001) / clock.now
    assert 0.01 < share < 0.025


class TestNothingEndsARun:
    def test_not_available(self):
        watcher = Scripted(at_start=CapabilityError("no such thing here", hint="buy one"))
        report = run(watch(watcher), 5)
        assert report.notes == ("scripted: not watched: no such thing here",)
        assert (watcher.asked, watcher.stopped, report.facts) == (0, 0, {})

    @pytest.mark.parametrize("error", [OSError("gone"), ValueError(), ZeroDivisionError("x")])
    def test_raises_at_the_start(self, error):
        report = run(watch(Scripted(at_start=error)), 5)
        assert report.notes[0].startswith(f"scripted: stopped watching: {type(error).__name__}")

    def test_raises_in_the_middle(self):
        watcher = Scripted(FINE, HOT, RuntimeError("lost"), HOT)
        report = run(watch(watcher), 10, 20, 30)
        assert report.throttled == tuple(range(10))
        assert watcher.asked == 3
        assert watcher.stopped == 1  # it has things to let go of
        assert report.notes[-1] == "scripted: stopped watching: RuntimeError: lost"

    def test_ctrl_c_is_no_error(self):
        with pytest.raises(KeyboardInterrupt):
            run(watch(Scripted(KeyboardInterrupt())))


def test_facts_smallest_median_greatest_and_shares():
    readings = [Reading({"sm_mhz": mhz}, states=("power_cap",)) for mhz in (1980, 1410, 1755)]
    script = Scripted(*readings, HOT, summary=Summary({"limit": 700}, ("a note",)))
    report = run(watch(script), 1, 2)
    assert report.facts["scripted"] == {
        "readings": 4,
        "sm_mhz": [1410, 1755, 1980],
        "states": {"hw_thermal": 0.25, "power_cap": 0.75},
        "limit": 700,
    }
    assert report.notes[-1] == "a note"


def test_choice_by_device():
    assert [one.name for one in watchers_for("cpu")] == ["cpu"]
    assert [one.name for one in watchers_for("cuda:1")] == ["nvml", "cpu"]
    assert watchers_for("cuda", "off") == []


class TestTogether:
    def test_on_this_machine(self):
        report = run(EnvironmentWatch("cpu"), 5, 10)
        assert report.facts["cpu"]["cpus"] >= 1
        json.dumps(report.facts, allow_nan=False)
        assert len(json.dumps(report.facts)) < 1000

    def test_a_gpu_that_gets_hot(self, gpu):
        watched = EnvironmentWatch("cuda:0", recovery=NEVER, clock=Clock())
        watched.before()
        watched.mark(10)
        gpu.set(reasons=0x40, sm=900)
        watched.mark(20)
        gpu.set(reasons=0, sm=1980)
        for count in range(30, 100, 10):
            watched.mark(count)
        report = watched.after()
        assert report.throttled == tuple(range(10, 30))
        assert report.facts["nvml"]["sm_mhz"] == [900, 1980, 1980]
        assert report.facts["nvml"]["states"] == {"hw_thermal": 0.09091}
        assert report.facts["cpu"]["cpus"] >= 1
        assert gpu.now("users") == 0


@given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=60), st.sets(st.integers(0, 70)))
def test_dropped_samples_are_throttled_ones_and_at_most_three_of_four(samples, throttled):
    report = WatchReport(throttled=tuple(sorted(throttled)))
    kept, dropped = keep(samples, report)
    slow = [number for number in range(len(samples)) if number in throttled]
    assert list(dropped) == (slow if len(slow) <= 0.75 * len(samples) else [])
    assert list(kept) == [each for n, each in enumerate(samples) if n not in dropped]
