"""CUDA graphs and do_bench, on stand-ins: what is done in which order. GPUs test the numbers."""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
import warnings

import pytest

from flashinfer_bench.bench.timing import cuda_graph, do_bench, hold, probes
from flashinfer_bench.bench.timing.cuda_graph import CudaGraphTimer
from flashinfer_bench.bench.timing.do_bench import DoBenchTimer
from flashinfer_bench.errors import TimingError
from flashinfer_bench.plugins import Availability

pytestmark = pytest.mark.torch


class Cuda:
    """Stands for ``torch.cuda``; tells what is done with it, in order."""

    def __init__(self) -> None:
        self.log: list[object] = []
        self.later = 0.25
        self.fails_at: str | None = None
        self.empty = False
        cuda = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing

            def record(self, stream):
                cuda.log.append(("record", stream.name))

            def elapsed_time(self, stop):
                return cuda.later

        class Graph:
            def capture_begin(self):
                cuda.log.append("begin")

            def capture_end(self):
                cuda.log.append("end")
                if cuda.fails_at == "end":
                    raise RuntimeError("CUDA error: operation failed due to a previous error\nmore")
                if cuda.empty:
                    warnings.warn("The CUDA Graph is empty.", stacklevel=1)

            def replay(self):
                cuda.log.append("replay")

        self.Event, self.CUDAGraph = Event, Graph

    def Stream(self, device):
        self.log.append(("new stream", device))
        return types.SimpleNamespace(name="side")

    @contextlib.contextmanager
    def stream(self, stream):
        self.log.append(("on", stream.name))
        yield
        self.log.append(("off", stream.name))

    def current_stream(self, device):
        return types.SimpleNamespace(name="main", cuda_stream=7)

    def device(self, device):
        return contextlib.nullcontext(self.log.append(device))

    def synchronize(self):
        self.log.append("synchronize")

    def _sleep(self, cycles):
        self.log.append("sleep")

    def get_device_properties(self, device):
        raise AssertionError("nothing is to be known of the device")


class KnownCost:
    """Takes the place of `PairCost`, which has tests of its own; pairs cost nothing."""

    def __init__(self) -> None:
        self.known, self.removed_ms = True, 0.0
        self.chosen: list[tuple[str, str]] = []

    def choose(self, device, stream, hold):
        self.chosen.append((device, stream.name))

    def take_out(self, sample):
        return sample - self.removed_ms


@pytest.fixture
def cuda(monkeypatch):
    import torch

    fake = Cuda()
    monkeypatch.setattr(torch, "cuda", fake)
    monkeypatch.setattr(hold, "cuda_driver", lambda: None)
    monkeypatch.setattr(cuda_graph, "PairCost", KnownCost)
    return fake


class TestCudaGraph:
    @pytest.fixture
    def timer(self, cuda):
        timer = CudaGraphTimer()
        assert cuda.log == [], "making it touches the device"
        return timer

    def call(self, timer, function, *arguments):
        return timer.time_call(function, arguments, device="cuda:1")

    def test_the_call_is_captured_and_its_replay_is_timed(self, timer, cuda):
        found = self.call(timer, lambda *given: cuda.log.append("call") or given, 1, "two")
        assert found == (0.25, (1, "two"))
        assert cuda.log == [
            "cuda:1",
            ("new stream", "cuda:1"),
            "synchronize",
            *(("on", "side"), "begin", "call", "end", ("off", "side")),
            *("sleep", ("record", "main"), "replay", ("record", "main")),
            "synchronize",
        ]

    def test_the_function_is_called_once_and_the_graph_replayed_once(self, timer, cuda):
        calls = []
        for index in range(3):
            self.call(timer, calls.append, index)
        assert calls == [0, 1, 2]
        assert cuda.log.count("replay") == 3

    def test_each_device_has_one_stream(self, timer, cuda):
        for device in ("cuda:0", "cuda:1", "cuda:0"):
            timer.time_call(lambda: None, (), device=device)
        made = [entry for entry in cuda.log if entry[0] == "new stream"]
        assert made == [("new stream", "cuda:0"), ("new stream", "cuda:1")]

    def test_what_the_function_raises_goes_on_after_the_capture_has_ended(self, timer, cuda):
        with pytest.raises(ZeroDivisionError):
            self.call(timer, lambda: 1 / 0)
        assert cuda.log[-2:] == ["begin", "end"]
        assert "replay" not in cuda.log

    def test_an_empty_graph_does_not_stand_in_the_way_of_what_the_function_raises(
        self, timer, cuda
    ):
        cuda.empty = True
        with pytest.raises(ZeroDivisionError):
            self.call(timer, lambda: 1 / 0)

    @pytest.mark.parametrize(
        "text",
        [
            "CUDA error: operation not permitted when stream is capturing",
            "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless pinned",
        ],
    )
    def test_a_call_that_cannot_be_captured_is_said_to_be_so(self, timer, cuda, text):
        def waits():
            raise RuntimeError(f"{text}\nSearch for it in the manual.")

        with pytest.raises(TimingError, match="cannot be captured as a CUDA graph") as caught:
            self.call(timer, waits)
        assert text in caught.value.message
        assert "manual" not in caught.value.message
        assert "--timer cuda_event" in caught.value.hint
        assert isinstance(caught.value.__cause__, RuntimeError)

    def test_a_capture_that_is_found_to_be_broken_at_its_end(self, timer, cuda):
        cuda.fails_at = "end"
        with pytest.raises(TimingError, match="failed due to a previous error"):
            self.call(timer, lambda: None)
        with pytest.raises(TimingError, match="was not allowed"):
            self.call(timer, self._raise_something)
        assert "replay" not in cuda.log

    @staticmethod
    def _raise_something():
        raise RuntimeError("was not allowed")

    def test_nothing_captured_is_noted_and_no_warning(self, timer, cuda):
        cuda.empty = True
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.call(timer, lambda: None)
        assert any("nothing was captured" in note for note in timer.take_notes())
        assert timer.take_notes() == []

    def test_a_device_that_is_not_filled_is_noted(self, timer):
        self.call(timer, lambda: None)
        assert timer.take_notes() == [cuda_graph._NOT_FILLED]

    def test_what_a_pair_of_events_costs_is_taken_out(self, timer):
        timer._cost.removed_ms = 0.002
        assert self.call(timer, lambda: None)[0] == pytest.approx(0.248)
        assert timer.removed_ms == 0.002
        assert timer._cost.chosen == [("cuda:1", "main")]

    def test_where_that_is_not_known_a_note_says_so(self, timer):
        timer._cost.known = False
        self.call(timer, lambda: None)
        assert cuda_graph.NOT_REMOVED in timer.take_notes()

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1])
    def test_times_that_make_no_sense(self, timer, cuda, value):
        cuda.later = value
        with pytest.raises(TimingError, match="reported a latency of"):
            self.call(timer, lambda: None)

    def test_the_functions_are_those_from_before(self, timer, cuda, monkeypatch):
        import torch

        monkeypatch.setattr(cuda.Event, "elapsed_time", lambda self, stop: 0.0)
        monkeypatch.setattr(torch, "cuda", None)
        assert self.call(timer, lambda: None) == (0.25, None)


