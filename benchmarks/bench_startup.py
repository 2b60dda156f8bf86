"""How long ``fib`` and ``import flashinfer_bench`` take to start: ``python bench_startup.py``.

Each command runs in a process of its own, many times and in turns, so that a change in the load of
the machine meets all of them alike. CPU time is steadier than wall time on a busy machine. Prints
JSON, times in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

PYTHON = sys.executable
COMMANDS = {
    "python (nothing)": [PYTHON, "-c", "pass"],
    "import typer": [PYTHON, "-c", "import typer"],
    "import flashinfer_bench": [PYTHON, "-c", "import flashinfer_bench"],
    "import flashinfer_bench.data": [PYTHON, "-c", "import flashinfer_bench.data"],
    "fib --help": [PYTHON, "-m", "flashinfer_bench", "--help"],
    "fib --version": [PYTHON, "-m", "flashinfer_bench", "--version"],
    "fib run --help": [PYTHON, "-m", "flashinfer_bench", "run", "--help"],
    "fib plugins list": [PYTHON, "-m", "flashinfer_bench", "plugins", "list"],
}


def run_once(command: list[str]) -> tuple[float, float]:
    """Return wall and CPU milliseconds of one process."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed with {process.returncode}")
    return 1e3 * wall, 1e3 * (usage.ru_utime + usage.ru_stime)


def summary(samples: list[float]) -> dict[str, float]:
    """Return the smallest and the median sample."""
    return {"min": round(min(samples), 1), "median": round(statistics.median(samples), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for command in COMMANDS.values():
        run_once(command)  # fills the file cache and writes bytecode
    for _ in range(repeats):
        for name, command in COMMANDS.items():
            samples[name].append(run_once(command))
    report = {
        "benchmark": "startup",
        "unit": "ms",
        "repeats": repeats,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "results": {
            name: {
                "wall": summary([wall for wall, _ in taken]),
                "cpu": summary([cpu for _, cpu in taken]),
            }
            for name, taken in samples.items()
        },
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
