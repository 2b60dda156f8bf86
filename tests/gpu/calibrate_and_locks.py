"""Measure a GPU's ceilings, hold torch's own latencies against the floors, and check the recovery.

Start it in an environment where core and the Python builder are installed (or on ``PYTHONPATH``)::

    python tests/gpu/calibrate_and_locks.py [--device cuda:0] [--trust full] [--sandbox auto]

It prints one JSON object: the ceilings, the smallest ratio of a latency to its floor over products,
normalisations and copies of many sizes, what solutions that break their context left behind, and
what names and locks of the device are in processes that number devices differently. Exit code 1 if
anything is not as it should be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import FIB, definition, parser, require_gpu, solution, told

from fib_judge.calibration import Ceilings, load_ceilings
from fib_judge.floor import physics_floor
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.locks import physical_name
from flashinfer_bench.data import (
    AxisConst,
    AxisVar,
    Definition,
    RandomInput,
    Solution,
    Trace,
    TraceSet,
    Workload,
)

REFERENCE = "def run(x):\n    return x * 2\n"
GOOD = "def run(x):\n    return x + x\n"
ILLEGAL = """
import triton
import triton.language as tl

@triton.jit
def poke(pointer, distance):
    tl.store(pointer + distance, 1.0)

def run(x):
    poke[(1,)](x, 1 << 44)
    return x * 2
"""
ASSERTS = """
import torch

def run(x):
    beyond = torch.full((8,), 1 << 40, device=x.device)
    return x * 2 + x.view(-1)[beyond].sum()
"""
TOO_LARGE = """
import torch

def run(x):
    kept = []
    while True:
        kept.append(torch.empty(1 << 30, dtype=torch.uint8, device=x.device))
"""
HOLDER = """
import sys
from flashinfer_bench.bench.locks import device_lock
with device_lock(sys.argv[1], lambda: len(sys.argv) > 2) as held:
    print("held" if held else "busy", flush=True)
    sys.stdin.read()
"""
AXES = {"m": AxisVar(), "n": AxisConst(value=64)}


# ----------------------------------------------------------------------- ceilings and floors


def calibrated(device: str) -> tuple[dict[str, Any], Ceilings]:
    """Run ``fib calibrate`` and read back what it stored."""
    import torch

    done = subprocess.run(
        [*FIB, "calibrate", "--device", device, "--json"], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"fib calibrate failed with {done.returncode}: {done.stderr}")
    print(done.stderr, file=sys.stderr)
    ceilings = load_ceilings(device, torch.cuda.get_device_name(device))
    assert ceilings is not None, "what was stored is not found"
    return json.loads(done.stdout)["ceilings"][0], ceilings


def made(name: str, op_type: str, axes: str, *tensors: str, reference: str) -> Definition:
    """Return a definition whose axes have one letter each, and whose last tensor is the output."""
    *inputs, output = (tensor.partition("=")[::2] for tensor in tensors)
    sizes = dict.fromkeys(axes)
    record = definition(name, op_type, sizes, dict(inputs), dict([output]), reference)
    return Definition.model_validate(record)


def product(dtype: str) -> Definition:
    """Return a product of two matrices."""
    tensors = (f"a=m,k {dtype}", f"b=n,k {dtype}", f"c=m,n {dtype}")
    return made("product", "gemm", "mnk", *tensors, reference="def run(a, b): return a @ b.T\n")


def normalisation(dtype: str) -> Definition:
    """Return a normalisation of rows."""
    tensors = (f"x=m,n {dtype}", f"w=n {dtype}", f"y=m,n {dtype}")
    return made("norm", "rmsnorm", "mn", *tensors, reference="def run(x, w): return x\n")


def elementwise(dtype: str) -> Definition:
    """Return a change of each element."""
    tensors = (f"x=m,n {dtype}", f"y=m,n {dtype}")
    return made("double", "elementwise", "mn", *tensors, reference=REFERENCE)


def cases(device: str) -> Any:
    """Yield definition, axes and the quickest honest way that torch has."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    norm = torch.nn.functional.rms_norm
    for dtype in ("float16", "bfloat16", "float32"):
        kind = getattr(torch, dtype)
        for m, n, k in ((1, 4096, 4096), (16, 256, 7168), (256, 4096, 4096), (4096, 4096, 4096),
                        (8192, 8192, 8192), (4096, 28672, 4096)):  # fmt: skip
            a, b = (torch.zeros(rows, k, dtype=kind, device=device) for rows in (m, n))
            out = torch.empty(m, n, dtype=kind, device=device)
            call = lambda a=a, b=b, out=out: torch.mm(a, b.t(), out=out)  # noqa: E731
            yield product(dtype), {"m": m, "n": n, "k": k}, call
        for m, n in ((1, 512), (64, 4096), (2048, 4096), (4096, 8192), (16384, 16384)):
            x = torch.zeros(m, n, dtype=kind, device=device)
            w, out = torch.ones(n, dtype=kind, device=device), torch.empty_like(x)
            yield normalisation(dtype), {"m": m, "n": n}, lambda x=x, w=w: norm(x, w.shape, w)
            call = lambda x=x, out=out: torch.mul(x, 2, out=out)  # noqa: E731
            yield elementwise(dtype), {"m": m, "n": n}, call


def floors(device: str, ceilings: Ceilings) -> dict[str, Any]:
    """Hold the shortest latencies of torch, with warm caches, against the floors."""
    from fib_timing_cuda.cuda_event import CudaEventTimer

    timer, found = CudaEventTimer(), []
    for problem, axes, call in cases(device):
        call()
        samples = [timer.time_call(call, (), device=device)[0] for _ in range(40)]
        floor = physics_floor(problem, axes, ceilings)
        size = "x".join(map(str, axes.values()))
        dtype = next(iter(problem.inputs.values())).dtype.value
        name = f"{problem.name} {dtype} {size}"
        found.append((min(samples) / floor.ms, name, min(samples), floor.ms, floor.limited_by))
    names = ("ratio", "case", "latency_ms", "floor_ms", "limited_by")
    nearest = [dict(zip(names, row, strict=True)) for row in sorted(found)[:8]]
    return {"cases": len(found), "smallest_ratio": nearest[0]["ratio"], "nearest": nearest}


