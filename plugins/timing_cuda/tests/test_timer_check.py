"""``fib timers check`` without the command: what it measures, of timers that lie in known ways."""

import pytest

from fib_timing_cuda.check import (
    DEVICE_CLOCK,
    LENGTHS_US,
    KnownLength,
    TimerReport,
    check_timers,
    disagreements,
    smallest_difference,
)
from fib_timing_cuda.known_work import KnownWork
from flashinfer_bench.bench.timing import Timer
from flashinfer_bench.errors import TimingError


class Device(KnownWork):
    """A device whose work takes exactly as long as it should, in microseconds of `now`."""

    def __init__(self):
        self.now = 0.0
        self.calls = 0
        self.gone = False

    def _advance(self, microseconds):
        self.calls += 1
        self.now += microseconds

    def spin(self, microseconds):
        return lambda: self._advance(microseconds)

    def steady(self):
        return lambda: self._advance(1000.0)

    def steps(self, count):
        return lambda: self._advance(count)

    def wait(self):
        if self.gone:
            raise RuntimeError("CUDA error: device lost\nand more")


class Stopwatch(Timer):
    """Tells `factor` times what has passed on the device, and `plus` microseconds."""

    version = "7"

    def __init__(self, device, name="watch", factor=1.0, plus=0.0):
        self.name = name
        self._device, self._factor, self._plus = device, factor, plus
        self.asked = 0
        self.drift = 0.0

    def time_call(self, function, arguments, *, device):
        self.asked += 1
        begun = self._device.now
        result = function(*arguments)
        passed = (self._device.now - begun) * (1.0 + self.drift * self.asked)
        return (passed * self._factor + self._plus) / 1e3, result

    def take_notes(self):
        return ["ticks"]


class Failing(Stopwatch):
    def time_call(self, *given, **options):
        raise TimingError("the clock has stopped", hint="wind it up")


class Odd(Stopwatch):
    def time_call(self, *given, **options):
        raise KeyError("ticks\nand tocks")


@pytest.fixture
def device():
    return Device()


def check(device, *timers, **options):
    return check_timers(timers, "cuda:0", device, **options)


class TestOneTimer:
    def test_a_right_one(self, device):
        report = check(device, Stopwatch(device))
        (one,) = report.timers
        assert report.passed
        assert (one.name, one.version, one.notes) == ("watch", "7", ("ticks",))
        assert [known.length_us for known in one.lengths] == list(LENGTHS_US)
        for known in one.lengths:
            assert known.found_us == pytest.approx(known.length_us)
        assert (one.overhead_us, one.noise.worst) == (0.0, 0.0)
        assert one.resolution_us == pytest.approx(10.0)  # between nothing and the shortest work

    def test_overhead_is_what_a_call_of_nothing_takes(self, device):
        (one,) = check(device, Stopwatch(device, plus=2.5)).timers
        assert one.overhead_us == pytest.approx(2.5)
        assert one.lengths[1].found_us == pytest.approx(102.5)

    def test_noise_is_a_difference_between_medians_of_the_same(self, device):
        timer = Stopwatch(device)
        timer.drift = 1e-4
        (one,) = check(device, timer).timers
        # In the order A B B A both series are in the middle of the same drift.
        assert one.noise.worst < 1e-3
        assert 0 < one.noise.spread < 0.1

    def test_a_clock_that_stands_still(self, device):
        report = check(device, Stopwatch(device, factor=0.0))
        assert not report.passed
        assert "measured as 0.0 ms" in str(report.timers[0].error)


class TestAgreement:
    @pytest.mark.parametrize("factor", [1.06, 0.94])
    def test_a_clock_that_is_off(self, device, factor):
        report = check(device, Stopwatch(device), Stopwatch(device, "off", factor))
        found = {(one.first, one.second, one.length_us) for one in report.disagreements}
        assert found == {(first, "off", u) for u in LENGTHS_US for first in (DEVICE_CLOCK, "watch")}
        assert not report.passed
        assert report.disagreements[0].share == pytest.approx(0.06)

    def test_overhead_counts_only_where_it_should_not_be_seen(self, device):
        """2 µs are 20 % of the shortest work, which says nothing, and 2 % of the next."""
        assert check(device, Stopwatch(device, factor=1.04), Stopwatch(device, "b")).passed
        assert check(device, Stopwatch(device, plus=2.0)).passed
        assert check(device, Stopwatch(device, plus=20.0)).passed  # tells only the longest apart

    def test_work_that_is_not_known_well_is_not_judged(self):
        lengths = tuple(KnownLength(u, u + 2.0) for u in LENGTHS_US)
        report = TimerReport("t", "1", lengths=lengths)
        assert [one.length_us for one in disagreements([report])] == [10.0]
        assert disagreements([report], grain_us=1.0) == []


class TestFailures:
    def test_one_does_not_keep_the_others_from_being_checked(self, device):
        report = check(device, Failing(device, "bad"), Odd(device, "odd"), Stopwatch(device))
        errors = {one.name: one.error for one in report.timers}
        assert errors["bad"] == "the clock has stopped"
        assert str(errors["odd"]).startswith("KeyError: ")
        assert errors["watch"] is None
        assert not report.passed

    def test_a_device_that_has_gone_ends_it(self, device):
        device.gone = True
        with pytest.raises(TimingError, match="cuda:0 stopped responding") as caught:
            check(device, Failing(device, "bad"), Stopwatch(device))
        assert "CUDA error: device lost" in caught.value.message
        assert "and more" not in caught.value.message
        assert "nvidia-smi" in str(caught.value.hint)

    def test_ctrl_c_comes_through(self, device, monkeypatch):
        def interrupted(*given, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(Stopwatch, "time_call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            check(device, Stopwatch(device))


def test_smallest_difference_examples():
    assert smallest_difference([3.0, 1.0, 1.5, 1.0]) == 0.5
    assert smallest_difference([2.0, 2.0]) is None
    assert smallest_difference([2.0]) is None
    assert smallest_difference([100.0, 100.0 + 1e-12]) is None
