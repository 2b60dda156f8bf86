"""Candidates on a GPU: forked from a server without a context, each with a context of its own."""

from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.executors.base import CandidateTimeout
from flashinfer_bench.bench.executors.fork import ForkExecutor

pytestmark = [
    pytest.mark.gpu,
    # Asked without making a context: the test's own process stays out of the way.
    pytest.mark.skipif(torch.cuda.device_count() == 0, reason="there is no CUDA device"),
]

X, Y = torch.arange(8.0), torch.ones(8)
ADD = "def run(x, y):\n    return x + y\n"
FREE = "import torch\ndef run(x, y):\n    return torch.cuda.mem_get_info()[0] >> 20\n"


@pytest.fixture(scope="module")
def server_executor():
    """Hide the executor of the CPU: the fixture ``bench`` takes this one here."""
    executor = ForkExecutor("cuda:0")
    yield executor
    executor.close()


@pytest.fixture
def bench(bench, server_executor, plugin_in_reach):
    server_executor.start()
    return bench


def call(candidate, timeout_s=60):
    return candidate.call(0, timeout_s=timeout_s)


def test_inputs_are_on_the_device_and_outputs_come_back(bench):
    code = "def run(x, y):\n    assert x.is_cuda and y.is_cuda\n    return x + y\n"
    (got,) = call(bench.load(code))
    assert got.device.type == "cpu"
    assert torch.equal(got, X + Y)


def test_the_fork_server_never_has_a_context(bench, server_executor):
    call(bench.load(ADD))
    maps = Path(f"/proc/{server_executor._runs.server.pid}/maps").read_text()
    assert "/dev/nvidia" not in maps


def test_a_kernel_that_does_not_end_is_killed_and_its_memory_is_free(bench):
    (before,) = call(bench.load(FREE))
    code = """
        import torch
        kept = []
        def run(x, y):
            kept.append(torch.zeros(2**32, device=x.device, dtype=torch.uint8))
            torch.cuda._sleep(10**13)
            return x
    """
    candidate = bench.load(code)
    with pytest.raises(CandidateTimeout):
        call(candidate, timeout_s=3)
    (after,) = call(bench.load(FREE))
    assert after > before - 1024
