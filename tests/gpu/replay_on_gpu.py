"""Record traces on a CUDA device, look at what they say of it, and replay them.

Start it in an environment where core and the plugins are installed (or on ``PYTHONPATH``)::

    python tests/gpu/replay_on_gpu.py [--device cuda:0] [--definitions NAME ...]

It runs part of the sample dataset, prints what the traces record of driver, clocks, timer and
environment, how many bytes a trace takes without its log and samples, and what ``fib replay`` says
of each. Exit code 1 if a fact of the device is missing, or a replay is not reproducible.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "examples" / "sample-dataset"
FIB = [sys.executable, "-m", "flashinfer_bench"]
FACTS = ("driver", "sm_clock_mhz", "memory_clock_mhz", "host", "timer", "device", "plugins")


def record(dataset: Path, options: argparse.Namespace, environment: dict[str, str]) -> None:
    """Evaluate some solutions of the sample dataset."""
    shutil.copytree(SAMPLE, dataset)
    flags = [flag for name in options.definitions for flag in ("--definition", name)]
    command = [*FIB, "run", "--local", str(dataset), "--device", options.device, "--seed", "1"]
    subprocess.run([*command, *flags], check=False, env=environment, stdout=subprocess.DEVNULL)


def traces_of(dataset: Path) -> list[dict[str, Any]]:
    """Return the traces that a dataset holds."""
    files = sorted(dataset.glob("traces/**/*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def overhead(trace: dict[str, Any]) -> int:
    """Return how many bytes the provenance of a trace takes."""
    return len(json.dumps(trace["evaluation"]["provenance"], separators=(",", ":")))


def replayed(dataset: Path, options: argparse.Namespace, environment: dict[str, str]) -> Any:
    """Replay everything that passed; return the exit code and what was said."""
    command = [*FIB, "replay", "--local", str(dataset), "--json", "--device", options.device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        return done.returncode, {"error": done.stderr[-2000:]}
    return done.returncode, json.loads(done.stdout)


def main() -> int:
    """Record, look, replay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--definitions", nargs="*", default=["rmsnorm_h512", "gemm_n256_k256"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        environment = os.environ | {"FIB_CACHE_PATH": str(Path(scratch) / "cache")}
        dataset = Path(scratch) / "dataset"
        record(dataset, options, environment)
        traces = traces_of(dataset)
        passed = [trace for trace in traces if trace["evaluation"]["status"] == "PASSED"]
        code, said = replayed(dataset, options, environment)
    first = passed[0]["evaluation"]["provenance"] if passed else {}
    missing = [name for name in FACTS if not first.get(name)]
    replays = said.get("replays", said) if isinstance(said, dict) else said
    report = {
        "traces": len(traces),
        "passed": len(passed),
        "provenance": first,
        "missing": missing,
        "provenance_bytes": statistics.median(map(overhead, passed)) if passed else None,
        "replay_exit_code": code,
        "replay_verdicts": dict(Counter(one.get("verdict") for one in replays))
        if isinstance(replays, list)
        else said,
        "reasons": [one.get("reasons") for one in replays if one.get("reasons")][:10]
        if isinstance(replays, list)
        else [],
    }
    print(json.dumps(report, indent=2))
    bad = isinstance(replays, list) and any("not" in str(one.get("verdict")) for one in replays)
    return 1 if missing or bad or not passed else 0


if __name__ == "__main__":
    raise SystemExit(main())
