"""What the timers of a GPU make of kernels from 2 µs to 20 ms: agreement, spread, time needed.

Start it in an environment where core is installed (or on ``PYTHONPATH``); plugins with timers of
their own, such as fib_timing_cupti, take part where they are installed::

    python tests/gpu/timers_on_gpu.py [--device cuda:0] [--processes 5] [--calls 50]

Each fresh process times the same kernels with each timer, caches flushed before each call, and
prints its medians. The report is one JSON object: for each kernel and timer the median over
processes in microseconds, how far it is from the reference timer (``cupti`` if it is there, else
``cuda_event``), the spread of the median over processes, and the seconds that the samples took. It
exits with 1 if `cuda_event` and the reference timer differ by more than 2 %, or medians of
`cuda_event` or `cupti` spread by more than 1 %, on a kernel of 20 µs or more; or if a timer fails.

Everything that goes wrong is in the report with its traceback, so that one run tells all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.bench.timing import Timer

SPINS_US = (2, 5, 10, 20, 50, 100, 500, 2000, 20000)
PRODUCTS = (256, 1024, 2048, 4096, 8192)
COPIES_MIB = (1, 16, 256, 1024)
LONG_US = 20.0  # from here on timers have to agree
AGREE, SPREAD = 0.02, 0.01
FEW_CALLS = 5  # for timers that call a function many times for each sample
SETTLING = 5
JUDGED = ("cuda_event", "cupti")
NS_PER_US = 1e3


def kernels(device: str) -> dict[str, Callable[[], object]]:
    """Return work of known lengths, and some that depends on torch's kernels."""
    import torch

    from flashinfer_bench.bench.timing.known_work import work_for

    work = work_for(device)
    found: dict[str, Callable[[], object]] = {f"spin {us} us": work.spin(us) for us in SPINS_US}
    found["steps 1 ms"] = work.steady()
    for side in PRODUCTS:
        a = torch.randn(side, side, device=device, dtype=torch.bfloat16)
        found[f"product {side}"] = partial(torch.mm, a, a, out=torch.empty_like(a))
    for size in COPIES_MIB:
        source = torch.randn(size << 18, device=device)
        found[f"copy {size} MiB"] = partial(torch.empty_like(source).copy_, source)
    small = torch.randn(1024, device=device)
    found["20 adds"] = lambda: [torch.add(small, 1.0) for _ in range(20)]
    return found


def usable_timers(device: str) -> tuple[dict[str, Timer], dict[str, str]]:
    """Return the timers, and why others cannot be used."""
    from flashinfer_bench.plugins import default_catalog

    timers: dict[str, Timer] = {}
    absent = {}
    for entry in default_catalog().timers:
        if "cuda" not in entry.spec.devices:
            continue
        answer = entry.availability()
        try:
            if answer:
                timers[entry.name] = entry.load()()
            else:
                absent[entry.name] = f"{answer.reason} ({answer.remedy})"
        except Exception:  # noqa: BLE001 - what goes wrong is to be seen in the report
            absent[entry.name] = traceback.format_exc()
    return timers, absent


def one_timer(
    timer: Timer, function: Callable[[], object], flush: Callable[[], None], calls: int, device: str
) -> dict[str, Any]:
    """Time one kernel; return microseconds, seconds and remarks."""
    samples: list[float] = []
    begun = time.perf_counter()
    try:
        for index in range(SETTLING + calls):
            flush()
            sample, result = timer.time_call(function, (), device=device)
            del result
            if index >= SETTLING:
                samples.append(sample * NS_PER_US)
    except Exception:  # noqa: BLE001 - what goes wrong is to be seen in the report
        return {"error": traceback.format_exc()}
    parts = statistics.quantiles(samples, n=20)
    return {
        "median": statistics.median(samples),
        "p5": parts[0],
        "p95": parts[18],
        "seconds": time.perf_counter() - begun,
        "calls": calls,
        "notes": timer.take_notes(),
    }


