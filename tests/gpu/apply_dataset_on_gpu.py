"""A dataset put to work on a GPU: the name of the hardware, CUDA and Triton solutions, graphs.

`apply_on_gpu` makes these checks as well. Alone it prints one JSON object: for each check whether
it went well, and its seconds. Exit code 1 if one failed, 4 if there is no GPU. Needs core and the
plugins for CUDA (through TVM FFI), Triton and Python; what cannot be built here is skipped, and
the reason told.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from common import FIB, SAMPLE, failed, require_gpu, run_checks, told

from flashinfer_bench.apply import ApplyRuntime, apply

if TYPE_CHECKING:
    from collections.abc import Mapping

DEVICE = "cuda:0"
NAME = "rmsnorm_h512"
CUDA, TRITON, PYTHON = "heidi_rmsnorm_cuda", "erin_rmsnorm_triton", "alice_rmsnorm_inplace"
WINNERS = {8: CUDA, 32: TRITON, 64: PYTHON}
OTHERS = {8: PYTHON, 32: PYTHON, 64: CUDA}
ELSEWHERE = ("Some GPU with another name", "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
# In a process that has not touched the GPU, and so must find the name in another way.
FRESH = """
import json, sys
from flashinfer_bench.tensors.devices import this_hardware
name = this_hardware()
early = "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized()
import torch
from flashinfer_bench.tensors import env_snapshot
print(json.dumps([name, early, env_snapshot("cuda:0").hardware, this_hardware("cuda:0")]))
"""


@cache
def scratch() -> Path:
    """Return a folder for datasets and builds, common to all checks."""
    folder = Path(tempfile.mkdtemp(prefix="fib-apply-gpu-"))
    os.environ["FIB_CACHE_PATH"] = str(folder / "cache")
    return folder


def line(solution: str, rows: int, latency_ms: float, hardware: str) -> str:
    """Return a trace as a dataset has it."""
    random = {"type": "random"}
    evaluation = {
        "status": "PASSED",
        "environment": {"hardware": hardware, "libs": {}},
        "timestamp": "2026-01-01T00:00:00",
        "log": "",
        "correctness": {"max_relative_error": 0.004, "max_absolute_error": 0.004},
        "performance": {
            "latency_ms": latency_ms,
            "reference_latency_ms": 1.0,
            "speedup_factor": 1.0 / latency_ms,
        },
    }
    workload = {
        "axes": {"batch_size": rows},
        "inputs": {"hidden_states": random, "weight": random},
        "uuid": f"w{rows}",
    }
    record = {"definition": NAME, "workload": workload, "solution": solution}
    return json.dumps({**record, "evaluation": evaluation}) + "\n"


@cache
def dataset(name: str) -> Path:
    """Write the sample dataset with winners for this GPU, and faster ones for others."""
    winners = WINNERS if name == "first" else OTHERS
    folder = scratch() / name
    shutil.copytree(SAMPLE, folder)
    here = torch.cuda.get_device_name(0)
    lines = [line(solution, rows, 0.5, here) for rows, solution in winners.items()]
    lines += [line("bob_rmsnorm_rows", rows, 0.1, each) for rows in winners for each in ELSEWHERE]
    path = folder / "traces" / "rmsnorm" / f"{NAME}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(lines))
    return folder


def original(x: torch.Tensor, weight: torch.Tensor, output: torch.Tensor | None = None) -> Any:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    result = (wide * scale * weight.float()).to(x.dtype)
    return result if output is None else output.copy_(result)


def inputs(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = [torch.randn(*shape, device=DEVICE).bfloat16() for shape in ((rows, 512), (512,))]
    return made[0], made[1]


def close(actual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    torch.testing.assert_close(actual, original(x, weight), atol=0.02, rtol=0.02)


def chosen(runtime: ApplyRuntime) -> dict[int, str]:
    """Return who has taken the calls of each size."""
    dispatcher = runtime._generation.dispatcher(NAME)
    assert dispatcher is not None
    return {each.key.axes[0][1]: each.target.solution for each in dispatcher.entries() if each.key}


def call_all(runtime: ApplyRuntime, winners: Mapping[int, str]) -> None:
    """Make calls of all sizes in both conventions: those of winners that were built are hits."""
    for rows in (*winners, 7):
        for _ in range(3):
            x, weight = inputs(rows)
            output = torch.empty_like(x)
            close(apply(NAME, args=(x, weight), fallback=original), x, weight)
            apply(NAME, args=(x, weight, output), fallback=original)
            close(output, x, weight)
    built = {rows: name for rows, name in winners.items() if name not in runtime.problems}
    assert chosen(runtime) == built, (chosen(runtime), runtime.problems)


def missing(runtime: ApplyRuntime) -> str | None:
    """Say which solutions cannot be built here, None if all can."""
    lacking = {name: text for name, text in runtime.problems.items() if name in WINNERS.values()}
    return f"skipped: {lacking}" if lacking else None


# ------------------------------------------------------------------------------------ checks


def check_hardware() -> None:
    """The name comes without CUDA being initialised, and is the one that traces have."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    name, early, recorded, of_device = json.loads(done.stdout)
    assert name == recorded == of_device == torch.cuda.get_device_name(0), done.stdout
    assert not early, "CUDA was initialised for the name"


