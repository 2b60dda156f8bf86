"""Having CUPTI record; against a stand-in for NVIDIA's package."""

from __future__ import annotations

from pathlib import Path

import pytest

from fib_timing_cupti.recorder import Recorder
from fib_timing_cupti.span import Activity
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
    def test_making_one_calls_nothing(self, recorder, device):
        assert device.log == []

    def test_it_subscribes_before_anything_else(self, started, device):
        names = [name for name, *_ in device.log]
        assert names[:2] == ["subscribe", "activity_register_callbacks"]
        assert device.enabled == {1, 2, 10, 22}

    def test_only_once(self, started, device):
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

    def test_the_other_one_may_go(self, recorder, cupti, device):
        other = cupti.subscribe(print, None)
        with pytest.raises(TimingError):
            recorder.start()
        cupti.unsubscribe(other)
        recorder.start()
        assert device.enabled

    @pytest.mark.parametrize("function", ["activity_register_callbacks", "activity_enable"])
    def test_what_cannot_be_started_is_taken_back(self, recorder, device, function):
        device.refuses[function] = 999
        with pytest.raises(TimingError, match=r"ERROR_UNKNOWN \(999\)") as caught:
            recorder.start()
        assert "libcupti" in caught.value.hint
        assert device.subscriber is None
        device.refuses.clear()
        recorder.start()
        assert device.subscriber

    def test_a_driver_that_lets_only_administrators(self, recorder, device):
        device.refuses["activity_enable"] = 35
        with pytest.raises(TimingError, match="NVreg_RestrictProfilingToAdminUsers=0"):
            recorder.start()

    def test_a_library_that_is_not_found(self, recorder, device):
        device.refuses["subscribe"] = RuntimeError("CUDA driver is not found (libcuda.so.1)")
        with pytest.raises(TimingError, match="cannot subscribe to CUPTI: CUDA driver is not"):
            recorder.start()


class TestRecords:
    def test_a_kernel(self, started, device):
        device.run(1000, 2500, name="saxpy", correlation_id=42, device_id=3, stream_id=17)
        assert started.collect() == [Activity("kernel", "saxpy", 1000, 2500, 42, 3, 17)]

    @pytest.mark.parametrize(
        ("kind", "what"), [("MEMCPY", "memcpy"), ("MEMCPY2", "memcpy"), ("MEMSET", "memset")]
    )
    def test_copies_and_fills_have_no_name(self, started, cupti, device, kind, what):
        device.run(10, 20, cupti.ActivityKind[kind], correlation_id=1)
        assert started.collect() == [Activity(what, "", 10, 20, 1, 0, 7)]

    def test_a_kernel_that_launches_others_ends_with_them(self, started, device):
        device.run(1000, 2000, completed=9000)
        assert started.collect()[0].end == 9000

    def test_a_kernel_whose_completion_is_unknown(self, started, device):
        device.run(1000, 2000, completed=0)
        assert started.collect()[0].end == 2000

    def test_records_can_be_freed_afterwards(self, started, device):
        device.run(1, 2, name="first")
        device.deliver()  # the stand-in's records raise when they are read after this
        device.run(3, 4, name="second")
        assert [each.name for each in started.collect()] == ["first", "second"]

    def test_discarding_forgets_what_is_still_in_a_buffer(self, started, device):
        device.run(1, 2)
        started.discard()
        assert started.collect() == []

    def test_collecting_forgets(self, started, device):
        device.run(1, 2)
        assert len(started.collect()) == 1
        assert started.collect() == []

    def test_what_is_discarded_is_not_read(self, started, device, monkeypatch):
        started.collect()
        device.run(1, 2)
        device.deliver()
        device.run(3, 4)
        with monkeypatch.context() as patch:
            patch.setattr("fib_timing_cupti.recorder._read", lambda *_: pytest.fail("read"))
            started.discard()
        device.run(5, 6)
        assert [each.start for each in started.collect()] == [5]

    def test_a_kernel_of_a_graph(self, started, device):
        device.run(1, 2, graph_id=7)
        assert started.collect()[0].graph == 7

    def test_incomplete_records_are_fetched_if_there_are_no_others(self, started, device):
        device.incomplete = True
        device.run(1, 2)
        assert len(started.collect()) == 1

    def test_more_than_a_buffer_holds(self, started, device, monkeypatch):
        monkeypatch.setattr("fib_timing_cupti.recorder._BUFFER_BYTES", 100 * 208)
        count = 305
        for index in range(count):
            device.run(index + 1, index + 2)
        found = started.collect()
        assert [each.start for each in found] == list(range(1, count + 1))

    def test_a_flush_that_fails(self, started, device):
        device.refuses["activity_flush_all"] = 999
        for function in (started.discard, started.collect):
            with pytest.raises(TimingError, match="cannot hand over records"):
                function()


class TestStop:
    def test_it_leaves_nothing_behind(self, started, device):
        started.stop()
        assert device.enabled == set()
        assert device.subscriber is None

    def test_twice_or_without_a_start(self, recorder, device):
        recorder.stop()
        recorder.start()
        recorder.stop()
        before = list(device.log)
        recorder.stop()
        assert device.log == before

    def test_buffers_are_emptied_while_there_is_a_callback(self, started, device):
        device.run(1, 2)
        started.stop()
        assert device.buffer == []

    def test_it_raises_nothing(self, started, device):
        device.refuses["activity_disable"] = 999
        started.stop()

    def test_it_can_be_started_again(self, started, device):
        started.stop()
        started.start()
        device.run(1, 2)
        assert len(started.collect()) == 1

    def test_a_process_that_ends_stops_it(self, in_child):
        output = in_child(
            f"import sys; sys.path.insert(0, {str(STANDIN)!r})\n"
            "from cupti import cupti\n"
            "cupti.unsubscribe = lambda subscriber: print('unsubscribed')\n"
            "from fib_timing_cupti.recorder import Recorder\n"
            "recorder = Recorder()\n"
            "recorder.start()\n"
            "print('ends')\n"
        )
        assert output == "ends\nunsubscribed\n"
