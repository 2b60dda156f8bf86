"""Measure what a candidate process costs on a CUDA device, apart from the solution's own work.

It prints one JSON object: medians in milliseconds of each step over fresh processes, and the speed
at which large inputs reach the device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from itertools import pairwise

DEFINITION = {
    "name": "add",
    "op_type": "elementwise",
    "axes": {"n": {"type": "var"}},
    "inputs": {name: {"shape": ["n"], "dtype": "float32"} for name in ("x", "y")},
    "outputs": {"z": {"shape": ["n"], "dtype": "float32"}},
    "reference": "def run(x, y):\n    return x + y\n",
}
SOLUTION = {
    "name": "add_baseline",
    "definition": "add",
    "author": "measure",
    "spec": {
        "language": "python",
        "target_hardware": ["cuda"],
        "entry_point": "main.py::run",
        "destination_passing_style": False,
    },
    "sources": [{"path": "main.py", "content": DEFINITION["reference"]}],
}
STEPS = ("spawn", "load", "put_inputs", "first_call", "second_call", "time", "close")


def time_calls(candidate, timer: str, count: int = 60) -> None:
    """Have a candidate make and time calls, one by one."""
    from flashinfer_bench.tensors.vary import Variation

    plain = Variation(0, (0, 0), (0, 0), 0, ())
    for _ in range(count):
        candidate.stage(plain, timeout_s=60)
        candidate.fire(plain, timer=timer, timeout_s=60)


def one_round(executor, definition, solution, timer: str, inputs: list) -> list[float]:
    """Take a candidate through its life; return the milliseconds of each step."""
    size = {"n": len(inputs[0])}
    moments = [time.perf_counter()]
    candidate = executor.spawn()
    for step in (
        lambda: None,
        lambda: candidate.load(definition, solution, timeout_s=60),
        lambda: candidate.put_inputs(0, inputs, size, ways=["fixed"] * 2, timeout_s=60),
        lambda: candidate.call(0, timeout_s=60),
        lambda: candidate.call(0, timeout_s=60),
        lambda: time_calls(candidate, timer),
        candidate.close,
    ):
        step()
        moments.append(time.perf_counter())
    return [1000 * (after - before) for before, after in pairwise(moments)]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    import torch

    from flashinfer_bench.bench.executors.fork import ForkExecutor
    from flashinfer_bench.data import Definition, Solution

    problem = Definition.model_validate(DEFINITION), Solution.model_validate(SOLUTION)
    timer = "cpu" if options.device == "cpu" else "cuda_event"
    began = time.perf_counter()
    executor = ForkExecutor(options.device)
    executor.start()
    report = {"device": options.device, "server_start_s": round(time.perf_counter() - began, 2)}
    try:
        small, large = [torch.ones(1024)] * 2, [torch.ones(2**26)] * 2
        rounds = [one_round(executor, *problem, timer, small) for _ in range(options.rounds)]
        medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
        report["median_ms"] = {s: round(m, 2) for s, m in zip(STEPS, medians, strict=True)}
        report["total_ms"] = round(statistics.median(map(sum, rounds)), 1)
        put = one_round(executor, *problem, timer, large)[STEPS.index("put_inputs")]
        report["put_512_MiB_MB_per_s"] = round(2 * large[0].nbytes / put / 1000)
    finally:
        executor.close()
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
