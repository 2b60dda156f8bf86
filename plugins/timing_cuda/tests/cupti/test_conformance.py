"""The timer keeps to the contract of all timers; shown on a device that is not there."""

from dataclasses import replace

import pytest

import fib_timing_cuda
from fib_testing import TimerCase, TimerConformance
from fib_testing.records import RecordConformance

(RECORD,) = [one for one in fib_timing_cuda.fib_register_timers() if one.name == "cupti"]


@pytest.mark.usefixtures("cupti", "one_subscriber")
class TestCuptiTimer(TimerConformance):
    """All but the probe: that there is a GPU is pretended."""

    @pytest.fixture
    def case(self, events):
        return TimerCase(record=replace(RECORD, probe=None), device="cuda:0", work=events.work)


class TestRecord(RecordConformance):
    """The record and the probe, as they are here."""

    kind, case_type = "timer", TimerCase

    @pytest.fixture
    def case(self):
        return TimerCase(record=RECORD, device="cuda:0")
