"""How honest the judge's figures are: ``python benchmarks/judge_honesty.py --runs 20 --load 0 3``.

Evaluates some solutions of the sample dataset, and a copy of each under another name, again and
again, with so many busy loops beside them. It prints for each solution and load: how often its
interval missed the truth, which is the median of all runs without load, by more than 5 %; how often
the intervals of both copies overlap, so that they are tied; how many evaluations were disputed, or
did not pass; the median half-width of the intervals; and seconds for one evaluation. ``--json``
prints the same as data.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.session import PersistentRunner
from flashinfer_bench.data import TraceSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.data import Evaluation

SAMPLE = Path(__file__).parents[1] / "examples" / "sample-dataset"
SOLUTIONS = ("baseline_rmsnorm", "alice_rmsnorm_inplace", "frank_rmsnorm_cpp")
ROWS = 32
MISS = 0.05


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Have so many busy loops beside the body of a ``with`` statement."""
    loops = [multiprocessing.Process(target=spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()


def evaluations(load: int, runs: int, names: list[str]) -> dict[str, list[Evaluation]]:
    """Evaluate solutions and their copies under a load, by name."""
    dataset = TraceSet.from_path(SAMPLE)
    definition = dataset.definitions["rmsnorm_h512"]
    originals = [one for one in dataset.solutions[definition.name] if one.name in names]
    copies = [one.model_copy(update={"name": f"{one.name}_copy"}) for one in originals]
    traces = dataset.workloads[definition.name]
    workload = next(t.workload for t in traces if t.workload.axes["batch_size"] == ROWS)
    found: dict[str, list[Evaluation]] = {}
    with PersistentRunner("cpu") as runner, busy(load):
        for _ in range(runs):
            # Fresh settings draw a fresh seed.
            config = BenchmarkConfig.default()
            done = runner.run_workload(definition, workload, [*originals, *copies], config, SAMPLE)
            for name, evaluation in done.items():
                found.setdefault(name, []).append(evaluation)
    return found


def row(
    name: str, load: int, found: dict[str, list[Evaluation]], truth_ms: float
) -> dict[str, Any]:
    """Sum up what came of a solution and its copy."""
    pairs = list(zip(found[name], found[f"{name}_copy"], strict=True))
    every = [one for pair in pairs for one in pair]
    passed = [one.performance for one in every if one.performance is not None]
    both = [
        (one.performance.interval_ms, other.performance.interval_ms)
        for one, other in pairs
        if one.performance is not None and other.performance is not None
    ]
    missed = sum(
        one.interval_ms[0] > truth_ms * (1 + MISS) or one.interval_ms[1] < truth_ms * (1 - MISS)
        for one in passed
    )
    tied = sum(a[0] <= b[1] and b[0] <= a[1] for a, b in both)
    widths = [(p.interval_ms[1] - p.interval_ms[0]) / 2 / p.latency_ms for p in passed]
    disputed = sum(one.correctness is not None and one.correctness.disputed for one in every)
    return {
        "solution": name,
        "load": load,
        "evaluations": len(every),
        "truth_us": 1e3 * truth_ms,
        "median_us": 1e3 * statistics.median(p.latency_ms for p in passed),
        "missed_percent": 100 * missed / len(passed),
        "tied_percent": 100 * tied / len(both),
        "disputed": disputed,
        "not_passed": len(every) - len(passed),
        "half_width_percent": 100 * statistics.median(widths),
        "seconds": statistics.median(one.provenance.wall_s for one in every),
    }


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--load", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--solution", action="append", help="only this one; repeatable")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = [name for name in SOLUTIONS if not options.solution or name in options.solution]
    quiet = evaluations(0, options.runs, names)
    truths = {
        name: statistics.median(
            one.performance.latency_ms
            for key in (name, f"{name}_copy")
            for one in quiet[key]
            if one.performance is not None
        )
        for name in names
    }
    rows = []
    for load in options.load:
        found = evaluations(load, options.runs, names) if load else quiet
        rows += [row(name, load, found, truths[name]) for name in names]
        if not options.json:
            print(
                *(
                    " ".join(f"{k}={told(v)}" for k, v in one.items())
                    for one in rows[-len(names) :]
                ),
                sep="\n",
            )
    if options.json:
        print(json.dumps(rows, indent=1))
    return 0


def told(value: Any) -> str:
    """Return a figure as it is printed."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
