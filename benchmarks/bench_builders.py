"""What building, loading and calling compiled solutions costs: ``python bench_builders.py``.

Prints JSON, times as medians with the smallest and the largest. For each binding of C++ that is
installed: a cold build; a warm load in a new process that has imported torch already, with all that
the builder itself imports; the overhead of ``Runnable(*args)`` over the function that it wraps; and
that of a value-returning call of a destination-passing kernel over the kernel. Then ``fib build``
of eight solutions with one job and with two, in turn, on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from flashinfer_bench.compile import BuilderRegistry
from flashinfer_bench.data import Definition, Solution, save_json_file
from flashinfer_bench.plugins import default_catalog

if TYPE_CHECKING:
    from collections.abc import Callable

TVM_FFI = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
static void Add(tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView z) {
  const float* a = static_cast<const float*>(x.data_ptr());
  const float* b = static_cast<const float*>(y.data_ptr());
  float* c = static_cast<float*>(z.data_ptr());
  for (int64_t i = 0; i < x.size(0); ++i) c[i] = a[i] + b[i] + %d;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Add)
"""
TORCH = """
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>
static void run(const at::Tensor& x, const at::Tensor& y, at::Tensor& z) {
  const float* a = x.const_data_ptr<float>();
  const float* b = y.const_data_ptr<float>();
  float* c = z.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.size(0); ++i) c[i] = a[i] + b[i] + %d;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
SOURCES = {"tvm-ffi": TVM_FFI, "torch": TORCH}
VECTOR = {"shape": ["n"], "dtype": "float32"}
DEFINITION = Definition.model_validate(
    {
        "name": "add",
        "op_type": "op",
        "axes": {"n": {"type": "var"}},
        "inputs": {"x": VECTOR, "y": VECTOR},
        "outputs": {"z": VECTOR},
        "reference": "def run(x, y):\n    return x + y\n",
    }
)
LOAD = """
import json, sys, time
import torch
from flashinfer_bench.compile import BuilderRegistry
from flashinfer_bench.data import Definition, Solution
definition, solution = (kind.model_validate_json(text) for kind, text in
                        zip((Definition, Solution), json.load(sys.stdin)))
registry = BuilderRegistry.get_instance()
registry._choose(solution)
began = time.perf_counter()
runnable = registry.build(definition, solution)
took = time.perf_counter() - began
x = torch.ones(4)
assert runnable(x=x, y=x).tolist() == [2.0] * 4
print(took)
"""


def solution(binding: str, number: int = 0) -> Solution:
    """Return a solution in C++; each number makes another one."""
    return Solution.model_validate(
        {
            "name": f"add_{binding.replace('-', '_')}_{number}",
            "definition": "add",
            "author": "bench",
            "spec": {
                "language": "cpp",
                "binding": binding,
                "target_hardware": ["cpu"],
                "entry_point": "main.cpp::run",
                "destination_passing_style": True,
            },
            "sources": [{"path": "main.cpp", "content": SOURCES[binding] % number}],
        }
    )


def spread(samples: list[float], digits: int = 2) -> dict[str, float]:
    """Return median, minimum and maximum."""
    return {
        "median": round(median(samples), digits),
        "min": round(min(samples), digits),
        "max": round(max(samples), digits),
    }


def warm_loads(binding: str, count: int) -> list[float]:
    """Return milliseconds of loads from the cache, each in a new process with torch imported."""
    texts = [DEFINITION.model_dump_json(), solution(binding).model_dump_json()]
    command = [sys.executable, "-c", LOAD]
    outputs = [
        subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
        for _ in range(count)
    ]
    return [float(output.stdout) * 1e3 for output in outputs]


def per_call_ns(function: Callable[..., Any], arguments: tuple[Any, ...], calls: int) -> float:
    """Return nanoseconds of one call, the loop included."""
    began = time.perf_counter_ns()
    for _ in range(calls):
        function(*arguments)
    return (time.perf_counter_ns() - began) / calls


def overhead_ns(
    outer: tuple[Callable[..., Any], tuple[Any, ...]],
    inner: tuple[Callable[..., Any], tuple[Any, ...]],
    rounds: int = 31,
    calls: int = 5000,
) -> list[float]:
    """Return differences of the time of two calls, taken in turn."""
    return [per_call_ns(*outer, calls) - per_call_ns(*inner, calls) for _ in range(rounds)]


def measure(binding: str, loads: int) -> dict[str, Any]:
    """Measure one binding, in a cache that has nothing of it yet."""
    began = time.perf_counter()
    runnable = BuilderRegistry.get_instance().build(DEFINITION, solution(binding))
    cold = time.perf_counter() - began
    raw = runnable._callable
    x, y, z = (torch.ones(16) for _ in range(3))
    return {
        "cold_build_s": round(cold, 2),
        "warm_load_ms": spread(warm_loads(binding, loads)),
        "raw_call_ns": spread([per_call_ns(raw, (x, y, z), 5000) for _ in range(31)], 0),
        "runnable_overhead_ns": spread(overhead_ns((runnable, (x, y, z)), (raw, (x, y, z))), 0),
        "value_returning_overhead_ns": spread(
            overhead_ns((runnable.call_value_returning, (x, y)), (raw, (x, y, z))), 0
        ),
        "torch_empty_ns": spread([per_call_ns(torch.empty, ((16,),), 5000) for _ in range(31)], 0),
    }


def fib_build(binding: str, folder: Path, jobs: int) -> float:
    """Return seconds of ``fib build`` of eight solutions, nothing of which is cached."""
    cache = folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    command = [sys.executable, "-m", "flashinfer_bench", "build", "--local", str(folder / "data")]
    if hasattr(os, "sched_setaffinity"):
        two = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:2])
        command = ["taskset", "-c", two, *command] if shutil.which("taskset") else command
    began = time.perf_counter()
    subprocess.run(
        [*command, "--jobs", str(jobs), "--device", "cpu"],
        env=os.environ | {"FIB_CACHE_PATH": str(cache)},
        capture_output=True,
        check=True,
    )
    return time.perf_counter() - began


def parallel_builds(binding: str, rounds: int) -> dict[str, Any]:
    """Compare one job with two."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_json_file(DEFINITION, folder / "data" / "definitions" / "op" / "add.json")
        for number in range(8):
            item = solution(binding, number)
            save_json_file(item, folder / "data" / "solutions" / "op" / f"{item.name}.json")
        pairs = [[fib_build(binding, folder, jobs) for jobs in (1, 2)] for _ in range(rounds)]
    return {
        "one_job_s": spread([one for one, _ in pairs]),
        "two_jobs_s": spread([two for _, two in pairs]),
        "speedup": spread([one / two for one, two in pairs]),
    }


def installed(binding: str) -> bool:
    """Return whether C++ with `binding` can be built here."""
    return any(
        entry.spec.accepts("cpp", binding) and entry.availability()
        for entry in default_catalog().builders
    )


def main() -> None:
    """Run as a script."""
    parser = argparse.ArgumentParser(description="Time building, loading and calling.")
    parser.add_argument("--loads", type=int, default=9, help="processes that load from the cache")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of fib build")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FIB_CACHE_PATH"] = cache
        for binding in [name for name in SOURCES if installed(name)]:
            result[binding] = measure(binding, options.loads)
            result[binding]["fib_build_of_8"] = parallel_builds(binding, options.rounds)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
