"""Run the solutions of any dataset on a CUDA device, and say which honest ones were doubted.

``python tests/gpu/run_dataset.py DATASET [--device cuda:0] [--seconds 540]``

Traces are written into the dataset; what has one is skipped, so a run that ``--seconds`` ended goes
on when the script is started again. It prints one JSON object: evaluations by status, those timed
by the host's clock, those measured again and disputed, the wall time and where most of it went.
Exit code 1 if any was measured again or disputed, 3 if the time was not enough for all.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from statistics import median

from common import ON_HOST, parser, require_gpu, run_fib, told, traces_of

AGAIN = "measured twice"


def name_of(trace: dict) -> str:
    """Name the solution and the workload of a trace."""
    return f"{trace['solution']} {trace['workload']['uuid'][:8]}"


def main() -> int:
    """Run, and print what became of it."""
    command = parser(__doc__)
    command.add_argument("dataset", type=Path)
    command.add_argument("--seconds", type=float, default=None)
    options = command.parse_args()
    require_gpu()
    import torch

    before = set(map(name_of, traces_of(options.dataset)))
    seconds, whole = run_fib(options.dataset, options.device, "--resume", limit_s=options.seconds)
    traces = {name_of(trace): trace["evaluation"] for trace in traces_of(options.dataset)}
    found = {name: each for name, each in traces.items() if name not in before}
    logs = {name: each["log"] or "" for name, each in found.items()}
    disputed = [name for name, log in logs.items() if "disputed" in log]
    again = [name for name, log in logs.items() if AGAIN in log]
    wall = {name: each["provenance"]["wall_s"] for name, each in found.items()}
    slowest = sorted(wall, key=wall.__getitem__, reverse=True)[:20]
    report = {
        "device": torch.cuda.get_device_name(options.device),
        "cores": os.cpu_count(),
        "evaluations": len(found),
        "statuses": Counter(each["status"] for each in found.values()),
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
            name: (each["status"], logs[name][-200:])
            for name, each in found.items()
            if each["status"] != "PASSED"
        },
    }
    return told(report, again or disputed) or (0 if whole else 3)


if __name__ == "__main__":
    sys.exit(main())
