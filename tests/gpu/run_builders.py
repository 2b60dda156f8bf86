"""Build and run Triton and CUDA solutions on a GPU, from a cold and from a warm cache.

Start it in an environment where core and the plugins are installed (or on ``PYTHONPATH``)::

    python tests/gpu/run_builders.py [--device cuda:0] [--iterations 20] [--only triton]

It takes the solutions of the sample dataset in Triton and CUDA, right and failing ones, and
prints one JSON object: for each language and binding the seconds of a build from an empty cache and
from a full one; the milliseconds of a load in a new process that has imported torch; the wall time
of ``fib run`` from an empty and from a full cache; and the verdicts that differ from
``examples/sources/expected.json``. Exit code 1 if any differs, 4 without a device.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import EXPECTED, FIB, SAMPLE, parser, require_gpu, sample_traces, told, wrong_verdicts

LOAD = """
import json, sys, time
import torch
from flashinfer_bench.compile import BuilderRegistry
from flashinfer_bench.data import TraceSet
root, device, names = sys.argv[1], sys.argv[2], sys.argv[3:]
traces = TraceSet.from_path(root)
torch.zeros(1, device=device)
registry = BuilderRegistry.from_catalog(device=device)
for group in traces.solutions.values():
    for solution in group:
        if solution.name in names:
            began = time.perf_counter()
            registry.build(traces.definitions[solution.definition], solution)
            print(solution.name, 1e3 * (time.perf_counter() - began))
"""


def kind_of(solution: str) -> str:
    """Language and binding, as in ``cuda/torch``."""
    row = EXPECTED[solution]
    return "/".join(part for part in (row["language"], row["binding"]) if part)


def build(cache: Path, device: str, names: list[str]) -> tuple[float, dict[str, dict]]:
    """Build solutions; return wall seconds and the outcome of each."""
    began = time.monotonic()
    flags = ("--local", str(SAMPLE), "--device", device, "--json", "--solutions", *names)
    places = {"FIB_CACHE_PATH": str(cache), "TRITON_CACHE_DIR": str(cache / "of-triton")}
    done = subprocess.run(
        [*FIB, "build", *flags], env=os.environ | places, stdout=subprocess.PIPE, text=True
    )
    outcomes = json.loads(done.stdout)["builds"]
    return time.monotonic() - began, {each["solution"]: each for each in outcomes}


def wrong_builds(outcomes: dict[str, dict], wanted: str) -> list[str]:
    """Outcomes other than `wanted`, except that what shall not build must fail.

    What Triton cannot compile fails when it is called, unless the file cannot be imported.
    """
    found = []
    for name, outcome in outcomes.items():
        allowed = {"failed"} if EXPECTED[name]["role"] == "no-compile" else {wanted, "built"}
        if outcome["result"] not in allowed:
            found.append(f"build of {name}: {outcome['result']}: {outcome['reason'][:300]}")
    return found


def warm_loads(cache: Path, device: str, names: list[str]) -> dict[str, float]:
    """Milliseconds of each load in one new process that has a context on the device."""
    right = [name for name in names if EXPECTED[name]["role"] == "good"]
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(SAMPLE), device, *right],
        env=os.environ | {"FIB_CACHE_PATH": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {
        name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())
    }


def by_kind(values: dict[str, float], digits: int) -> dict[str, dict[str, float]]:
    """Median, minimum and maximum for each language and binding."""
    kinds: dict[str, list[float]] = {}
    for name, value in values.items():
        kinds.setdefault(kind_of(name), []).append(value)
    return {
        kind: {
            "count": len(found),
            "median": round(statistics.median(found), digits),
            "min": round(min(found), digits),
            "max": round(max(found), digits),
        }
        for kind, found in sorted(kinds.items())
    }


def seconds_of(outcomes: dict[str, dict]) -> dict[str, float]:
    """Seconds of the builds that went well."""
    good = {n: o for n, o in outcomes.items() if o["result"] in ("built", "cached")}
    return {name: outcome["seconds"] for name, outcome in good.items()}


def latencies(traces: list[dict]) -> dict[str, float]:
    """Mean latency in milliseconds of each solution that passed, over its workloads."""
    found: dict[str, list[float]] = {}
    for trace in traces:
        if trace["evaluation"]["status"] == "PASSED":
            latency = trace["evaluation"]["performance"]["latency_ms"]
            found.setdefault(trace["solution"], []).append(latency)
    return {name: round(statistics.mean(values), 5) for name, values in sorted(found.items())}


def main() -> int:
    """Build, load and run, and print the figures."""
    made = parser(__doc__)
    made.add_argument("--iterations", type=int, default=20)
    made.add_argument("--only", help="a language, or language/binding")
    options = made.parse_args()
    require_gpu()
    import torch

    names = [name for name in EXPECTED if kind_of(name).split("/")[0] in ("triton", "cuda")]
    names = [name for name in names if kind_of(name).startswith(options.only or "")]
    with tempfile.TemporaryDirectory() as scratch:
        cold, other = Path(scratch) / "cache", Path(scratch) / "other"
        cold_s, first = build(cold, options.device, names)
        warm_s, second = build(cold, options.device, names)
        loads = warm_loads(cold, options.device, names)
        flags = ("--iterations", str(options.iterations), "--solutions", *names)
        cold_run_s, cold_traces = sample_traces(other, options.device, *flags)
        warm_run_s, warm_traces = sample_traces(other, options.device, *flags)
    wrong = wrong_builds(first, "built") + wrong_builds(second, "cached")
    wrong += wrong_verdicts(cold_traces, names) + wrong_verdicts(warm_traces, names)
    report = {
        "device": torch.cuda.get_device_name(options.device),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "solutions": len(names),
        "fib_build_s": {"cold": round(cold_s, 1), "warm": round(warm_s, 1)},
        "build_s": {
            "cold": by_kind(seconds_of(first), 2),
            "warm": by_kind(seconds_of(second), 3),
        },
        "warm_load_ms": by_kind(loads, 1),
        "fib_run_s": {"cold": round(cold_run_s, 1), "warm": round(warm_run_s, 1)},
        "evaluations": len(warm_traces),
        "latency_ms": latencies(warm_traces),
        "surprises": wrong,
    }
    return told(report, wrong)


if __name__ == "__main__":
    sys.exit(main())