# ----------------------------------------------------------------------------------- recovery


def recovery(device: str, trust: str, sandbox: str) -> dict[str, str]:
    """Evaluate good solutions in turn with such as break their context; return the statuses."""
    broken = {"illegal": ILLEGAL, "asserts": ASSERTS, "too_large": TOO_LARGE}
    sources = {"good_0": GOOD}
    for index, (name, source) in enumerate(broken.items()):
        sources |= {name: source, f"good_{index + 1}": GOOD}
    solutions = [
        Solution.model_validate(solution(name, "double", source))
        for name, source in sources.items()
    ]
    double = elementwise("float32").model_copy(update={"axes": AXES})
    workload = Workload(axes={"m": 64}, inputs={"x": RandomInput()}, uuid="w")
    dataset = TraceSet(
        root=None,
        definitions={double.name: double},
        solutions={double.name: solutions},
        workloads={double.name: [Trace(definition=double.name, workload=workload)]},
    )
    config = BenchmarkConfig(
        device=device, iterations=10, warmup_runs=2, num_trials=1, trust=trust, sandbox=sandbox
    )
    with Benchmark(dataset, config, "WARNING") as benchmark:
        result = benchmark.run_all(dump_traces=False)
        for skipped in benchmark.skipped:
            print(f"skipped {skipped.solution}: {skipped.reason}", file=sys.stderr)
    found = {}
    for trace in result.traces.get(double.name, []):
        assert trace.evaluation is not None
        found[trace.solution] = trace.evaluation.status.value
        last = (trace.evaluation.log or "").strip().splitlines()[-1:]
        print(f"{trace.solution}: {trace.evaluation.status.value} {last}", file=sys.stderr)
    return found


def recovery_problems(statuses: dict[str, str]) -> list[str]:
    """Return what is not as it should be."""
    wanted = {
        name: "PASSED" if name.startswith("good") else "RUNTIME_ERROR"
        for name in ("good_0", "illegal", "good_1", "asserts", "good_2", "too_large", "good_3")
    }
    return [
        f"{name}: {statuses.get(name, 'not evaluated')}, expected {status}"
        for name, status in wanted.items()
        if statuses.get(name) != status
    ]


# -------------------------------------------------------------------------------------- locks


def named_elsewhere(device: str, **variables: str) -> str:
    """Return the name of a device in a process with other variables."""
    code = "import sys; from flashinfer_bench.bench.locks import physical_name; "
    code += "print(physical_name(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, device],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **variables},
    )
    return done.stdout.strip()


def names(device: str) -> dict[str, str]:
    """Return the name of the same GPU in processes that number GPUs differently."""
    import torch

    number = torch.device(device).index or 0
    uuid = f"GPU-{torch.cuda.get_device_properties(number).uuid}"
    return {
        "here": physical_name(device),
        "by uuid": named_elsewhere("cuda:0", CUDA_VISIBLE_DEVICES=uuid),
        "by part of the uuid": named_elsewhere("cuda:0", CUDA_VISIBLE_DEVICES=uuid[:12]),
        "by number": named_elsewhere("cuda:0", CUDA_VISIBLE_DEVICES=str(number)),
        "by bus": named_elsewhere(device, CUDA_DEVICE_ORDER="PCI_BUS_ID"),
    }


def lock_is_excluded_and_freed(device: str, scratch: Path) -> list[str]:
    """Hold the lock in one process, ask in others of another cache, then kill the holder."""
    import torch

    number = torch.device(device).index or 0
    uuid = f"GPU-{torch.cuda.get_device_properties(number).uuid}"
    other = {"CUDA_VISIBLE_DEVICES": uuid, "FIB_CACHE_PATH": str(scratch / "other")}
    environment = {**os.environ, **other}
    ask = [sys.executable, "-c", HOLDER, "cuda:0", "ask"]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, device],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        said = [holder.stdout.readline().strip()]
        for kill in (False, True):
            if kill:
                holder.kill()
                holder.wait()
            done = subprocess.run(
                ask, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment
            )
            said.append(done.stdout.strip())
    return said


def main() -> int:
    """Do everything and print what came of it."""
    made = parser(__doc__)
    made.add_argument("--trust", default="full", choices=("full", "off"))
    made.add_argument("--sandbox", default="auto", choices=("auto", "strict", "off"))
    options = made.parse_args()
    require_gpu()
    import torch

    device = options.device
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(device)}
    with tempfile.TemporaryDirectory(prefix="fib-gpu-") as scratch:
        os.environ["FIB_CACHE_PATH"] = str(Path(scratch) / "cache")
        report["ceilings"], ceilings = calibrated(device)
        report["floors"] = floors(device, ceilings)
        report["names"] = names(device)
        report["locks"] = lock_is_excluded_and_freed(device, Path(scratch))
        report["recovery"] = recovery(device, options.trust, options.sandbox)
    problems = recovery_problems(report["recovery"])
    if not report["floors"]["smallest_ratio"] > 1:
        problems.append("an honest latency is under its floor")
    if len(set(report["names"].values())) != 1:
        problems.append("the device has several names")
    if report["locks"] != ["held", "busy", "held"]:
        problems.append(f"the lock was {report['locks']}")
    report["problems"] = problems
    return told(report, problems)


if __name__ == "__main__":
    sys.exit(main())
