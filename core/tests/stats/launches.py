"""Made-up launches, for tests of comparisons."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flashinfer_bench.stats.compare import Comparison, Launch, compare_launches, enough

if TYPE_CHECKING:
    import random

CALM = 0.005


def launch(
    rng: random.Random, effect: float = 0.0, between: float = CALM, pairs: int = 8
) -> Launch:
    """One pair of processes; `between` is how far they differ from others of their kind."""
    shift = math.log1p(effect) + rng.gauss(0, between)
    baseline, candidate = [], []
    for _ in range(pairs):
        level = rng.gauss(0, 0.02)
        baseline.append(5 * math.exp(level + rng.gauss(0, 0.005)))
        candidate.append(5 * math.exp(level + shift + rng.gauss(0, 0.005)))
    return Launch(tuple(baseline), tuple(candidate))


def exact(*ratios: float) -> list[Launch]:
    """Launches without noise inside."""
    return [Launch((10.0,) * 4, (10.0 * ratio,) * 4) for ratio in ratios]


def launches_until_enough(
    rng: random.Random, effect: float, between: float, cap: int = 24
) -> Comparison:
    taken: list[Launch] = []
    while len(taken) < cap:
        taken.append(launch(rng, effect, between))
        if enough(taken):
            return compare_launches(taken)
    return compare_launches(taken, capped=True)
