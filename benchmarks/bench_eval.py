"""How fast solutions are evaluated on the CPU: ``python bench_eval.py [--dataset DIR]``.

Prints JSON. For each kind of runner: evaluations per minute over the whole run (references
included), and the overhead of one evaluation, which is the time from its beginning to its stored
trace less the solution's own work (the number of its calls times its mean latency). Starting the
fork server, which a run pays once, is told apart. Without ``--dataset`` the problem is a small
made-up one, for which nearly everything is overhead.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import time
from statistics import mean, median, quantiles
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench import Benchmark, BenchmarkConfig, RunObserver
from flashinfer_bench.data import (
    AxisVar,
    BuildSpec,
    Definition,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)

if TYPE_CHECKING:
    from flashinfer_bench.data import Evaluation

SOURCES = {
    "returns": ("def run(x, y):\n    return x @ y\n", False),
    "writes": ("import torch\n\ndef run(x, y, z):\n    torch.matmul(x, y, out=z)\n", True),
    "is_wrong": ("def run(x, y):\n    return x @ y + 1\n", False),
    "raises": ("def run(x, y):\n    raise ValueError('on purpose')\n", False),
}


def made_up_dataset(workloads: int) -> TraceSet:
    """Return a dataset in memory: one definition, four solutions that end in different ways."""
    square = {"shape": ["n", "n"], "dtype": "float32"}
    definition = Definition(
        name="matmul",
        op_type="gemm",
        axes={"n": AxisVar()},
        inputs={"x": TensorSpec(**square), "y": TensorSpec(**square)},
        outputs={"z": TensorSpec(**square)},
        reference=SOURCES["returns"][0],
    )
    solutions = [
        Solution(
            name=name,
            definition=definition.name,
            author="bench",
            spec=BuildSpec(
                language="python",
                target_hardware=["cpu"],
                entry_point="main.py::run",
                destination_passing_style=passes_outputs,
            ),
            sources=[SourceFile(path="main.py", content=source)],
        )
        for name, (source, passes_outputs) in SOURCES.items()
    ]
    inputs = {"x": RandomInput(), "y": RandomInput()}
    traces = [
        Trace(
            definition=definition.name,
            workload=Workload(axes={"n": 8 + index}, inputs=inputs, uuid=f"w{index}"),
        )
        for index in range(workloads)
    ]
    return TraceSet(
        definitions={definition.name: definition},
        solutions={definition.name: solutions},
        workloads={definition.name: traces},
    )


class Stopwatch(RunObserver):
    """Takes the time of every evaluation, and of the run without the start of its processes."""

    def __init__(self) -> None:
        self.overheads_ms: list[float] = []
        self.statuses: dict[str, int] = {}
        self.run_s = 0.0
        self._began_run = self._began = 0.0

    def started(self, total: int) -> None:
        """Note the beginning."""
        self._began_run = time.perf_counter()

    def evaluation_started(self, definition: str, workload: Workload, solution: str) -> None:
        """Note the beginning of an evaluation."""
        self._began = time.perf_counter()

    def evaluation_finished(self, trace: Trace) -> None:
        """Note what it took beyond the solution's own work."""
        wall_ms = (time.perf_counter() - self._began) * 1e3
        assert trace.evaluation is not None
        self.overheads_ms.append(wall_ms - own_work_ms(trace.evaluation))
        status = str(trace.evaluation.status)
        self.statuses[status] = self.statuses.get(status, 0) + 1

    def finished(self) -> None:
        """Note the end."""
        self.run_s = time.perf_counter() - self._began_run


def own_work_ms(evaluation: Evaluation) -> float:
    """Return the time that the solution itself ran; 0 where it was not timed."""
    performance, made = evaluation.performance, evaluation.provenance
    if performance is None or made is None or not performance.samples_ms:
        return 0.0
    trials, warmup, iterations = made.num_trials or 0, made.warmup_runs or 0, made.iterations or 0
    calls = trials * (warmup + iterations + 1)
    return mean(performance.samples_ms) * calls


def measure(dataset: TraceSet, *, isolated: bool, repeats: int) -> dict[str, Any]:
    """Run everything `repeats` times with one kind of runner."""
    config = BenchmarkConfig.default(device="cpu", use_isolated_runner=isolated, seed=1)
    watches = [Stopwatch() for _ in range(repeats)]
    with Benchmark(dataset, config, log_level="ERROR") as first:
        began = time.perf_counter()
        first.evaluate()
        cold_s = time.perf_counter() - began
        for watch in watches:
            first.observers = (watch,)
            first.evaluate()
    overheads = [value for watch in watches for value in watch.overheads_ms]
    warm_s = median(watch.run_s for watch in watches)
    per_run = len(watches[0].overheads_ms)
    return {
        "evaluations_per_run": per_run,
        "statuses": watches[0].statuses,
        "evaluations_per_minute": round(60 * per_run / warm_s, 1),
        "overhead_ms_median": round(median(overheads), 2),
        "overhead_ms_p90": round(quantiles(overheads, n=10)[-1], 2),
        "start_of_processes_s": round(max(0.0, cold_s - warm_s), 2),
    }


def main() -> None:
    """Measure both runners and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", help="dataset to evaluate instead of the made-up one")
    parser.add_argument("--workloads", type=int, default=8, help="size of the made-up one")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    dataset = (
        TraceSet.from_path(options.dataset)
        if options.dataset
        else made_up_dataset(options.workloads)
    )
    result = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load_average": round(os.getloadavg()[0], 2),
        },
        "persistent": measure(dataset, isolated=False, repeats=options.repeats),
        "isolated": measure(dataset, isolated=True, repeats=options.repeats),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