class TestDoBench:
    @pytest.fixture
    def bench(self, monkeypatch, cuda):
        """Stands for ``triton.testing``; calls three times."""
        module = types.ModuleType("triton.testing")
        module.asked = []

        def fake(function, **options):
            module.asked.append(options)
            for _ in range(3):
                function()
            return module.latency

        module.latency, module.do_bench = 0.5, fake
        monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
        monkeypatch.setitem(sys.modules, "triton.testing", module)
        return module

    def test_many_calls_and_what_the_last_returned(self, bench, cuda):
        calls = []

        def function(*given):
            calls.append(given)
            return len(calls)

        timer = DoBenchTimer()
        assert timer.time_call(function, (1, "two"), device="cuda:1") == (0.5, 3)
        assert calls == [(1, "two")] * 3
        assert cuda.log == ["cuda:1", "synchronize"]
        assert bench.asked[0]["return_mode"] == "median"

    def test_it_says_that_it_repeats_and_that_caches_are_cold(self):
        assert (DoBenchTimer.repeats, DoBenchTimer.caches) == (True, ("cold",))

    def test_making_it_does_not_import_triton(self, cuda, monkeypatch):
        for name in ("triton", "triton.testing"):
            monkeypatch.setitem(sys.modules, name, None)
        timer = DoBenchTimer()
        with pytest.raises(TimingError, match="do_bench cannot be imported") as caught:
            timer.time_call(lambda: None, (), device="cuda:0")
        assert caught.value.hint == "install triton"

    def test_what_the_function_raises_goes_on(self, bench):
        with pytest.raises(ZeroDivisionError):
            DoBenchTimer().time_call(lambda: 1 / 0, (), device="cuda:0")

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
    def test_times_that_make_no_sense(self, bench, value):
        bench.latency = value
        with pytest.raises(TimingError, match="do_bench reported"):
            DoBenchTimer().time_call(lambda: None, (), device="cuda:0")

    def test_the_real_one_takes_what_it_is_given(self):
        """Triton's function has the options that are used."""
        testing = pytest.importorskip("triton.testing", reason="triton is not installed")
        inspect.signature(testing.do_bench).bind(
            print, warmup=do_bench._WARMUP_MS, rep=do_bench._REPEAT_MS, return_mode="median"
        )


class TestProbe:
    def test_triton_is_needed_too(self, monkeypatch):
        monkeypatch.setattr(probes, "cuda_event", lambda: Availability(True, "CUDA 13"))
        monkeypatch.setattr(probes.importlib.util, "find_spec", lambda name: None)
        answer = probes.do_bench()
        assert (bool(answer), answer.remedy) == (False, "pip install triton")
        monkeypatch.setattr(probes.importlib.util, "find_spec", lambda name: object())
        assert probes.do_bench()

    def test_without_a_device_that_is_the_reason(self, monkeypatch):
        no = Availability(False, "no NVIDIA device is found")
        monkeypatch.setattr(probes, "cuda_event", lambda: no)
        assert probes.do_bench() is no
