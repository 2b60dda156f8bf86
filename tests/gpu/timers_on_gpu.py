"""What the timers of a GPU make of kernels from 2 µs to 20 ms: agreement, spread, time needed.

Start it in an environment where core is installed (or on ``PYTHONPATH``); plugins with timers of
their own, such as fib_timing_cuda, take part where they are installed::

    python tests/gpu/timers_on_gpu.py [--device cuda:0] [--processes 5] [--calls 50] [--limit 230]

Each fresh process times the same kernels with each timer, caches flushed before each call, and
prints its medians: first with timers that record nothing, then with ``cupti``, which is in the way
of the others once it has begun. The report is one JSON object, and then one row for each kernel and
timer: the median over processes in microseconds, how far it is from the reference timer (``cupti``
if it is there, else ``cuda_event``), the spread of the median over processes, the SM clock after
the samples in each process, and milliseconds by the wall clock for each sample.

Then rows of stopping rules: for each kernel and timer the seconds that ``rse`` took, as a share of
those of 3 rounds of 10 untimed and 50 timed calls, and the spread of the median over processes with
either.

It exits with 1 if `cuda_event` and the reference timer differ by more than 2 %, or medians of
`cuda_event` or `cupti` spread by more than 1 %, on a kernel of 20 µs or more; if ``rse`` takes more
than 0.7 of the time, or its medians spread by more than 1 %, as medians over kernels of 20 µs or
more; or if a timer fails. What the device's clock or the host decides is told, but not judged.

Everything that goes wrong is in the report with its traceback, so that one run tells all.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

from common import parser

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.bench.stopping import TimingPlan
    from flashinfer_bench.bench.timing import Timer

LONG_US = 20.0  # from here on timers have to agree, and medians must not spread
SPREAD = 0.01
SHARE = 0.7  # of the time of fixed rounds
NS_PER_US = 1e3
SPINS_US = (2, 5, 10, 20, 50, 100, 500, 2000, 20000)
PRODUCTS = (256, 1024, 2048, 4096, 8192)
COPIES_MIB = (1, 16, 256, 1024)
AGREE = 0.02
FEW_CALLS = 5  # for timers that call a function many times for each sample
SETTLING = 5
JUDGED = ("cuda_event", "cupti")
RECORDS = ("cupti",)
# Here the clock of the device decides (it has reached the limit of its power, or it counts cycles),
# or how fast a process gets at it: medians of different processes differ whatever takes them.
UNSTEADY = ("steps 1 ms", "product 8192", "20 adds")
VERY_LONG = ("spin 20000 us",)  # rules are compared with one timer: seconds matter
HOT = ("product 8192",)  # what came before decides, too: timers do not find the same device


def kernels(device: str) -> dict[str, Callable[[], object]]:
    """Return work of known lengths, and some that depends on torch's kernels."""
    import torch

    from fib_timing_cuda.known_work import work_for

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


def sm_clock(device: str) -> Callable[[], int | None]:
    """Return what asks the driver's management library for the SM clock in MHz."""
    import torch

    nvml, handle, mhz = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.c_uint()
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    failed = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle))

    def ask() -> int | None:
        code = failed or nvml.nvmlDeviceGetClockInfo(handle, 1, ctypes.byref(mhz))
        return None if code else mhz.value

    return ask


class Bench:
    """The device in this process."""

    def __init__(self, device: str) -> None:
        import torch

        from flashinfer_bench.bench.candidate.caches import caches_of

        torch.cuda.set_device(device)
        self.device, self._caches = device, caches_of(device)
        self._wait = partial(torch.cuda.synchronize, device)
        self.clock = sm_clock(device)

    def take(self, timer: Timer, function: Callable[[], object]) -> float:
        """Return microseconds of a call that finds the caches empty."""
        self._caches.flush()
        self._wait()
        sample, result = timer.time_call(function, (), device=self.device)
        del result
        return sample * NS_PER_US

    def settle(self, function: Callable[[], object]) -> None:
        """Have everything made that is made once."""
        for _ in range(SETTLING):
            function()
        self._wait()


def one_timer(
    bench: Bench, timer: Timer, function: Callable[[], object], calls: int
) -> dict[str, Any]:
    """Time one kernel; return microseconds, seconds and remarks."""
    settling = 1 if timer.repeats else SETTLING
    begun = time.perf_counter()
    try:
        for _ in range(settling):
            bench.take(timer, function)
        samples = [bench.take(timer, function) for _ in range(calls)]
    except Exception:  # noqa: BLE001 - what goes wrong is to be seen in the report
        return {"error": traceback.format_exc()}
    clock, seconds = bench.clock(), time.perf_counter() - begun
    parts = statistics.quantiles(samples, n=20)
    return {
        "median": statistics.median(samples),
        "p5": parts[0],
        "p95": parts[18],
        "ms_per_sample": 1e3 * seconds / (settling + calls),
        "mhz": clock,
        "removed": timer.removed_ms * NS_PER_US,
        "notes": timer.take_notes(),
    }


