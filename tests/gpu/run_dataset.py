"""Run the solutions of any dataset on a CUDA device, and say which honest ones were doubted.

``python tests/gpu/run_dataset.py DATASET [--device cuda:0] [--seconds 540]``

Traces are written into the dataset; what has one is skipped, so a run that ``--seconds`` ended goes
on when the script is started again. It prints one JSON object: evaluations by status, those timed
by the host's clock, those measured again and disputed, the wall time and where most of it went.
Exit code 1 if any was measured again or disputed, 3 if the time was not enough for all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median

from common import FIB, parser, require_gpu, told, traces_of

ON_HOST = "calls wait for the device"
AGAIN = "measured twice"


def name_of(trace: dict) -> str:
    """Name the solution and the workload of a trace."""
    return f"{trace['solution']} {trace['workload']['uuid'][:8]}"


def run(dataset: Path, device: str, limit: float | None) -> tuple[float, bool]:
    """Evaluate what has no trace yet; return the seconds, and whether all was done."""
    command = [*FIB, "run", "--local", str(dataset), "--device", device]
    began = time.monotonic()
    with subprocess.Popen(
        [*command, "--resume", "--seed", "1"], stdout=subprocess.DEVNULL
    ) as process:
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            code = None
    if code not in (None, 0, 1):
        raise SystemExit(f"fib run: exit code {code}")
    return time.monotonic() - began, code is not None


def main() -> int:
    """Run, and print what became of it."""
    command = parser(__doc__)
    command.add_argument("dataset", type=Path)
    command.add_argument("--seconds", type=float, default=None)
    options = command.parse_args()
    require_gpu()
    import torch

    before = {(t["solution"], t["workload"]["uuid"]) for t in traces_of(options.dataset)}
    seconds, whole = run(options.dataset, options.device, options.seconds)
    found = [
        t
        for t in traces_of(options.dataset)
        if (t["solution"], t["workload"]["uuid"]) not in before
    ]
    logs = {name_of(t): t["evaluation"]["log"] or "" for t in found}
    disputed = [name for name, log in logs.items() if "disputed" in log]
    again = [name for name, log in logs.items() if AGAIN in log]
    wall = {name_of(t): t["evaluation"]["provenance"]["wall_s"] for t in found}
    slowest = sorted(wall, key=wall.__getitem__, reverse=True)[:20]
    report = {
        "device": torch.cuda.get_device_name(options.device),
        "cores": os.cpu_count(),
        "evaluations": len(found),
        "statuses": Counter(t["evaluation"]["status"] for t in found),
        "wall_s": round(seconds, 1),
        "whole": whole,
        "measured_again": again,
        "disputed": disputed,
        "timed_on_host": [name for name, log in logs.items() if ON_HOST in log],
        "evaluation_s": {
            "sum": round(sum(wall.values()), 1),
            "median": round(median(wall.values()), 3) if wall else None,
            "slowest": {name: round(wall[name], 1) for name in slowest},
        },
        "not_passed": {
            name_of(t): (t["evaluation"]["status"], logs[name_of(t)][-200:])
            for t in found
            if t["evaluation"]["status"] != "PASSED"
        },
    }
    return told(report, again or disputed) or (0 if whole else 3)


if __name__ == "__main__":
    sys.exit(main())
