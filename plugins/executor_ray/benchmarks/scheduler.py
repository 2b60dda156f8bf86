"""What saturates first with 1,000 GPUs and 10 million evaluations.

``python scheduler.py`` prints JSON. First, the driver alone is measured: the real loop with 1,000
devices that answer at once, and traces that are parsed, appended and told as ever. Then a fleet is
simulated event by event, with these costs, for several durations of an evaluation.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import resource
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from small_cluster import make_dataset

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.backends import Distributor
from flashinfer_bench.data import Environment, Evaluation, TraceSet
from flashinfer_bench.data.json_codec import from_json, to_json
from flashinfer_bench.plugins import Catalog, ExecutorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

GPUS, EVALUATIONS, DEFINITIONS = 1_000, 10_000_000, 300
MEASURED = 20_000
SAMPLES = 150  # timed calls of a solution, and as many of the reference
# Of a driver, for each message of a judge: `overhead.py` measures it.
RAY_S = 0.001


def sample_evaluation() -> bytes:
    """Return an evaluation as a judge sends it."""
    times = [0.1 + random.random() / 100 for _ in range(SAMPLES)]
    performance = {
        "latency_ms": 0.1,
        "reference_latency_ms": 0.2,
        "speedup_factor": 2.0,
        "samples_ms": times,
        "reference_samples_ms": times,
        "interval_ms": [0.1, 0.11],
    }
    told = {
        "seed": 1,
        "timer": "cupti",
        "device": "cuda:0",
        "host": "0" * 12,
        "driver": "580.1",
        "settings": {"warmup_runs": 1},
        "plugins": {f"plugin{n}": "1.0" for n in range(8)},
        "timing": {"clocks": [[n, 1980] for n in range(20)]},
        "extra": {"solution_hash": "0" * 64, "node": "node-0", "measurement": "verified"},
    }
    evaluation = {
        "status": "PASSED",
        "environment": {"hardware": "GPU", "libs": {f"lib{n}": "1.0" for n in range(6)}},
        "timestamp": "2026-01-02T03:04:05",
        "log": "",
        "correctness": {"max_relative_error": 0.0, "max_absolute_error": 0.0},
        "performance": performance,
        "provenance": told,
    }
    made = from_json(json.dumps(evaluation), Evaluation)
    return to_json(made, indent=None).encode()


class StubRunner:
    """A device that answers at once."""

    interrupted = False
    environment = Environment(hardware="GPU")

    def __init__(self, number: int, text: bytes) -> None:
        self.device, self._text = f"stub:{number}", text

    def evaluate_each(
        self, definition: Any, workload: Any, solutions: Any, *given: Any, **told: Any
    ) -> Iterator[tuple[Any, Evaluation]]:
        """Yield the same evaluation for all."""
        for one in solutions:
            yield one, from_json(self._text, Evaluation)

    def interrupt(self) -> None:
        """Note it."""
        self.interrupted = True

    def close(self) -> None:
        """Do nothing."""


class Stub(Distributor):
    """A thousand devices that answer at once."""

    def open(self, trace_set: TraceSet) -> list[StubRunner]:
        """Return them."""
        text = sample_evaluation()
        return [StubRunner(number, text) for number in range(GPUS)]


def measure_driver() -> dict[str, float]:
    """Return what a trace costs the driver, in seconds and bytes of memory."""
    spec = ExecutorSpec(name="stub", devices=("cpu",), distributes=True, factory=f"{__name__}:Stub")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "dataset"
        count = make_dataset(root, definitions=20, workloads=MEASURED // 20 // 20, solutions=20)
        trace_set = TraceSet.from_path(str(root))
        config = BenchmarkConfig(executor="stub", device="cpu")
        benchmark = Benchmark(trace_set, config, "ERROR", catalog=Catalog.of(spec))
        memory, cpu, began = _memory(), sum(os.times()[:2]), time.monotonic()
        benchmark.run_all()
        seconds = time.monotonic() - began
        cpu = sum(os.times()[:2]) - cpu
        size = sum(path.stat().st_size for path in root.glob("traces/**/*.jsonl"))
        return {
            "seconds": seconds / count,
            "cpu_seconds": cpu / count,
            "memory": (_memory() - memory) / count,
            "disk": size / count,
        }


def _memory() -> int:
    with suppress(OSError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def simulate(trace_s: float, evaluation_s: float, seed: int = 0) -> dict[str, float]:
    """Simulate a fleet: devices choose work as `Scheduler` does, and share one driver.

    Parameters
    ----------
    trace_s : float
        What a trace costs the driver.
    evaluation_s : float
        Median of the duration of an evaluation.
    seed : int
        Of the durations.
    """
    draw = random.Random(seed)
    solutions = 17
    items = EVALUATIONS // solutions
    weights = [draw.paretovariate(1.2) for _ in range(DEFINITIONS)]
    scale = items / sum(weights)
    # By definition: how many workloads are left, and how long one takes with all its solutions.
    waiting = [max(1, round(weight * scale)) for weight in weights]
    cost = [evaluation_s * draw.lognormvariate(0, 0.8) for _ in weights]
    open_ones, on = set(range(DEFINITIONS)), [0] * DEFINITIONS
    # When a device is through with a workload, and which definition it has worked on.
    events: list[tuple[float, int, int]] = [(0.0, gpu, -1) for gpu in range(GPUS)]
    driver = busy = end = work = 0.0
    while events:
        now, gpu, definition = heapq.heappop(events)
        if definition >= 0:  # its traces queue for the driver, and the device waits for that
            driver = max(driver, now) + solutions * trace_s
            busy += solutions * trace_s
            now = end = driver
        if definition not in open_ones:
            if definition >= 0:
                on[definition] -= 1
            definition = max(open_ones, key=lambda d: waiting[d] / (1 + on[d]), default=-1)
            if definition < 0:
                continue
            on[definition] += 1
        waiting[definition] -= 1
        if not waiting[definition]:
            open_ones.discard(definition)
        took = solutions * cost[definition] * draw.lognormvariate(0, 0.2)
        work += took
        heapq.heappush(events, (now + took, gpu, definition))
    done = items * solutions
    return {
        "evaluation_s": evaluation_s,
        "traces_per_s": round(done / end, 1),
        "hours": round(end / 3600, 1),
        "hours_of_devices_alone": round(work / GPUS / 3600, 1),
        "driver_busy": round(busy / end, 3),
        "devices_busy": round(work / GPUS / end, 3),
    }


def main() -> None:
    """Measure, simulate, and print JSON."""
    driver = measure_driver()
    os.environ["FIB_FSYNC"] = "never"
    without = measure_driver()
    trace_s = driver["seconds"] + RAY_S
    told = {
        "driver": {
            "ms_per_trace": round(driver["seconds"] * 1e3, 3),
            "cpu_ms_per_trace": round(driver["cpu_seconds"] * 1e3, 3),
            "ms_per_trace_without_fsync": round(without["seconds"] * 1e3, 3),
            "ms_per_message_of_ray": RAY_S * 1e3,
            "memory_kib_per_trace": round(driver["memory"] / 1024, 2),
            "disk_kib_per_trace": round(driver["disk"] / 1024, 2),
            "memory_gib_of_all": round(driver["memory"] * EVALUATIONS / 2**30, 1),
            "disk_gib_of_all": round(driver["disk"] * EVALUATIONS / 2**30, 1),
            "most_traces_per_s": round(1 / trace_s),
        },
        "fleet": [simulate(trace_s, seconds) for seconds in (0.3, 1.0, 3.0, 10.0)],
    }
    json.dump(told, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