def one_comparison(bench: Bench, timer: Timer, function: Callable[[], object]) -> dict[str, Any]:
    """Compare stopping rules on one kernel."""
    take = partial(bench.take, timer, function)
    try:
        return {name: by_plan(plan, take) for name, plan in plans().items()}
    except Exception:  # noqa: BLE001 - what goes wrong is to be seen in the report
        return {"error": traceback.format_exc()}


def child(device: str, calls: int) -> dict[str, Any]:
    """Time everything in this process."""
    import torch

    bench = Bench(device)
    timers, absent = usable_timers(device)
    work = kernels(device)
    times: dict[str, dict[str, Any]] = {name: {} for name in work}
    rules: dict[str, dict[str, Any]] = {name: {} for name in work}
    for records in (False, True):
        chosen = [timer for timer in timers.values() if (timer.name in RECORDS) == records]
        for name, function in work.items():
            bench.settle(function)
            for timer in chosen:
                count = FEW_CALLS if timer.repeats else calls
                times[name][timer.name] = one_timer(bench, timer, function, count)
                if timer.name in JUDGED and not (records and name in VERY_LONG):
                    rules[name][timer.name] = one_comparison(bench, timer, function)
    return {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "versions": {name: timer.version for name, timer in timers.items()},
        "absent": absent,
        "times": times,
        "rules": rules,
    }


