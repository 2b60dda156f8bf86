"""What trusting no solution costs: ``python trust_cost.py [--rounds 2] [--pairs 4]``.

Two comparisons of ``--trust full`` with ``--trust off`` on a dataset:

- whole runs in turn, each in both modes, for the wall time;
- every solution by itself, in both modes directly after one another and in the other order each
  time, for the latency that is reported. A machine that gets slower or faster within minutes, as
  shared ones do, changes both of a pair alike; between whole runs it would be the whole difference.

It prints the ratios of the wall times, and for every evaluation that passed each time the median
difference of its pairs; then the median of these, with a 95 % interval from a bootstrap over the
evaluations. There is no limit that any of it is held against.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from sample_runs import SAMPLE, Run, run_dataset

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import TraceSet

MODES = ("full", "off")
_RESAMPLES = 2000

Key = tuple[str, str]
"""A solution, and the identifier of a workload."""
Latencies = dict[str, dict[Key, list[float]]]
"""By mode and evaluation, in milliseconds, in the order taken."""


def whole_runs(options: argparse.Namespace, cache: Path) -> dict[str, list[Run]]:
    """Run the dataset in each mode, in turn, and in the other order each time."""
    extra = ["--device", options.device, "--seed", "1", "--sandbox", options.sandbox]
    if options.definitions:
        extra += ["--definitions", *options.definitions]
    found: dict[str, list[Run]] = {mode: [] for mode in MODES}
    run_dataset(options.dataset, "--trust", "off", *extra, cache=cache)  # builds everything
    for index in range(options.rounds):
        for mode in in_turn(index):
            found[mode].append(run_dataset(options.dataset, "--trust", mode, *extra, cache=cache))
    return found


def in_turn(index: int) -> tuple[str, ...]:
    """Return the modes, in the other order for every other index."""
    return MODES if index % 2 else MODES[::-1]


def wall_times(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Return wall times by mode, and the ratio of each pair."""
    seconds = {mode: [run.wall_s for run in runs[mode]] for mode in MODES}
    ratios = [full / off for full, off in zip(*seconds.values(), strict=True)]
    return {
        **{f"{mode}_s": [round(value, 2) for value in seconds[mode]] for mode in MODES},
        "wall_ratio_median": round(median(ratios), 3),
        "wall_ratio_lowest": round(min(ratios), 3),
        "wall_ratio_highest": round(max(ratios), 3),
    }


def paired_latencies(options: argparse.Namespace, names: list[str], cache: Path) -> Latencies:
    """Evaluate the named solutions one by one, in both modes directly after one another."""
    os.environ["FIB_CACHE_PATH"] = str(cache)
    taken: Latencies = {mode: {} for mode in MODES}
    with ExitStack() as stack:
        dataset = TraceSet.from_path(str(options.dataset))
        benches = {mode: stack.enter_context(Benchmark(dataset)) for mode in MODES}
        for name in names:
            for index in range(options.pairs):
                for mode in in_turn(index):
                    config = BenchmarkConfig.default(
                        device=options.device,
                        trust=mode,
                        sandbox=options.sandbox,
                        solutions=[name],
                        log_level="ERROR",
                    )
                    note(taken[mode], benches[mode].evaluate(config))
    return taken


def note(taken: dict[Key, list[float]], results: TraceSet) -> None:
    """Add the latencies of what passed."""
    for group in results.traces.values():
        for trace in group:
            performance = trace.evaluation.performance
            if performance is not None and trace.evaluation.status.value == "PASSED":
                key = (trace.solution, trace.workload.uuid)
                taken.setdefault(key, []).append(performance.latency_ms)


def compare(taken: Latencies, pairs: int) -> list[dict[str, Any]]:
    """Return the median difference of the pairs of every evaluation that passed each time."""
    rows = []
    for key in sorted(set(taken["full"]) & set(taken["off"])):
        full, off = (taken[mode][key] for mode in MODES)
        if len(full) != pairs or len(off) != pairs:
            continue
        differences = [100 * (a / b - 1) for a, b in zip(full, off, strict=True)]
        rows.append(
            {
                "solution": key[0],
                "workload": key[1][:8],
                "full_ms": median(full),
                "off_ms": median(off),
                "difference_percent": round(median(differences), 2),
            }
        )
    return sorted(rows, key=lambda row: -abs(row["difference_percent"]))


def interval(values: list[float]) -> list[float]:
    """Return a 95 % interval of the median, by resampling with replacement."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return [round(medians[int(_RESAMPLES * part)], 2) for part in (0.025, 0.975)]


def disagreements(runs: dict[str, list[Run]]) -> list[str]:
    """Return the evaluations whose status is not the same in all runs, and in which it was what."""
    statuses: dict[Key, dict[str, list[str]]] = {}
    for mode in MODES:
        for run in runs[mode]:
            for trace in run.traces:
                key = (trace["solution"], trace["workload"]["uuid"])
                evaluation = trace["evaluation"]
                first_line = evaluation.get("log", "").partition("\n")[0]
                told = evaluation["status"] + (
                    f" ({first_line})" if evaluation["status"] != "PASSED" else ""
                )
                statuses.setdefault(key, {}).setdefault(mode, []).append(told)
    return [
        f"{solution} on {workload}: {json.dumps(by_mode)}"
        for (solution, workload), by_mode in sorted(statuses.items())
        if len({told.partition(" ")[0] for each in by_mode.values() for told in each}) > 1
    ]


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", type=Path, default=SAMPLE)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument("--rounds", type=int, default=2, help="whole runs in each mode")
    parser.add_argument("--pairs", type=int, default=4, help="of evaluations, for each solution")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--definitions", nargs="*", default=[], help="only these")
    return parser.parse_args()


def main() -> None:
    """Run everything and print it."""
    options = parse()
    with tempfile.TemporaryDirectory(prefix="fib-trust-") as scratch:
        runs = whole_runs(options, Path(scratch))
        passed = sorted({name for run in runs["off"] for name, _ in run.latencies()})
        rows = compare(paired_latencies(options, passed, Path(scratch)), options.pairs)
    differences = [row["difference_percent"] for row in rows]
    summary = {
        "evaluations": len(runs["full"][0].traces),
        **wall_times(runs),
        "disagreements": disagreements(runs),
        "pairs": options.pairs,
        "compared": len(rows),
        "difference_percent_median": round(median(differences), 2) if rows else None,
        "difference_percent_interval": interval(differences) if rows else None,
        "difference_percent_median_of_sizes": (
            round(median(map(abs, differences)), 2) if rows else None
        ),
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
