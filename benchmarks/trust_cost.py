"""What trusting no solution costs: ``python trust_cost.py [--rounds 3] [--dataset DIR]``.

Runs the sample dataset with ``--trust full`` and with ``--trust off`` in turn, several times, and
prints how the wall times and, for each solution that passes, the latencies compare. Turns, because
a machine that gets slower or faster meanwhile does so for both. There is no limit that any of it is
held against.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from sample_runs import SAMPLE, Run, run_dataset

MODES = ("full", "off")


def rounds(dataset: Path, count: int, *options: str) -> dict[str, list[Run]]:
    """Run the dataset `count` times in each mode, in turn, and in the other order each time."""
    found: dict[str, list[Run]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="fib-trust-") as cache:
        run_dataset(dataset, "--trust", "off", *options, cache=Path(cache))  # builds everything
        for index in range(count):
            for mode in MODES if index % 2 else reversed(MODES):
                found[mode].append(
                    run_dataset(dataset, "--trust", mode, *options, cache=Path(cache))
                )
    return found


def wall_times(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Return wall times by mode, and the ratio of each pair."""
    seconds = {mode: [run.wall_s for run in runs[mode]] for mode in MODES}
    ratios = [full / off for full, off in zip(*seconds.values(), strict=True)]
    return {
        **{f"{mode}_s": [round(value, 2) for value in seconds[mode]] for mode in MODES},
        "ratio_median": round(median(ratios), 3),
        "ratio_lowest": round(min(ratios), 3),
        "ratio_highest": round(max(ratios), 3),
    }


def latencies(runs: dict[str, list[Run]]) -> list[dict[str, Any]]:
    """Return the median latencies of what passed in every run, by mode, and their difference."""
    taken = {mode: [run.latencies() for run in runs[mode]] for mode in MODES}
    common = set.intersection(*(set(each) for mode in MODES for each in taken[mode]))
    rows = []
    for solution, workload in sorted(common):
        full, off = (median(each[solution, workload] for each in taken[mode]) for mode in MODES)
        difference = 100 * (full / off - 1)
        rows.append(
            {
                "solution": solution,
                "workload": workload[:8],
                "full_ms": full,
                "off_ms": off,
                "difference_percent": round(difference, 2),
            }
        )
    return sorted(rows, key=lambda row: -abs(row["difference_percent"]))


def disagreements(runs: dict[str, list[Run]]) -> list[str]:
    """Return the evaluations whose status is not the same in all runs."""
    statuses: dict[tuple[str, str], set[str]] = {}
    for mode in MODES:
        for run in runs[mode]:
            for trace in run.traces:
                key = (trace["solution"], trace["workload"]["uuid"])
                statuses.setdefault(key, set()).add(trace["evaluation"]["status"])
    return [
        f"{solution} on {workload}: {', '.join(sorted(found))}"
        for (solution, workload), found in sorted(statuses.items())
        if len(found) > 1
    ]


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", type=Path, default=SAMPLE)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--definitions", nargs="*", default=[], help="only these")
    options = parser.parse_args()
    extra = ["--device", options.device, "--seed", "1", "--sandbox", options.sandbox]
    if options.definitions:
        extra += ["--definitions", *options.definitions]
    runs = rounds(options.dataset, options.rounds, *extra)
    walls, rows = wall_times(runs), latencies(runs)
    differences = [row["difference_percent"] for row in rows]
    summary = {
        "evaluations": len(runs["full"][0].traces),
        **walls,
        "passed_in_all": len(rows),
        "difference_percent_median": round(median(differences), 2) if rows else None,
        "difference_percent_median_of_sizes": (
            round(median(map(abs, differences)), 2) if rows else None
        ),
        "disagreements": disagreements(runs),
    }
    if options.json:
        print(json.dumps({**summary, "latencies": rows}, indent=2))
        return
    print(f"{'solution':<50} {'workload':<9} {'full ms':>10} {'off ms':>10} {'%':>8}")
    for row in rows:
        print(
            f"{row['solution']:<50} {row['workload']:<9} {row['full_ms']:>10.5f} "
            f"{row['off_ms']:>10.5f} {row['difference_percent']:>8.2f}"
        )
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
