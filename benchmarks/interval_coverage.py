"""Coverage of the intervals of medians: ``python benchmarks/interval_coverage.py --runs 2000``.

Takes runs of made-up timers whose true median is known (``core/tests/stats/synthetic.py``), asks
`median_interval` for 95 %, and counts how many intervals hold the truth. Beside each share stand
the median of the half-widths in percent of the latency, and milliseconds for one interval. 93 to
97 % is promised for the timers above the line; those below are there to show where the promise
ends. Exit code 1 if one above the line is outside. ``--json`` prints the same as data.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashinfer_bench.stats.intervals import median_interval

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[1]
COUNTS = (30, 150, 600)
PROMISED = (0.93, 0.97)


def load_synthetic() -> ModuleType:
    """Return the module of made-up timers, which belongs to the tests."""
    path = ROOT / "core" / "tests" / "stats" / "synthetic.py"
    spec = importlib.util.spec_from_file_location("fib_synthetic_timers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def measure(task: tuple[str, int, int, int]) -> dict[str, Any]:
    """Take runs of one timer and one length."""
    name, count, runs, seed = task
    timer = next(timer for timer in load_synthetic().TIMERS if timer.name == name)
    rng = random.Random(f"{seed} {name} {count}")
    held, widths, spent = 0, [], 0.0
    for _ in range(runs):
        samples, true = timer.take(rng, count)
        begin = time.process_time()
        interval = median_interval(samples, resolution=timer.resolution)
        spent += time.process_time() - begin
        held += interval.low <= true <= interval.high
        widths.append(100 * (interval.high - interval.low) / 2 / interval.estimate)
    return {
        "timer": name,
        "promised": timer.promised,
        "n": count,
        "coverage": held / runs,
        "half_width_percent": statistics.median(widths),
        "ms": 1e3 * spent / runs,
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print one line for each timer."""
    columns = "".join(f"{f'n = {count}':>24}" for count in COUNTS)
    print(f"{'timer':14}{columns}\n{'':14}" + f"{'held %   +-%    ms':>24}" * len(COUNTS))
    promised = True
    for name in dict.fromkeys(row["timer"] for row in rows):
        mine = [row for row in rows if row["timer"] == name]
        if promised and not mine[0]["promised"]:
            print("-" * (14 + 24 * len(COUNTS)))
        promised = mine[0]["promised"]
        cells = (
            f"{100 * row['coverage']:12.1f} {row['half_width_percent']:5.2f} {row['ms']:5.2f}"
            for row in mine
        )
        print(f"{name:14}" + "".join(cells))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timer", action="append", help="only this one; repeatable")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = [timer.name for timer in load_synthetic().TIMERS]
    names = [name for name in names if not options.timer or name in options.timer]
    tasks = [(name, count, options.runs, options.seed) for name in names for count in COUNTS]
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(measure, tasks))
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        print_table(rows)
    low, high = PROMISED
    return int(any(row["promised"] and not low <= row["coverage"] <= high for row in rows))


if __name__ == "__main__":
    sys.exit(main())