def check_dataset() -> str | None:
    """CUDA, Triton and Python solutions take the sizes that they won on this GPU, and no others."""
    with ApplyRuntime(dataset("first")) as runtime:
        call_all(runtime, WINNERS)
        found = runtime.stats()[NAME]
        assert (found.errors, found.misses["no choice"]) == (0, 6), found
        x, weight = inputs(8)
        for bad in ((x.cpu(), weight.cpu()), (x, weight.float()), (x[:, ::1].t(), weight)):
            assert apply(NAME, args=bad, fallback=lambda *args: "original") == "original"
        return missing(runtime)


def check_graphs() -> str | None:
    """Replays keep their kernels, whatever is rebuilt or stopped afterwards."""
    captured = []
    with ApplyRuntime(dataset("first")) as runtime:
        for rows in WINNERS:
            x, weight = inputs(rows)
            apply(NAME, args=(x, weight), fallback=original)
            captured.append((*capture(x, weight), x, weight))
        assert "capture" not in runtime.stats()[NAME].misses, runtime.stats()
        runtime.rebuild(dataset("second"))
        check_replays(captured)
        call_all(runtime, OTHERS)
        check_replays(captured)
        lacking = missing(runtime)
    del runtime
    gc.collect()
    torch.cuda.empty_cache()
    check_replays(captured)
    return lacking


def capture(x: torch.Tensor, weight: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor]:
    given, graph = torch.empty_like(x), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        apply(NAME, args=(x, weight, given), fallback=original)
        made = apply(NAME, args=(x, weight), fallback=original)
    return graph, given, made


def check_replays(captured: list[Any]) -> None:
    for graph, given, made, x, weight in captured:
        x.copy_(torch.randn_like(x))
        given.zero_()
        made.zero_()
        graph.replay()
        torch.cuda.synchronize()
        close(given, x, weight)
        close(made, x, weight)


def check_command_line() -> None:
    """``fib apply explain`` names the same hardware and winners."""
    command = [*FIB, "apply", "explain", "--json"]
    done = subprocess.run(
        [*command, str(dataset("first")), NAME],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["hardware"] == torch.cuda.get_device_name(0), said["hardware"]
    first = {key["axes"]["batch_size"]: key["contenders"][0]["solution"] for key in said["keys"]}
    assert first == WINNERS, first


CHECKS = {
    "hardware": check_hardware,
    "dataset": check_dataset,
    "graphs": check_graphs,
    "command line": check_command_line,
}


def main() -> int:
    require_gpu()
    found = run_checks(CHECKS)
    shutil.rmtree(scratch(), ignore_errors=True)
    return told({"device": torch.cuda.get_device_name(0), "checks": found}, failed(found))


if __name__ == "__main__":
    sys.exit(main())
