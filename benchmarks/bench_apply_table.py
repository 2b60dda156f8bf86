"""Time to get a table of solutions: ``python benchmarks/bench_apply_table.py`` prints JSON.

A dataset of 60 definitions, 600 solutions and 100,000 traces of 1.6 KB is generated (or taken from
``--dataset``). Each measurement is taken in a process of its own:

* ``cold``: there is no index of traces. Every file is read.
* ``warm``: there is one that is up to date. Definitions and solutions are read, and it is gone
  through.
* ``appended``: one trace file has grown since. Its end is read as well.

``load_s`` is the call of `ApplyTable.load_or_build`, with whatever it imports; ``import_s`` the
import of its module before; ``load_cpu_s`` the processor time of that call, ``thread_cpu_s`` what
of this is not in the threads that read and hash files, and ``cpu_s`` the processor time of the
whole process, start included. ``peak_rss_mib`` is the most memory that the process has held.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from generate_dataset import DEVICES, generate

CHILD = """
import json, sys, time
from pathlib import Path
start = time.perf_counter()
from flashinfer_bench.apply.table import ApplyTable
imported, cpu, own = time.perf_counter(), time.process_time(), time.thread_time()
table = ApplyTable.load_or_build(sys.argv[1], hardware=sys.argv[2])
done, used, own = time.perf_counter(), time.process_time(), time.thread_time() - own
status = Path("/proc/self/status")  # ru_maxrss would be that of the parent, if it had more
peak = status.read_text().partition("VmHWM:")[2].split()[0] if status.exists() else "nan"
print(json.dumps({
    "import_s": imported - start,
    "load_s": done - imported,
    "load_cpu_s": used - cpu,
    "thread_cpu_s": own,
    "cpu_s": time.process_time(),
    "peak_rss_mib": float(peak) / 1024,
    "keys": sum(len(one.choices) for one in table.definitions.values()),
    "torch": "torch" in sys.modules,
}))
"""


def measure(dataset: Path, cache: Path) -> dict[str, Any]:
    """Load the table once, in a new process."""
    environment = {**os.environ, "FIB_CACHE_PATH": str(cache)}
    command = [sys.executable, "-c", CHILD, str(dataset), DEVICES[0]]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def append(dataset: Path) -> None:
    """Let one trace file grow by a line."""
    file = min((dataset / "traces").rglob("*.jsonl"))
    line = file.read_bytes().partition(b"\n")[0]
    with file.open("ab") as out:
        out.write(line + b"\n")


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians, and the best and worst time of loading."""
    times = ("import_s", "load_s", "load_cpu_s", "thread_cpu_s", "cpu_s")
    found = {name: round(statistics.median(run[name] for run in runs), 3) for name in times}
    loads = [round(run["load_s"], 3) for run in runs]
    peak = max(run["peak_rss_mib"] for run in runs)
    return {
        **found,
        "load_s_range": [min(loads), max(loads)],
        "peak_rss_mib": round(peak, 1),
        "keys": runs[0]["keys"],
        "torch_imported": any(run["torch"] for run in runs),
    }


def run(dataset: Path, work: Path, repeats: int) -> dict[str, Any]:
    """Take all measurements of one dataset."""
    cache = work / "cache"
    results: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": [], "appended": []}
    measure(dataset, cache)  # so that the files are in the system's memory
    for _ in range(repeats):
        shutil.rmtree(cache, ignore_errors=True)
        results["cold"].append(measure(dataset, cache))
        results["warm"].append(measure(dataset, cache))
    for _ in range(repeats):
        append(dataset)
        results["appended"].append(measure(dataset, cache))
    return {name: summary(runs) for name, runs in results.items()}


def main() -> None:
    """Parse the command line, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dataset", type=Path, help="use a copy of this one, not a generated one")
    parser.add_argument("--traces", type=int, default=100_000)
    parser.add_argument("--log-bytes", type=int, default=480)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="fib-bench-") as folder:
        dataset = Path(folder) / "dataset"
        if given.dataset is None:
            generate(dataset, traces=given.traces, log_bytes=given.log_bytes)
        else:
            shutil.copytree(given.dataset, dataset)
        results = run(dataset, Path(folder), given.repeats)
        size = sum(path.stat().st_size for path in (dataset / "traces").rglob("*.jsonl"))
    print(
        json.dumps(
            {
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
                "load_average": [round(value, 2) for value in (load_before[0], os.getloadavg()[0])],
                "trace_mib": round(size / (1 << 20), 1),
                **results,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
