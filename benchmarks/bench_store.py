"""Time and memory of questions to large datasets: ``python benchmarks/bench_store.py`` prints JSON.

For each size a dataset is generated (or taken from ``--keep``). Every measurement is taken in a
process of its own: ``cold`` without an index, ``warm`` with one, ``grown`` after one trace was
appended, ``plain`` with all traces in memory. ``models`` is what it takes to make the traces with
the models alone, line by line, garbage collector on: the ordinary way of reading such files.
Times are CPU seconds after the imports, the lowest of ``--repeats`` processes, since others may use
the machine; ``growth_mib`` is the growth of the largest resident memory since the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_data import peak_rss_mib as peak_with_parent
from generate_dataset import generate

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (10_000, 100_000)
MODES = ("models", "plain", "cold", "warm", "grown")


def peak_rss_mib() -> float:
    """Return the largest resident memory of this program, in MiB.

    What `getrusage` says includes that of the parent before it started this program.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return peak_with_parent()
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def take(seconds: dict[str, float], name: str, step: Callable[[], Any]) -> Any:
    """Run a step and note its CPU time."""
    start = time.process_time()
    result = step()
    seconds[name] = round(time.process_time() - start, 6)
    return result


def read_with_models(path: Path) -> int:
    """Make every trace with the models alone."""
    from flashinfer_bench.data import Trace

    traces = []
    for file in sorted(path.glob("traces/**/*.jsonl")):
        with file.open("rb") as lines:
            traces += [Trace.model_validate_json(line) for line in lines]
    return len(traces)


def measure(path: Path, mode: str) -> dict[str, Any]:
    """Ask one dataset, in this process."""
    from flashinfer_bench.data import TraceSet

    seconds: dict[str, float] = {}
    before = peak_rss_mib()
    if mode == "models":
        take(seconds, "read", lambda: read_with_models(path))
        return {"seconds": seconds, "growth_mib": round(peak_rss_mib() - before, 1)}
    one = take(seconds, "from_path", lambda: TraceSet.from_path(path))
    if mode == "plain":
        take(seconds, "traces", lambda: one.traces)
    take(seconds, "first_answer", one.summary)
    growth = round(peak_rss_mib() - before, 1)
    names = iter(one.definitions)
    first, second = next(names), next(names)
    take(seconds, "get_best_trace", lambda: one.get_best_trace(first))
    take(seconds, "get_best_trace_of_another", lambda: one.get_best_trace(second))
    take(seconds, "filter_traces", lambda: one.filter_traces(first))
    take(seconds, "summary", one.summary)
    take(seconds, "rank_authors", one.rank_authors)
    take(seconds, "run_rows", lambda: sum(1 for _ in one.run_rows()))
    return {"seconds": seconds, "growth_mib": growth}


def append_one(path: Path) -> None:
    """Write the first trace of the first file once more."""
    from flashinfer_bench.data.storage import append_lines

    file = min(path.glob("traces/**/*.jsonl"))
    with file.open("rb") as lines:
        append_lines(file, [lines.readline()])


def in_new_process(path: Path, mode: str, cache: Path) -> dict[str, Any]:
    """Run `measure` in a process of its own."""
    if mode == "cold":
        shutil.rmtree(cache, ignore_errors=True)
    if mode == "grown":
        append_one(path)
    command = [sys.executable, __file__, "--measure", str(path), "--mode", mode]
    environment = {**os.environ, "FIB_CACHE_PATH": str(cache)}
    result = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def lowest(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the lowest time of each step over several runs, and the largest growth."""
    steps = {step: min(run["seconds"][step] for run in runs) for step in runs[0]["seconds"]}
    return {"seconds": steps, "growth_mib": max(run["growth_mib"] for run in runs)}


def bench_size(folder: Path, traces: int, repeats: int, modes: list[str]) -> dict[str, Any]:
    """Measure one size of dataset."""
    path = folder / f"traces_{traces}"
    if not path.exists():
        generate(path, traces=traces)
    time.sleep(2.5)  # files that were just written are looked at more closely
    cache = folder / "cache"
    result: dict[str, Any] = {"traces": traces}
    for mode in modes:
        count = 1 if mode == "models" else repeats
        result[mode] = lowest([in_new_process(path, mode, cache) for _ in range(count)])
    return result


def main() -> None:
    """Parse the command line, measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of traces")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each kind")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--keep", type=Path, help="folder to keep the generated datasets in")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given.mode)))
        return
    with tempfile.TemporaryDirectory(prefix="bench_store_") as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = [bench_size(folder, size, given.repeats, given.modes) for size in given.sizes]
    print(json.dumps({"python": platform.python_version(), "datasets": found}, indent=2))


if __name__ == "__main__":
    main()
