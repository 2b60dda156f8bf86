"""The timer keeps to the contract of all timers; shown on a device that is not there."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fib_timing_cupti
from flashinfer_bench.testing import TimerCase, TimerConformance
from flashinfer_bench.testing.records import RecordConformance

(RECORD,) = fib_timing_cupti.fib_register_timers()


class TestCuptiTimer(TimerConformance):
    """All but the probe: that there is a GPU is pretended."""

    @pytest.fixture
    def case(self, events) -> TimerCase:
        return TimerCase(record=replace(RECORD, probe=None), device="cuda:0", work=events.work)

    @pytest.fixture(autouse=True)
    def _stopped(self, monkeypatch, cupti):
        """Each test makes a timer; two in a process would be one too many."""
        from fib_timing_cupti.recorder import Recorder

        made = []
        start = Recorder.start

        def keeping(self) -> None:
            for other in made:
                if other is not self:
                    other.stop()
            made.append(self)
            start(self)

        monkeypatch.setattr(Recorder, "start", keeping)
        yield
        for recorder in made:
            recorder.stop()


class TestRecord(RecordConformance):
    """The record and the probe, as they are here."""

    kind, case_type = "timer", TimerCase

    @pytest.fixture
    def case(self) -> TimerCase:
        return TimerCase(record=RECORD, device="cuda:0")