def child(device: str, calls: int) -> dict[str, Any]:
    """Time everything in this process."""
    import torch

    from flashinfer_bench.bench.candidate.caches import caches_of

    caches = caches_of(device)

    def flush() -> None:
        caches.flush()
        torch.cuda.synchronize(device)

    timers, absent = usable_timers(device)
    torch.cuda.set_device(device)
    times: dict[str, dict[str, Any]] = {}
    for name, function in kernels(device).items():
        for _ in range(SETTLING):
            function()
        torch.cuda.synchronize(device)
        times[name] = {
            timer.name: one_timer(
                timer, function, flush, FEW_CALLS if timer.repeats else calls, device
            )
            for timer in timers.values()
        }
    return {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "versions": {name: timer.version for name, timer in timers.items()},
        "absent": absent,
        "times": times,
    }


def in_fresh_processes(device: str, calls: int, count: int) -> list[dict[str, Any]]:
    """Return what each of some fresh processes has measured, or how it ended."""
    found = []
    for _ in range(count):
        command = [sys.executable, __file__, "--child", "--device", device, "--calls", str(calls)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=500, env=os.environ
        )
        try:
            found.append(json.loads(done.stdout.splitlines()[-1]))
        except (IndexError, ValueError):
            found.append({"failed": done.returncode, "stderr": done.stderr[-4000:]})
    return found


def compare(runs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return one row for each kernel and timer, and what is not as it should be."""
    rows, problems = [], []
    names = runs[0]["versions"]
    reference = "cupti" if "cupti" in names else "cuda_event"
    for kernel in runs[0]["times"]:
        results = {name: [run["times"][kernel][name] for run in runs] for name in names}
        true = _middle(results[reference])
        for name, told in results.items():
            row = _row(kernel, name, told, true)
            rows.append(row)
            problems += _problems(row, true)
    return rows, problems


def _middle(told: list[dict[str, Any]]) -> float | None:
    medians = [one["median"] for one in told if "median" in one]
    return statistics.median(medians) if medians else None


def _row(kernel: str, name: str, told: list[dict[str, Any]], true: float | None) -> dict[str, Any]:
    medians = [one["median"] for one in told if "median" in one]
    row: dict[str, Any] = {"kernel": kernel, "timer": name}
    errors = [one["error"] for one in told if "error" in one]
    if errors:
        row |= {"errors": len(errors), "error": errors[0]}
    if medians:
        middle = statistics.median(medians)
        row |= {
            "us": round(middle, 3),
            "off_%": round(100 * (middle / true - 1), 2) if true else None,
            "spread_%": round(100 * (max(medians) - min(medians)) / middle, 2),
            "p5_p95": [round(told[0]["p5"], 3), round(told[0]["p95"], 3)],
            "ms_per_sample": round(1e3 * told[0]["seconds"] / (told[0]["calls"] + SETTLING), 3),
            "notes": sorted({note for one in told for note in one.get("notes", [])}),
        }
    return row


def _problems(row: dict[str, Any], true: float | None) -> list[str]:
    where = f"{row['kernel']}, {row['timer']}"
    if row["timer"] in JUDGED and "error" in row:
        return [f"{where}: {row['error'].strip().splitlines()[-1]}"]
    if row["timer"] not in JUDGED or true is None or true < LONG_US:
        return []
    found = []
    if abs(row["off_%"]) > 100 * AGREE:
        found.append(f"{where}: off by {row['off_%']} %")
    if row["spread_%"] > 100 * SPREAD:
        found.append(f"{where}: medians of {row['us']} us spread by {row['spread_%']} %")
    return found


def main() -> int:
    """Measure, print, and say whether everything is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.device, options.calls)))
        return 0
    begun = time.perf_counter()
    runs = in_fresh_processes(options.device, options.calls, options.processes)
    whole = [run for run in runs if "times" in run]
    rows, problems = compare(whole) if whole else ([], [])
    problems += [f"a process ended with {run['failed']}" for run in runs if "failed" in run]
    facts = {key: whole[0][key] for key in whole[0] if key != "times"} if whole else {}
    report = {
        **facts,
        "failed": [run for run in runs if "failed" in run],
        "seconds": round(time.perf_counter() - begun, 1),
        "problems": problems,
    }
    # One row a line: the whole fits into the last screens of a log.
    print(json.dumps(report, indent=1))
    for row in rows:
        print(json.dumps(row))
    return 1 if problems or not whole else 0


if __name__ == "__main__":
    sys.exit(main())
