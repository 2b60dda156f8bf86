"""Timers with one defect each: the conformance kit is checked against them."""

import gc
import time
from unittest import mock

from flashinfer_bench.bench.timing.wall import WallClockTimer


class Good(WallClockTimer):
    name = "toy"


class WantsDevice(Good):
    def __init__(self, device):
        super().__init__()


class Refuses(Good):
    def time_call(self, function, arguments, *, device):
        raise RuntimeError("no clock")


class Changed(Good):
    """Changes the latency."""

    def time_call(self, function, arguments, *, device):
        sample, result = super().time_call(function, arguments, device=device)
        return self.changed(sample), result


class Seconds(Changed):
    def changed(self, sample):
        return sample / 1e3


class Naps(Good):
    """Knows how long the function sleeps, however busy the machine is."""

    def time_call(self, function, arguments, *, device):
        naps = []
        with mock.patch("time.sleep", lambda seconds: self.nap(naps, seconds)):
            sample, result = super().time_call(function, arguments, device=device)
        return self.told(sample, 1e3 * sum(naps)), result


class Inverse(Naps):
    """Measures how fast, not how long."""

    def nap(self, naps, seconds, sleep=time.sleep):
        naps.append(seconds)
        sleep(seconds)

    def told(self, sample, slept):
        return 40.0 * 40.0 / slept if slept else sample


class DoesNotWait(Naps):
    """As on a device that goes on when the call has returned."""

    def nap(self, naps, seconds):
        naps.append(seconds)

    def told(self, sample, slept):
        return sample + slept


class Repeats(Good):
    """Right where the record says so, too."""

    repeats = True

    def time_call(self, function, arguments, *, device):
        function(*arguments)
        function(*arguments)
        return super().time_call(function, arguments, device=device)


class RepeatsWithOthers(Repeats):
    """Calls with other arguments than those given."""

    def time_call(self, function, arguments, *, device):
        if arguments:
            function(*arguments[:-1])
        return super().time_call(function, arguments, device=device)


class Careless(Good):
    """Measures what it should; whatever else can be wrong is wrong."""

    name = "plaything"
    resolution_ms = 1.0

    def time_call(self, function, arguments, *, device):
        gc.disable()
        try:
            function(*arguments)
            start = time.perf_counter_ns()
            result = function(*arguments)
            return (time.perf_counter_ns() - start) / 1e6, result
        except Exception:  # noqa: BLE001 - one of its defects
            return 1.0, None

    def take_notes(self):
        return ["the same remark each time"]
