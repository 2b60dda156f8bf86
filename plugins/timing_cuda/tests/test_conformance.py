"""The timers and the plugin keep to their contracts."""

import pytest

import fib_timing_cuda
from fib_testing import PluginConformance, TimerCase, TimerConformance
from flashinfer_bench.plugins import import_string

pytestmark = pytest.mark.torch

RECORDS = {record.name: record for record in fib_timing_cuda.fib_register_timers()}


class OnCuda(TimerConformance):
    """Work of a known length for the timers of a GPU."""

    timer = "cuda_event"

    @pytest.fixture
    def case(self):
        import torch

        def work(milliseconds):
            # About a GHz, whatever the device's clock: within the factor that the suite allows.
            torch.cuda._sleep(int(milliseconds * 2e6))

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        return TimerCase(
            record=RECORDS[self.timer], device="cuda", plugin="fib_timing_cuda", work=work
        )


@pytest.mark.gpu
class TestCudaEvents(OnCuda):
    timer = "cuda_event"


@pytest.mark.gpu
class TestCudaGraphs(OnCuda):
    timer = "cuda_graph"


@pytest.mark.gpu
class TestDoBench(OnCuda):
    timer = "do_bench"


@pytest.mark.parametrize("spec", RECORDS.values(), ids=RECORDS)
def test_records_say_what_the_timers_are_like(spec):
    """Also of those that cannot be used here: their classes can be imported anywhere."""
    timer = import_string(spec.factory)
    told = (spec.name, spec.repeats, spec.caches, spec.resolution_ms)
    assert told == (timer.name, timer.repeats, timer.caches, timer.resolution_ms)
    assert spec.overhead


class TestPlugin(PluginConformance):
    @pytest.fixture
    def case(self):
        return "timing_cuda"
