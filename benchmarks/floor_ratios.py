"""How far honest latencies are above their floors: ``python floor_ratios.py [--dataset DIR]``.

Calibrates the device, runs a dataset whose solutions are honest, and prints the smallest ratios of
a latency to its floor. Exit code 1 if one is below 1, and 2 if the machine was too busy for a
calibration: then there are no floors.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sample_runs import SAMPLE, Run, run_dataset

from fib_judge.calibration import Ceilings, calibrate
from fib_judge.floor import physics_floor
from flashinfer_bench.data import TraceSet

_ATTEMPTS = 4


def settled_ceilings(device: str) -> Ceilings:
    """Calibrate, again if need be, until the figures settle."""
    found = calibrate(device)
    for _ in range(_ATTEMPTS):
        if found.settled:
            break
        found = calibrate(device).merged(found)
    return found


def ratios(dataset: Path, run: Run, ceilings: Ceilings) -> list[dict[str, Any]]:
    """Return the ratio of each latency to its floor, smallest first."""
    definitions = TraceSet.from_path(str(dataset)).definitions
    axes = {
        (trace["solution"], trace["workload"]["uuid"]): (
            trace["definition"],
            trace["workload"]["axes"],
        )
        for trace in run.traces
    }
    rows = []
    for key, latency_ms in run.latencies().items():
        name, values = axes[key]
        floor = physics_floor(definitions[name], values, ceilings)
        rows.append(
            {
                "ratio": latency_ms / floor.ms if floor.ms else None,
                "solution": key[0],
                "latency_ms": latency_ms,
                "floor_ms": floor.ms,
                "limited_by": floor.limited_by,
            }
        )
    return sorted(rows, key=lambda row: row["ratio"] or 0.0)


def main() -> int:
    """Measure, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", type=Path, default=SAMPLE)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sandbox", default="auto")
    options = parser.parse_args()
    ceilings = settled_ceilings(options.device)
    if not ceilings.settled:
        print("the machine is too busy: its ceilings do not settle", file=sys.stderr)
        return 2
    run = run_dataset(
        *(options.dataset, "--trust", "off", "--device", options.device),
        *("--sandbox", options.sandbox),
    )
    rows = ratios(options.dataset, run, ceilings)
    under = [row for row in rows if row["ratio"] < 1]
    summary = {
        "latencies": len(rows),
        "smallest_ratio": rows[0]["ratio"],
        "under_the_floor": under,
        "limited_by": {
            limit: sum(row["limited_by"] == limit for row in rows)
            for limit in ("bytes", "flops", "call")
        },
        "nearest": rows[:8],
        "ceilings": ceilings.to_json(),
    }
    print(json.dumps(summary, indent=2))
    return 1 if under else 0


if __name__ == "__main__":
    sys.exit(main())