def in_fresh_processes(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what each of some fresh processes has measured, or how it ended."""
    found: list[dict[str, Any]] = []
    command = [sys.executable, __file__, "--child", "--device", options.device]
    command += ["--calls", str(options.calls)]
    end, longest = time.monotonic() + options.limit, 0.0
    for _ in range(options.processes):
        begun = time.monotonic()
        left = end - begun
        if left < longest:
            found.append({"failed": "no time is left for another process"})
            break
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=left, env=os.environ
            )
            found.append(json.loads(done.stdout.splitlines()[-1]))
        except subprocess.TimeoutExpired as error:
            found.append({"failed": f"{error}", "stderr": str(error.stderr)[-4000:]})
        except (IndexError, ValueError):
            found.append({"failed": done.returncode, "stderr": done.stderr[-4000:]})
        longest = max(longest, time.monotonic() - begun)
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
        whole = [one for one in told if "median" in one]
        row |= {
            "us": round(middle, 3),
            "off_us": round(middle - true, 3) if true else None,
            "off_%": round(100 * (middle / true - 1), 2) if true else None,
            "spread_%": spread(medians),
            "p5_p95": [round(whole[0]["p5"], 3), round(whole[0]["p95"], 3)],
            "mhz": [one["mhz"] for one in whole],
            "removed_us": [round(one["removed"], 3) for one in whole],
            "ms_per_sample": round(whole[0]["ms_per_sample"], 3),
            "notes": sorted({note for one in whole for note in one.get("notes", [])}),
        }
    return row


def _problems(row: dict[str, Any], true: float | None) -> list[str]:
    where = f"{row['kernel']}, {row['timer']}"
    if row["timer"] in JUDGED and "error" in row:
        return [f"{where}: {row['error'].strip().splitlines()[-1]}"]
    if row["timer"] not in JUDGED or true is None or true < LONG_US:
        return []
    found = []
    if abs(row["off_%"]) > 100 * AGREE and row["kernel"] not in HOT:
        found.append(f"{where}: off by {row['off_%']} %")
    if row["spread_%"] > 100 * SPREAD and row["kernel"] not in UNSTEADY:
        found.append(f"{where}: medians of {row['us']} us spread by {row['spread_%']} %")
    return found


# ------------------------------------------------------------------------------------ stop rules


def spread(medians: list[float]) -> float:
    """Return the range of medians in percent of their median."""
    return round(100 * (max(medians) - min(medians)) / statistics.median(medians), 2)


def plans() -> dict[str, TimingPlan]:
    """Return 3 rounds of 10 + 50 calls, and what the rule has by default."""
    from flashinfer_bench.bench.config import TimingSettings
    from flashinfer_bench.bench.stopping import TimingPlan

    usual = {"warmup_runs": 10, "iterations": 50, "num_trials": 3}
    return {
        rule: TimingPlan.of(TimingSettings(stop_rule=rule, **usual)) for rule in ("fixed", "rse")
    }


def by_plan(plan: TimingPlan, take: Callable[[], float]) -> dict[str, Any]:
    """Take the samples that a plan asks for; return their median, seconds, and how it ended."""
    samples: list[float] = []
    calls, begun = 0, time.perf_counter()
    while True:
        seconds = time.perf_counter() - begun
        ending = plan.ending([sample / NS_PER_US for sample in samples], seconds)
        if ending is not None:
            break
        step = plan.step(len(samples))
        for _ in range(step.warmup):
            take()
        for _ in range(step.calls):
            samples.append(take())
            if plan.out_of_time(time.perf_counter() - begun):
                break
        calls += step.warmup + step.calls
    return {
        "median": statistics.median(samples),
        "seconds": seconds,
        "calls": calls,
        "ending": ending,
    }


def compare_rules(
    runs: list[dict[str, Any]], timers: Sequence[str], unsteady: Sequence[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return one row for each kernel and timer, one for each timer, and what is not right.

    The latter are over the kernels that take at least `LONG_US`, without `unsteady` ones.
    """
    rows, problems = [], []
    for kernel in runs[0]["rules"]:
        for name in runs[0]["rules"][kernel]:
            told = [run["rules"][kernel][name] for run in runs]
            errors = [one["error"] for one in told if "error" in one]
            if errors:
                problems.append(f"{kernel}, {name}: {errors[0].strip().splitlines()[-1]}")
                continue
            rows.append(_rule_row(kernel, name, told))
    for name in timers:
        steady = [
            row
            for row in rows
            if row["timer"] == name and row["us"] >= LONG_US and row["kernel"] not in unsteady
        ]
        if steady:
            rows.append(_over_kernels(name, steady))
            problems += _rule_problems(rows[-1])
    return rows, problems


def _rule_row(kernel: str, name: str, told: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = {rule: sum(one[rule]["seconds"] for one in told) for rule in ("fixed", "rse")}
    medians = {rule: [one[rule]["median"] for one in told] for rule in ("fixed", "rse")}
    return {
        "kernel": kernel,
        "timer": name,
        "us": round(statistics.median(medians["rse"]), 3),
        "fixed_s": round(seconds["fixed"] / len(told), 4),
        "rse_share": round(seconds["rse"] / seconds["fixed"], 3),
        "rse_calls": [one["rse"]["calls"] for one in told],
        "endings": sorted({one["rse"]["ending"] for one in told}),
        "fixed_spread_%": spread(medians["fixed"]),
        "rse_spread_%": spread(medians["rse"]),
    }


def _over_kernels(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    keys = ("rse_share", "fixed_spread_%", "rse_spread_%")
    worst = {f"worst {key}": max(row[key] for row in rows) for key in keys}
    middle = {key: round(statistics.median(row[key] for row in rows), 3) for key in keys}
    return {"kernel": f"{len(rows)} kernels", "timer": name, **middle, **worst}


def _rule_problems(row: dict[str, Any]) -> list[str]:
    found = []
    if row["rse_share"] > SHARE:
        found.append(f"rse, {row['timer']}: takes {row['rse_share']} of the time of fixed rounds")
    if row["rse_spread_%"] > 100 * SPREAD:
        found.append(f"rse, {row['timer']}: medians spread by {row['rse_spread_%']} %")
    return found


def main() -> int:
    """Measure, print, and say whether everything is as it should be."""
    made = parser(__doc__)
    made.add_argument("--processes", type=int, default=5)
    made.add_argument("--calls", type=int, default=50)
    made.add_argument("--limit", type=float, default=230.0, help="seconds for all processes")
    made.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.child:
        print(json.dumps(child(options.device, options.calls)))
        return 0
    begun = time.perf_counter()
    runs = in_fresh_processes(options)
    whole = [run for run in runs if "times" in run]
    rows, problems = compare(whole) if whole else ([], [])
    rules, more = compare_rules(whole, JUDGED, UNSTEADY) if whole else ([], [])
    problems += more + [f"a process failed: {run['failed']}" for run in runs if "failed" in run]
    facts = {k: v for k, v in whole[0].items() if k not in ("times", "rules")} if whole else {}
    report = {
        **facts,
        "failed": [run for run in runs if "failed" in run],
        "processes": len(whole),
        "seconds": round(time.perf_counter() - begun, 1),
        "problems": problems,
    }
    # One row a line: the whole fits into the last screens of a log.
    print(json.dumps(report, indent=1))
    for row in [*rows, *rules]:
        print(json.dumps(row))
    return 1 if problems or not whole else 0


if __name__ == "__main__":
    sys.exit(main())
