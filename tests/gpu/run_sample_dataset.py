"""Run the sample dataset on a CUDA device, and check every verdict.

Start it in an environment where core and the plugins are installed (or on ``PYTHONPATH``)::

    python tests/gpu/run_sample_dataset.py [--device cuda:0]

It prints one JSON object: the machine, wall times of the isolated and the persistent runner, what
an evaluation costs beyond the solution's own work, and the verdicts that differ from
``examples/sources/expected.json``. Exit code 1 if any differs.
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
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "examples" / "sample-dataset"
EXPECTED = json.loads((ROOT / "examples" / "sources" / "expected.json").read_text())


def run(device: str, *flags: str) -> tuple[float, list[dict]]:
    """Run the sample dataset; return wall seconds and the traces written."""
    with tempfile.TemporaryDirectory() as scratch:
        dataset = Path(scratch) / "dataset"
        shutil.copytree(SAMPLE, dataset)
        environment = os.environ | {"FIB_CACHE_PATH": str(Path(scratch) / "cache")}
        command = [sys.executable, "-m", "flashinfer_bench", "run", "--local", str(dataset)]
        began = time.monotonic()
        subprocess.run(
            [*command, "--device", device, "--seed", "1", *flags],
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        seconds = time.monotonic() - began
        files = sorted(dataset.glob("traces/**/*.jsonl"))
        return seconds, [
            json.loads(line) for file in files for line in file.read_text().splitlines()
        ]


def surprises(traces: list[dict]) -> list[str]:
    """Verdicts that differ from the expected ones."""
    found = []
    for trace in traces:
        allowed = EXPECTED[trace["solution"]]["status"][trace["workload"]["uuid"]]
        status = trace["evaluation"]["status"]
        if status != allowed:
            last = (trace["evaluation"]["log"] or "").strip().splitlines()[-1:]
            found.append(f"{trace['solution']}: {status}, expected {allowed}: {last}")
    return found


def not_run(traces: list[dict]) -> list[str]:
    """Solutions that have no trace; those in C++ are for the CPU."""
    seen = {trace["solution"] for trace in traces}
    wanted = [name for name, row in EXPECTED.items() if row["language"] != "cpp"]
    return [f"{name}: not run" for name in wanted if name not in seen]


def costs(traces: list[dict]) -> dict[str, float]:
    """Median build and evaluation wall time in milliseconds over the traces that passed."""
    passed = [t["evaluation"] for t in traces if t["evaluation"]["status"] == "PASSED"]
    wall = [e["provenance"]["wall_s"] * 1000 for e in passed]
    build = [e["provenance"]["build_s"] * 1000 for e in passed]
    return {"evaluation_wall_ms": statistics.median(wall), "build_ms": statistics.median(build)}


def main() -> int:
    """Run both runners and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    device = parser.parse_args().device
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: nothing was run", file=sys.stderr)
        return 4
    report: dict = {"device": torch.cuda.get_device_name(device), "torch": torch.__version__}
    wrong: list[str] = []
    for name, flags in {"persistent": (), "isolated": ("--use-isolated-runner",)}.items():
        seconds, traces = run(device, *flags)
        wrong += surprises(traces) + not_run(traces)
        timers = {t["evaluation"].get("provenance", {}).get("timer") for t in traces}
        report[name] = {
            "evaluations": len(traces),
            "wall_s": round(seconds, 2),
            "wall_ms_per_evaluation": round(1000 * seconds / len(traces), 1),
            "timers": sorted(map(str, timers)),
            **{key: round(value, 2) for key, value in costs(traces).items()},
        }
    report["surprises"] = wrong
    print(json.dumps(report, indent=2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
