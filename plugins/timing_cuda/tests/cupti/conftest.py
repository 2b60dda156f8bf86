"""A stand-in for cupti-python, and one for a GPU that is timed by events."""

import importlib
import sys
import time
from pathlib import Path

import pytest

from fib_tests.scaled_add import pytest_collection_modifyitems

STANDIN = Path(__file__).parent / "standin"


def forget_cupti():
    for name in [name for name in sys.modules if name.partition(".")[0] == "cupti"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def cupti(monkeypatch):
    """A new stand-in for ``cupti.cupti``."""
    monkeypatch.syspath_prepend(str(STANDIN))
    forget_cupti()
    yield importlib.import_module("cupti.cupti")
    forget_cupti()


@pytest.fixture
def device(cupti):
    """The stand-in's device."""
    return cupti.device


class Events:
    """Takes the place of core's timer of CUDA events.

    Holds the device, calls the function, and says how long the device worked after that. What the
    host does meanwhile costs nothing, as on a device that is held.
    """

    hold = "hold"
    overhead_ms = 0.003
    removed_ms = 0.0

    def __init__(self, device):
        self.device = device
        self.says_ms = None
        self.notes = []
        self.prepared = 0
        self.released = time.perf_counter_ns()

    def prepare(self, device):
        """Do what is done before the first call: it holds the device, too."""
        assert device.startswith("cuda")
        self.prepared += 1
        now = max(time.perf_counter_ns(), self.device.last_end + 1000)
        self.device.run(now, now + 1000, name="hold")
        self.device.run(now + 2000, now + 6000, name="spin")

    def time_call(self, function, arguments, *, device):
        assert device.startswith("cuda")
        self.released = max(time.perf_counter_ns(), self.device.last_end + 1000)
        if self.hold:
            self.device.run(self.released - 20_000, self.released, name=self.hold)
        result = function(*arguments)
        worked = max(0, self.device.last_end - self.released) / 1e6
        return (worked if self.says_ms is None else self.says_ms) + self.overhead_ms, result

    def synchronize(self, device):
        assert device.startswith("cuda")
        self.device.log.append(("synchronize",))
        self.device.buffer += self.device.held_back
        self.device.held_back = []

    def take_notes(self):
        notes, self.notes = self.notes, []
        return notes

    def work(self, milliseconds):
        """Keep the device busy, and wait for it."""
        begun = time.perf_counter_ns()
        time.sleep(milliseconds / 1e3)
        self.device.run(begun, time.perf_counter_ns())

    def run(self, *parts):
        """Do things from and to these microseconds after the device was let go."""
        for start, end in parts:
            self.device.run(self.released + int(start * 1000), self.released + int(end * 1000))


@pytest.fixture
def events(monkeypatch, device):
    """What times calls by events, for timers that are made in a test."""
    timer = importlib.import_module("fib_timing_cuda.cupti")
    stand_in = Events(device)
    monkeypatch.setattr(timer, "CudaEventTimer", lambda: stand_in)
    monkeypatch.setattr("torch.cuda.synchronize", stand_in.synchronize)
    return stand_in


@pytest.fixture
def timer(events):
    """A timer on the stand-ins; ended after the test."""
    from fib_timing_cuda.cupti import CuptiTimer

    made = CuptiTimer()
    yield made
    made._recorder.stop()


@pytest.fixture
def one_subscriber(monkeypatch):
    """End the recording of one timer when another starts: a process has one subscriber."""
    from fib_timing_cuda.cupti import Recorder

    made = []
    start = Recorder.start

    def keeping(self):
        for other in made:
            if other is not self:
                other.stop()
        made.append(self)
        start(self)

    monkeypatch.setattr(Recorder, "start", keeping)
    yield
    for recorder in made:
        recorder.stop()
