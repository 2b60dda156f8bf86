"""What stopping rules cost and give on a GPU: a part of `timers_on_gpu.py`."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.bench.stopping.plan import TimingPlan

LONG_US = 20.0  # from here on timers have to agree, and medians must not spread
SPREAD = 0.01
SHARE = 0.7  # of the time of fixed rounds
NS_PER_US = 1e3


def spread(medians: list[float]) -> float:
    """Return the range of medians in percent of their median."""
    return round(100 * (max(medians) - min(medians)) / statistics.median(medians), 2)


def plans() -> dict[str, TimingPlan]:
    """Return 3 rounds of 10 + 50 calls, and what the rule has by default."""
    from flashinfer_bench.bench.stopping.plan import TimingPlan
    from flashinfer_bench.bench.stopping.settings import TimingSettings

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
        "ending": ending.value,
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
