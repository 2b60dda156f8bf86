"""What the scripts here share: records, the sample dataset, lists of checks, the report."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "examples" / "sample-dataset"
EXPECTED = json.loads((ROOT / "examples" / "sources" / "expected.json").read_text())
ON_HOST = "calls wait for the device"
"""Part of the log of an evaluation that was timed by the host's clock."""
FIB = [sys.executable, "-m", "flashinfer_bench"]


def parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser of the command line that knows ``--device``."""
    made = argparse.ArgumentParser(description=about)
    made.add_argument("--device", default="cuda:0")
    return made


def require_gpu() -> None:
    """End the script with 4 where there is no device."""
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: nothing was run", file=sys.stderr)
        raise SystemExit(4)


def definition(
    name: str,
    op_type: str,
    axes: dict[str, int | None],
    inputs: dict[str, str],
    outputs: dict[str, str],
    reference: str,
    **more: Any,
) -> dict[str, Any]:
    """Return a record; tensors are written as ``"rows,columns float32"``."""

    def tensors(specs: dict[str, str]) -> dict[str, Any]:
        parts = {key: spec.rpartition(" ") for key, spec in specs.items()}
        return {
            key: {"shape": shape.split(",") if shape else None, "dtype": dtype}
            for key, (shape, _, dtype) in parts.items()
        }

    sizes = {
        axis: {"type": "var"} if size is None else {"type": "const", "value": size}
        for axis, size in axes.items()
    }
    record = {"name": name, "op_type": op_type, "axes": sizes, "reference": reference}
    return {**record, "inputs": tensors(inputs), "outputs": tensors(outputs), **more}


def solution(
    name: str, of: str, source: str, *, language: str = "python", into: bool = False
) -> dict[str, Any]:
    """Return a record of one file; ``into`` if it is handed its outputs."""
    spec = {"language": language, "target_hardware": ["cuda"], "entry_point": "main.py::run"}
    return {
        "name": name,
        "definition": of,
        "author": "tests",
        "spec": {**spec, "destination_passing_style": into},
        "sources": [{"path": "main.py", "content": source}],
    }


def traces_of(dataset: Path) -> list[dict[str, Any]]:
    """Return the traces that a dataset holds."""
    files = sorted(dataset.glob("traces/**/*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def run_fib(
    dataset: Path, device: str, *flags: str, limit_s: float | None = None, **environment: str
) -> tuple[float, bool]:
    """Evaluate solutions of a dataset; return the seconds, and whether the limit was enough."""
    command = [*FIB, "run", "--local", str(dataset), "--device", device, "--seed", "1", *flags]
    began, code = time.monotonic(), None
    variables = os.environ | environment
    with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL) as process:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
    if code not in (None, 0, 1):
        raise SystemExit(f"{' '.join(command)}: exit code {code}")
    return time.monotonic() - began, code is not None


def run_sample(dataset: Path, cache: Path, device: str, *flags: str) -> float:
    """Evaluate solutions on a copy of the sample dataset; return the seconds."""
    shutil.copytree(SAMPLE, dataset)
    environment = {"FIB_CACHE_PATH": str(cache), "TRITON_CACHE_DIR": str(cache / "of-triton")}
    return run_fib(dataset, device, *flags, **environment)[0]


def sample_traces(cache: Path, device: str, *flags: str) -> tuple[float, list[dict[str, Any]]]:
    """Evaluate solutions of the sample dataset; return the seconds, and the traces."""
    with tempfile.TemporaryDirectory() as scratch:
        seconds = run_sample(Path(scratch, "dataset"), cache, device, *flags)
        return seconds, traces_of(Path(scratch, "dataset"))


def wrong_verdicts(traces: list[dict[str, Any]], names: list[str]) -> list[str]:
    """Return the verdicts on the named solutions that are not as expected, or are missing."""
    got = {(t["solution"], t["workload"]["uuid"]): t["evaluation"] for t in traces}
    found = []
    for name in names:
        for uuid, status in EXPECTED[name]["status"].items():
            evaluation = got.get((name, uuid), {"status": "missing", "log": ""})
            if evaluation["status"] != status:
                log = (evaluation["log"] or "").strip()[-300:]
                found.append(f"{name}: {evaluation['status']}, expected {status}: {log}")
    return found


def run_checks(checks: Mapping[str, Callable[[], Any]]) -> dict[str, dict[str, Any]]:
    """Make checks, which may return figures or a remark; return what became of each."""
    found = {}
    for name, check in checks.items():
        began = time.monotonic()
        try:
            told = check() or {}
            result = {"ok": True, **(told if isinstance(told, dict) else {"told": told})}
        except Exception:  # noqa: BLE001 - the other checks are to be made as well
            result = {"ok": False, "error": traceback.format_exc()[-6000:]}
        result["seconds"] = round(time.monotonic() - began, 2)
        found[name] = result
        print(name, "ok" if result["ok"] else "failed", file=sys.stderr, flush=True)
    return found


def failed(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of the checks that did not go well."""
    return [name for name, each in found.items() if not each["ok"]]


def told(report: Mapping[str, Any], bad: object) -> int:
    """Print a report; return the exit code."""
    print(json.dumps(report, indent=1, default=str))
    return 1 if bad else 0
