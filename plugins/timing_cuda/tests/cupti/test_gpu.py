"""On a real GPU, with NVIDIA's package. Run with ``pytest -m gpu``."""

import statistics

import pytest
import torch

import fib_timing_cuda
from fib_testing import TimerCase, TimerConformance
from fib_timing_cuda.probes import cupti as probe
from flashinfer_bench.errors import TimingError

pytestmark = pytest.mark.gpu

(RECORD,) = [one for one in fib_timing_cuda.fib_register_timers() if one.name == "cupti"]
DEVICE = "cuda:0"


@pytest.fixture(autouse=True)
def needs_cupti(one_subscriber):
    if not probe():
        pytest.skip(probe().reason)


def cycles_per_ms():
    """Return how fast the clock of the multiprocessors is under load."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(60):  # an idle device takes some 100 ms to raise its clock
        start.record()
        torch.cuda._sleep(10_000_000)
        stop.record()
        stop.synchronize()
    return 10_000_000 / start.elapsed_time(stop)


@pytest.fixture(scope="module")
def work():
    rate = cycles_per_ms()

    def keep_busy(milliseconds):
        torch.cuda._sleep(int(rate * milliseconds))

    return keep_busy


@pytest.fixture
def timer():
    from fib_timing_cuda.cupti import CuptiTimer

    return CuptiTimer()


def middle(timer, function, calls=30):
    found = [timer.time_call(function, (), device=DEVICE)[0] for _ in range(calls)]
    return statistics.median(found[5:])


class TestCuptiTimer(TimerConformance):
    @pytest.fixture
    def case(self, work):
        return TimerCase(record=RECORD, device=DEVICE, work=work)


def test_all_streams_count(timer, work):
    side = torch.cuda.Stream()

    def function():
        work(0.1)
        with torch.cuda.stream(side):
            work(2.0)

    assert middle(timer, function, 10) >= 1.9


def test_graphs_count(timer, work):
    x = torch.zeros(1 << 22, device=DEVICE)
    x.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            x.add_(1)
    assert middle(timer, graph.replay) > 5 * middle(timer, lambda: x.add_(1))


def test_work_that_is_not_recorded_counts_nevertheless(timer, work):
    from cupti import cupti

    def function():
        cupti.activity_disable(10)
        work(1.0)
        cupti.activity_enable(10)
        work(0.01)

    assert middle(timer, function, 10) >= 0.9


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")
def test_beside_a_profiler(timer, work):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]):
        work(0.1)
        with pytest.raises(TimingError, match="MULTIPLE_SUBSCRIBERS"):
            timer.time_call(lambda: work(0.1), (), device=DEVICE)
