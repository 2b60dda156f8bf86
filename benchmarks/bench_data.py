"""Time and memory of the data layer: ``python benchmarks/bench_data.py`` prints JSON.

For each size a dataset is generated (or taken from ``--keep``), and every measurement is taken in a
process of its own, so that one does not warm up or grow the next. Times are CPU seconds of the
process, the median over ``--repeats`` processes; ``peak_rss_mib`` is the largest memory of a
process until then, ``before_mib`` what it had after importing the library.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generate_dataset import generate

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (1_200, 10_000, 100_000)


def peak_rss_mib() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10), 1)


class Stopwatch:
    """Collects the CPU time of named steps and the peak memory after each."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peaks: dict[str, float] = {}

    def measure(self, name: str, step: Callable[[], Any]) -> Any:
        """Run `step` once and return its result."""
        start = time.process_time()
        result = step()
        self.seconds[name] = time.process_time() - start
        self.peaks[name] = peak_rss_mib()
        return result


def measure_dataset(path: Path) -> dict[str, Any]:
    """Run every query once on one dataset, in this process.

    Parameters
    ----------
    path : Path
        The dataset.

    Returns
    -------
    dict
        Seconds and peak memory by step.
    """
    watch = Stopwatch()
    start = time.process_time()
    from flashinfer_bench.data import TraceSet

    watch.seconds["import"] = time.process_time() - start
    before = peak_rss_mib()

    def load() -> TraceSet:
        trace_set = TraceSet.from_path(path)
        trace_set.traces  # noqa: B018 - they are read on first use
        return trace_set

    trace_set = watch.measure("from_path", load)
    watch.measure("summary", trace_set.summary)
    watch.measure("rank_authors", trace_set.rank_authors)
    first = next(iter(trace_set.definitions))
    watch.measure("get_best_trace", lambda: trace_set.get_best_trace(first))
    problems = [
        (name, trace.workload.axes)
        for name, group in trace_set.workloads.items()
        for trace in group
    ]
    watch.measure(
        "get_best_trace_all_workloads",
        lambda: [trace_set.get_best_trace(name, axes) for name, axes in problems],
    )
    watch.measure(
        "filter_traces_all", lambda: list(map(trace_set.filter_traces, trace_set.definitions))
    )
    watch.measure("to_dict", trace_set.to_dict)
    return {"seconds": watch.seconds, "peak_rss_mib": watch.peaks, "before_mib": before}


def in_new_process(path: Path) -> dict[str, Any]:
    """Run `measure_dataset` in a process of its own."""
    command = [sys.executable, __file__, "--measure", str(path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(output)
    return result


def median_of(runs: list[dict[str, Any]], key: str) -> dict[str, float]:
    """Return the median of each step over several runs."""
    return {
        step: round(statistics.median(run[key][step] for run in runs), 6) for step in runs[0][key]
    }


def bench_size(folder: Path, traces: int, repeats: int) -> dict[str, Any]:
    """Measure one size of dataset.

    Parameters
    ----------
    folder : Path
        Where the dataset is, or is to be generated.
    traces : int
        Number of traces.
    repeats : int
        Number of processes.
    """
    path = folder / f"traces_{traces}"
    if not path.exists():
        generate(path, traces=traces)
    runs = [in_new_process(path) for _ in range(repeats)]
    return {
        "traces": traces,
        "before_mib": statistics.median(run["before_mib"] for run in runs),
        "cpu_s": median_of(runs, "seconds"),
        "peak_rss_mib": median_of(runs, "peak_rss_mib"),
    }


def main() -> None:
    """Parse the command line, measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of traces")
    parser.add_argument("--repeats", type=int, default=3, help="processes per size")
    parser.add_argument("--keep", type=Path, help="folder to keep the generated datasets in")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure_dataset(given.measure)))
        return
    with tempfile.TemporaryDirectory(prefix="bench_data_") as scratch:
        folder = given.keep or Path(scratch)
        results = [bench_size(folder, size, given.repeats) for size in given.sizes]
    print(json.dumps({"python": platform.python_version(), "datasets": results}, indent=2))


if __name__ == "__main__":
    main()
