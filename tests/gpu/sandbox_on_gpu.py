"""Run CUDA kernels of torch and Triton under each measure of the sandbox, alone and all together.

Start it in an environment where core, torch and Triton are installed (or on ``PYTHONPATH``)::

    python tests/gpu/sandbox_on_gpu.py [--device cuda:0]

It prints one JSON object: for every measure whether it can be taken here and what works under it,
in a process that has taken nothing else; the same for all measures, in a candidate of the real
executor; and the milliseconds that taking them costs. Exit code 1 if something does not work that
works without the sandbox, 4 without a device.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import definition, parser, require_gpu, solution, told

MEASURES = (
    *("resource-limits", "process-limit", "network-namespace", "mount-namespace"),
    *("capabilities", "no-new-privileges", "landlock-files", "landlock-network"),
    *("landlock-signals", "system-calls"),
)
# Without this one an ordinary user may take neither Landlock nor a filter.
FIRST = "no-new-privileges"

KERNELS = """
import subprocess
import sys

import torch


def with_torch(x, y):
    a = torch.randn(512, 512, device=x.device)
    assert torch.isfinite(a @ a).all()
    return x + y


def with_a_graph(x, y):
    out = torch.empty_like(x)
    stream = torch.cuda.Stream(x.device)
    with torch.cuda.stream(stream):
        torch.add(x, y, out=out)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.add(x, y, out=out)
    graph.replay()
    torch.cuda.synchronize(x.device)
    return out


def with_pinned_memory(x, y):
    return x + y.cpu().pin_memory().to(x.device, non_blocking=True)


def with_events(x, y):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    z = x + y
    end.record()
    torch.cuda.synchronize(x.device)
    assert start.elapsed_time(end) >= 0
    return z


def with_a_program(x, y):
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return x + y


try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit
    def add(x, y, z, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        tl.store(z + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)

    def with_triton(x, y):
        z = torch.empty_like(x)
        add[(triton.cdiv(x.numel(), 256),)](x, y, z, x.numel(), BLOCK=256)
        return z


def run(x, y):
    import json

    outcomes = {}
    for name, function in list(globals().items()):
        if name.startswith("with_"):
            try:
                assert torch.equal(function(x, y), x + y), "it is wrong"
                outcomes[name[5:]] = "works"
            except Exception as error:
                outcomes[name[5:]] = f"{type(error).__name__}: {error}"[:500]
    print("OUTCOMES " + json.dumps(outcomes), flush=True)
    return x + y
"""
N = 1 << 16


def child(measure: str, device: str) -> None:
    """Take one measure (or none) in this process, and run the kernels."""
    import torch

    from fib_sandbox_linux.confinement import confine

    workdir = Path(tempfile.mkdtemp())
    os.chdir(workdir)
    # As in a candidate: no measure lets it write anywhere else.
    os.environ.update(TMPDIR=str(workdir), TRITON_CACHE_DIR=str(workdir / "triton"))
    tempfile.tempdir = None
    (workdir / "solution.py").write_text(KERNELS)
    sys.path.insert(0, str(workdir))
    wanted = {measure, FIRST} if measure.startswith(("landlock", "system")) else {measure}
    began = time.perf_counter()
    applied, missing = confine([], device=device, workdir=workdir, only=wanted)
    print(f"TOOK {1e3 * (time.perf_counter() - began):.3f}")
    if measure != "none" and measure not in applied:
        print("MISSING " + json.dumps(missing.get(measure, "it was not taken")))
        return
    import solution

    x = torch.arange(N, dtype=torch.float32, device=device)
    solution.run(x, torch.ones_like(x))


def line_of(output: str, word: str) -> object:
    """Return what a line that begins with `word` says, or None."""
    for line in output.splitlines():
        if line.startswith(word + " "):
            return json.loads(line[len(word) + 1 :])
    return None


def alone(measure: str, device: str) -> dict[str, object]:
    """Return what works under one measure, in a process of its own."""
    command = [sys.executable, __file__, "--device", device, "--child", measure]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": "no answer within 300 s"}
    missing = line_of(done.stdout, "MISSING")
    if missing is not None:
        return {"missing": missing}
    outcomes = line_of(done.stdout, "OUTCOMES")
    if outcomes is None:
        return {"failed": f"exit code {done.returncode}: {done.stderr[-1500:]}"}
    return {"outcomes": outcomes, "milliseconds": line_of(done.stdout, "TOOK")}


def together(device: str, kind: str) -> dict[str, object]:
    """Return what works in a candidate of the real executor that has taken all measures."""
    import torch

    from flashinfer_bench.bench.executors.base import CandidateError
    from flashinfer_bench.bench.executors.fork import ForkExecutor
    from flashinfer_bench.bench.executors.spawn import SpawnExecutor
    from flashinfer_bench.bench.sandbox import Sandbox
    from flashinfer_bench.data import Definition, Solution

    add = definition(
        "add",
        "elementwise",
        {"n": None},
        {"x": "n float32", "y": "n float32"},
        {"z": "n float32"},
        "def run(x, y):\n    return x + y\n",
    )
    problem = (
        Definition.model_validate(add),
        Solution.model_validate(solution("sandboxed", "add", KERNELS)),
    )
    executor = {"fork": ForkExecutor, "spawn": SpawnExecutor}[kind](device)
    executor.start()
    costs: list[float] = []
    report: dict[str, object] = {}
    try:
        for _ in range(5):
            candidate = executor.spawn()
            began = time.perf_counter()
            held = Sandbox("auto").confine(candidate, *problem, device=device)
            costs.append(1e3 * (time.perf_counter() - began))
            if len(costs) < 5:
                candidate.close()
        report = {"applied": held.applied, "missing": dict(held.missing)}
        candidate.load(*problem, timeout_s=120)
        x = torch.arange(N, dtype=torch.float32)
        candidate.put_inputs(0, [x, torch.ones(N)], {"n": N}, timeout_s=120)
        (got,) = candidate.call(0, timeout_s=300)
        report["correct"] = torch.equal(got, x + 1)
    except CandidateError as error:
        report["failed"] = f"{error}"
    finally:
        report["outcomes"] = line_of(candidate.log(), "OUTCOMES")
        report["log"] = "" if report["outcomes"] else candidate.log()[-1500:]
        executor.close()
    return {**report, "milliseconds": round(statistics.median(costs), 2)}


def broken(before: dict[str, object], under: dict[str, object]) -> list[str]:
    """Return what works without the sandbox and not under it."""
    if "missing" in under and "outcomes" not in under:
        return []
    outcomes = under.get("outcomes") or {}
    working = [name for name, how in (before.get("outcomes") or {}).items() if how == "works"]
    return [name for name in working if outcomes.get(name) != "works"]


def main() -> int:
    """Try everything and print it."""
    made = parser(__doc__)
    made.add_argument("--child", help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.child:
        child(options.child, options.device)
        return 0
    require_gpu()
    before = alone("none", options.device)
    report = {name: alone(name, options.device) for name in MEASURES}
    report.update({f"all, {kind}": together(options.device, kind) for kind in ("fork", "spawn")})
    verdict = {name: broken(before, under) for name, under in report.items()}
    verdict = {name: what for name, what in verdict.items() if what}
    whole = {"without": before, **report, "broken": verdict}
    return told(whole, verdict or not before.get("outcomes"))


if __name__ == "__main__":
    sys.exit(main())
