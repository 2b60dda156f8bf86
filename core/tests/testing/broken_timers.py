"""Timers with one defect each: the conformance kit is checked against them."""

from __future__ import annotations

import gc
import threading
import time

from flashinfer_bench.bench.timing.wall import WallClockTimer


class Good(WallClockTimer):
    name = "toy"


class Plain:
    name, version = "toy", "1"

    def measure(self, function, arguments, *, warmup, iterations, device):
        return Good().measure(
            function, arguments, warmup=warmup, iterations=iterations, device=device
        )


class WantsDevice(Good):
    def __init__(self, device):
        super().__init__()


class Nameless(Good):
    name = ""


class Versionless(Good):
    version = ""


class OtherName(Good):
    name = "plaything"


class Changed(Good):
    """Changes the samples."""

    def measure(self, *args, **options):
        return self.changed(super().measure(*args, **options))


class Average(Changed):
    def changed(self, samples):
        return [sum(samples) / len(samples)]


class Tuple(Changed):
    def changed(self, samples):
        return tuple(samples)


class Negative(Changed):
    def changed(self, samples):
        return [-1.0, *samples[1:]] if len(samples) == 3 else samples


class Text(Changed):
    def changed(self, samples):
        return [*map(str, samples)] if len(samples) == 3 else samples


class Seconds(Changed):
    def changed(self, samples):
        return [sample / 1e3 for sample in samples]


class Microseconds(Changed):
    def changed(self, samples):
        return [sample * 1e3 for sample in samples]


class Inverse(Changed):
    """Measures how fast, not how long."""

    def changed(self, samples):
        return [40.0 * 40.0 / sample for sample in samples]


class Refuses(Good):
    def measure(self, *args, **options):
        raise RuntimeError("no clock")


class Loop(Good):
    """A loop of its own, for others to break."""

    shift = 0

    def __init__(self):
        super().__init__()
        self.clock = time.perf_counter

    def measure(self, function, arguments, *, warmup, iterations, device):
        samples = [
            self.one(function, arguments, index + self.shift)
            for index in range(warmup + iterations)
        ]
        return self.chosen(samples, warmup)

    def chosen(self, samples, warmup):
        return samples[warmup:]

    def one(self, function, arguments, index):
        given = arguments(index)
        start = self.clock()
        function(*given)
        return (self.clock() - start) * 1e3


class CountsWarmup(Loop):
    def chosen(self, samples, warmup):
        return samples[: len(samples) - warmup]


class CountsFromOne(Loop):
    shift = 1


class SameArguments(Loop):
    def one(self, function, arguments, index):
        if index == 0:
            self.given = arguments(index)
        arguments(index) if index else None
        return super().one(function, lambda index: self.given, index)


class PassesTuple(Loop):
    def one(self, function, arguments, index):
        given = arguments(index)
        return super().one(lambda: function(given) if given else function(), lambda index: (), 0)


class TimesArguments(Loop):
    def one(self, function, arguments, index):
        start = self.clock()
        function(*arguments(index))
        return (self.clock() - start) * 1e3


class Wraps(Loop):
    def one(self, function, arguments, index):
        try:
            return super().one(function, arguments, index)
        except Exception as error:
            raise RuntimeError("the call failed") from error


class Swallows(Loop):
    def one(self, function, arguments, index):
        try:
            return super().one(function, arguments, index)
        except Exception:  # noqa: BLE001 - the defect
            return 1.0


class LeavesCollectorOff(Good):
    def measure(self, *args, **options):
        samples = super().measure(*args, **options)
        gc.disable()
        return samples


class TurnsCollectorOn(Good):
    def measure(self, *args, **options):
        try:
            return super().measure(*args, **options)
        finally:
            gc.enable()


class Accumulates(Loop):
    def __init__(self):
        super().__init__()
        self.kept = []

    def chosen(self, samples, warmup):
        self.kept += samples[warmup:]
        # Tests that measure once see nothing of it; neither do those that want the last few.
        return list(self.kept)


class LooksUpLate(Loop):
    def one(self, function, arguments, index):
        given = arguments(index)
        start = time.perf_counter_ns()
        function(*given)
        return (time.perf_counter_ns() - start) / 1e6


class Call(Loop):
    """Right but for a single call, which `Loop` does not use."""

    def __init__(self):
        super().__init__()
        self.good = Good()

    def single(self, function, arguments):
        return self.good.time_call(function, arguments, device="cpu")


class OnlyLatency(Call):
    def time_call(self, function, arguments, *, device):
        return self.single(function, arguments)[0]


class OtherResult(Call):
    def time_call(self, function, arguments, *, device):
        return self.single(function, arguments)[0], None


class CallRefuses(Call):
    def time_call(self, function, arguments, *, device):
        raise RuntimeError("no clock")


class CallInSeconds(Call):
    def time_call(self, function, arguments, *, device):
        sample, result = self.single(function, arguments)
        return sample / 1e3, result


class CallWarmsUp(Call):
    def time_call(self, function, arguments, *, device):
        function(*arguments)
        return self.single(function, arguments)


class CallDoesNotWait(Call):
    """As on a device that goes on when the call has returned."""

    def time_call(self, function, arguments, *, device):
        told = []
        thread = threading.Thread(target=self.run, args=(function, arguments, told))
        thread.start()
        thread.join(0.03)
        if not told:
            return 40.0, None
        if isinstance(told[0], Exception):
            raise told[0]
        return told[0]

    def run(self, function, arguments, told):
        try:
            told.append(self.single(function, arguments))
        except Exception as error:  # noqa: BLE001 - raised again by the other thread
            told.append(error)


class CallWraps(Call):
    def time_call(self, function, arguments, *, device):
        try:
            return self.single(function, arguments)
        except Exception as error:
            raise RuntimeError("the call failed") from error


class CallTurnsCollectorOff(Call):
    def time_call(self, function, arguments, *, device):
        gc.disable()
        return self.single(function, arguments)


class CallLooksUpLate(Call):
    def time_call(self, function, arguments, *, device):
        start = time.perf_counter_ns()
        result = function(*arguments)
        return (time.perf_counter_ns() - start) / 1e6, result


class KeepsNotes(Call):
    def take_notes(self):
        return ["the same remark each time"]


class LongNotes(Call):
    def take_notes(self):
        return ["x" * 300] * 20 if self.notes.pop() else []

    def __init__(self):
        super().__init__()
        self.notes = [False, True]


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


class OnlyCold(Good):
    caches = ("cold",)


class Coarse(Good):
    resolution_ms = 1.0
