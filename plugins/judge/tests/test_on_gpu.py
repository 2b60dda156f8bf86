"""Evaluations on a real GPU."""

from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench import BenchmarkConfig, PersistentRunner
from flashinfer_bench.data import Workload

pytestmark = [
    pytest.mark.gpu,
    # Asked without making a context: the test's own process stays out of the way.
    pytest.mark.skipif(torch.cuda.device_count() == 0, reason="no CUDA device"),
]

ADD = "def run(x, y):\n    return x + y\n"
WAITS = "def run(x, y):\n    float(x[0])\n    return x + y\n"


def test_short_kernels_are_timed_behind_the_gate_from_a_process_s_first_workload_on(
    definition_of, solution_of
):
    inputs = {name: {"type": "random"} for name in "xy"}
    workload = Workload(axes={"n": 4096}, inputs=inputs, uuid="w")
    solutions = [
        solution_of(source).model_copy(update={"name": name})
        for name, source in {"adds": ADD, "waits": WAITS}.items()
    ]
    config = BenchmarkConfig.default(device="cuda:0")
    with PersistentRunner("cuda:0") as runner:
        each = runner.evaluate_each(definition_of(), workload, solutions, config, Path.cwd())
        found = {solution.name: evaluation for solution, evaluation in each}
    assert {one.status.value for one in found.values()} == {"PASSED"}
    on_host = {name: "calls wait for the device" in one.log for name, one in found.items()}
    assert on_host == {"adds": False, "waits": True}
