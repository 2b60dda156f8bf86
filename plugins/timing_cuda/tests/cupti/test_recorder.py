"""Having CUPTI record; against a stand-in for NVIDIA's package."""

from pathlib import Path

import pytest

from fib_tests.scaled_add import run_in_child
from fib_timing_cuda.cupti import Activity, Recorder
from flashinfer_bench.errors import TimingError

STANDIN = Path(__file__).parent / "standin"


@pytest.fixture
def recorder(device):
    made = Recorder()
    yield made
    made.stop()


@pytest.fixture
def started(recorder):
    recorder.start()
    return recorder


class TestStart:
    def test_it_subscribes_before_anything_else(self, started, device):
        names = [name for name, *_ in device.log]
        assert names[:2] == ["subscribe", "activity_register_callbacks"]
        assert device.enabled == {1, 2, 10, 22}
        before = list(device.log)
        started.start()
        assert device.log == before

    def test_functions_were_looked_up_before(self, recorder, cupti, monkeypatch):
        for name in ("subscribe", "activity_enable", "activity_flush_all"):
            monkeypatch.setattr(cupti, name, lambda *_: pytest.fail("not the one looked up"))
        recorder.start()
        recorder.discard()
        assert recorder.collect() == []

    def test_beside_another_subscriber(self, recorder, cupti, device):
        cupti.subscribe(print, None)
        with pytest.raises(TimingError, match="MULTIPLE_SUBSCRIBERS") as caught:
            recorder.start()
        assert "nsys, ncu, torch.profiler" in caught.value.hint
        assert "--timer cuda_event" in caught.value.hint
        assert device.callbacks is None
        assert device.enabled == set()
        device.subscriber = None
        recorder.start()
        assert device.enabled

    @pytest.mark.parametrize(
        ("function", "error", "told"),
        [
            ("subscribe", RuntimeError("CUDA driver is not found"), "libcupti"),
            ("activity_register_callbacks", 999, "libcupti"),
            ("activity_enable", 999, "libcupti"),
            ("activity_enable", 35, "NVreg_RestrictProfilingToAdminUsers=0"),
        ],
    )
    def test_what_cannot_be_started_is_taken_back(self, recorder, device, function, error, told):
        device.refuses[function] = error
        with pytest.raises(TimingError) as caught:
            recorder.start()
        assert told in caught.value.hint
        assert device.subscriber is None
        device.refuses.clear()
        recorder.start()
        assert device.subscriber


class TestRecords:
    def test_a_kernel(self, started, device):
        device.run(1000, 2500, name="saxpy", correlation_id=42, graph_id=7)
        assert started.collect() == [Activity("kernel", "saxpy", 1000, 2500, 42, 7)]
        assert started.collect() == []

    def test_incomplete_records_are_fetched_if_there_are_no_others(self, started, device):
        device.incomplete = True
        device.run(1, 2)
        assert len(started.collect()) == 1

    def test_a_flush_that_fails(self, started, device):
        device.refuses["activity_flush_all"] = 999
        for function in (started.discard, started.collect):
            with pytest.raises(TimingError, match="cannot hand over records"):
                function()


class TestStop:
    def test_it_leaves_nothing_behind_and_can_be_started_again(self, recorder, device):
        recorder.stop()
        for _ in range(2):
            recorder.start()
            device.run(1, 2)
            assert len(recorder.collect()) == 1
            device.run(3, 4)
            recorder.stop()
            assert (device.buffer, device.enabled, device.subscriber) == ([], set(), None)
        before = list(device.log)
        recorder.stop()
        assert device.log == before

    def test_a_process_that_ends_stops_it(self):
        done = run_in_child(
            f"import sys; sys.path.insert(0, {str(STANDIN)!r})\n"
            "from cupti import cupti\n"
            "cupti.unsubscribe = lambda subscriber: print('unsubscribed')\n"
            "from fib_timing_cuda.cupti import Recorder\n"
            "recorder = Recorder()\n"
            "recorder.start()\n"
            "print('ends')\n"
        )
        assert done.stdout == "ends\nunsubscribed\n"
