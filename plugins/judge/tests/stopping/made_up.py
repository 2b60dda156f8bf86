"""Made-up timers for stopping rules; run as a script, it prints what each rule takes on them."""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable
from statistics import median

Samples = list[float]
Make = Callable[[random.Random, int], Samples]


def lognormal(noise):
    return lambda rng, n: [math.exp(rng.gauss(0, noise)) for _ in range(n)]


def two_modes(share):
    def make(rng, n):
        return [(1.0 if rng.random() < share else 1.3) + rng.gauss(0, 0.01) for _ in range(n)]

    return make


def heavy(rng, n):
    return [1 + 0.01 * abs(rng.gauss(0, 1)) / max(abs(rng.gauss(0, 1)), 1e-3) for _ in range(n)]


def throttling(rng, n):
    samples, left = [], 0
    for _ in range(n):
        left = left - 1 if left else (15 if rng.random() < 0.01 else 0)
        samples.append((1.4 if left else 1.0) * math.exp(rng.gauss(0, 0.01)))
    return samples


def ticking(rng, n):
    """About 3 µs by a clock that tells multiples of 0.5 µs."""
    return [0.0005 * round(6 * math.exp(rng.gauss(0, 0.03))) for _ in range(n)]


TIMERS: dict[str, Make] = {
    "log-normal, 1 %": lognormal(0.01),
    "log-normal, 3 %": lognormal(0.03),
    "log-normal, 10 %": lognormal(0.1),
    "log-normal, 30 %": lognormal(0.3),
    "two modes, 70:30": two_modes(0.7),
    "heavy tail": heavy,
    "bursts of throttling": throttling,
    "ticks of 0.5 us": ticking,
}


def take(plan, make, seed):
    """Follow the plan on a made-up timer that takes no time; return the samples and the ending."""
    source = make(random.Random(seed), plan.max_samples)
    taken = 0
    while (ending := plan.ending(source[:taken], 0.0)) is None:
        taken += plan.step(taken).calls
    return source[:taken], ending


def true_median(make):
    return median(make(random.Random(-1), 100_000))


def runs(plan, make, count):
    """Return, sorted, the numbers of samples and the relative errors of the medians."""
    truth = true_median(make)
    all_samples = [take(plan, make, seed)[0] for seed in range(count)]
    errors = [abs(median(samples) / truth - 1) for samples in all_samples]
    return sorted(map(len, all_samples)), sorted(errors)


def main():
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.stopping import TimingPlan, rules

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=150)
    count = parser.parse_args().runs
    print(f"{'timer':22}{'rule':10}{'samples: median':>16}{'p10':>6}{'p90':>6}{'error p95':>11}")
    for timer, make in TIMERS.items():
        for rule in rules():
            plan = TimingPlan.of(BenchmarkConfig(stop_rule=rule))
            taken, errors = runs(plan, make, count)
            numbers = (taken[int(share * count)] for share in (0.5, 0.1, 0.9))
            middle, low, high = numbers
            error = errors[int(0.95 * count)]
            print(f"{timer:22}{rule:10}{middle:16}{low:6}{high:6}{error:11.2%}")


if __name__ == "__main__":
    main()
