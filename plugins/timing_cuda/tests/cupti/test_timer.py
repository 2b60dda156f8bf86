"""Latencies from records, held against the time by events."""

import pytest

from flashinfer_bench.errors import TimingError

approx = pytest.approx

DEVICE = "cuda:0"


def latency(timer, function):
    return timer.time_call(function, (), device=DEVICE)[0]


class TestLatency:
    def test_nor_does_what_went_on_before(self, timer, events):
        events.run((0, 500))
        timer.time_call(events.work, (0.1,), device=DEVICE)
        events.run((-900, -800))
        assert latency(timer, lambda: events.run((0, 2))) == approx(0.002)

    def test_nor_does_what_was_still_going_on(self, timer, events):
        latency(timer, lambda: None)
        events.device.incomplete = True  # until it is waited for
        events.device.run(events.released, events.released + 900_000, name="hold")
        events.device.incomplete = False
        assert latency(timer, lambda: events.run((0, 2))) == approx(0.002)

    def test_a_kernel_that_waited_for_the_device(self, timer, events):
        assert latency(timer, lambda: events.run((-15, 40))) == approx(0.04)

    def test_what_is_done_once_leaves_no_records(self, timer, events):
        """Else the device would seem to be held by a kernel of the preparation."""
        assert latency(timer, lambda: events.run((0, 2))) == approx(0.002)
        assert events.prepared == 1

    def test_no_sample_is_shorter_than_those_of_events(self, timer, events):
        assert latency(timer, lambda: events.run((0, 0.2))) == approx(0.0005)


class TestHeldAgainstEvents:
    def test_what_they_take_out_for_themselves_is_a_part_of_that(self, timer, events):
        events.removed_ms = 0.0025
        events.says_ms, events.overhead_ms = 0.0022, 0.0
        assert latency(timer, lambda: events.run((0, 2))) == approx(0.002)
        assert timer.take_notes() == []
        events.says_ms = 0.0048
        assert latency(timer, lambda: events.run((0, 2))) == approx(0.0048)
        (note,) = timer.take_notes()
        assert "by CUDA events" in note

    @pytest.mark.parametrize(("graph", "given"), [(3, 0.02), (0, 0.028)])
    def test_a_graph_has_to_be_started(self, timer, events, graph, given):
        def replay():
            begun = events.released + 6000
            events.device.run(begun, begun + 20_000, graph_id=graph)

        events.says_ms, events.overhead_ms = 0.028, 0.0
        assert latency(timer, replay) == approx(given)
        assert len(timer.take_notes()) == (graph == 0)

    def test_no_more_than_that_is_gained_by_hiding_work(self, timer, events):
        def function(microseconds):
            events.device.enabled.discard(10)
            events.run((0, microseconds))
            events.device.enabled.add(10)
            events.run((microseconds, microseconds + 1))

        events.overhead_ms = 0.0
        for microseconds in (1, 3, 4.5, 6, 30):
            sample, _ = timer.time_call(function, (microseconds,), device=DEVICE)
            assert sample * 1e3 >= microseconds + 1 - 5

    def test_work_that_is_not_recorded_counts_nevertheless(self, timer, events):
        def function():
            events.device.enabled.clear()
            events.run((0, 400))
            events.device.enabled.add(10)
            events.run((400, 402))

        assert latency(timer, function) >= 0.4
        (note,) = timer.take_notes()
        assert "longer than from the first recorded activity" in note

    def test_switched_off_while_it_is_called(self, timer, events):
        def function():
            events.device.enabled.clear()
            events.run((0, 50))

        events.overhead_ms = 0.0
        assert latency(timer, function) == approx(0.05)
        assert "no kernel, copy or fill was recorded" in timer.take_notes()[0]

    def test_a_call_that_takes_long_and_leaves_no_record(self, timer, events):
        events.says_ms = 1.5
        with pytest.raises(TimingError, match="no kernel, copy or fill") as caught:
            latency(timer, lambda: None)
        assert "took 1503 µs by CUDA events" in str(caught.value)
        assert "--timer cuda_event" in caught.value.hint


class TestNotes:
    def test_a_call_that_does_nothing_on_the_device(self, timer, events):
        assert latency(timer, lambda: None) == approx(0.003)
        (note,) = timer.take_notes()
        assert note.startswith("no kernel, copy or fill was recorded")
        assert timer.take_notes() == []

    def test_a_device_that_is_idle_in_between(self, timer, events):
        assert latency(timer, lambda: events.run((0, 30), (70, 100))) == approx(0.1)
        latency(timer, lambda: events.run((0, 40), (60, 100)))
        events.notes.append("the device could not be filled")
        first, note = timer.take_notes()
        assert first == "the device could not be filled"
        assert "idle for over a tenth of the time" in note
        assert not any(character.isdigit() for character in note)
        assert timer.take_notes() == []
