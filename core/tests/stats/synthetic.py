"""Timers that are made up, each with a true median that is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

Run = tuple[list[float], float]
"""Samples in the order taken, in µs, and the true median."""

_NORMAL = NormalDist()


@dataclass(frozen=True)
class Timer:
    """One made-up timer: what it is like, and how to take a run of it."""

    name: str
    about: str
    take: Callable[[random.Random, int], Run]
    resolution: float = 0.0
    promised: bool = True


def _root(share_below, low, high):
    """Return where a distribution function passes one half."""
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if share_below(middle) < 0.5 else (low, middle)
    return (low + high) / 2


def lognormal(rng, n):
    return [20 * math.exp(rng.gauss(0, 0.02)) for _ in range(n)], 20.0


_TWO_MODES = _root(lambda x: 0.65 * _NORMAL.cdf((x - 20) / 0.1), 19, 21)


def bimodal(rng, n):
    return [rng.gauss(20 if rng.random() < 0.65 else 22, 0.1) for _ in range(n)], _TWO_MODES


def even_bimodal(rng, n):
    return [rng.gauss(20 if rng.random() < 0.5 else 22, 0.4) for _ in range(n)], 21.0


def _drift(slope, sigma):
    """Noise around a level that depends on how much of the run is over."""
    medians = {}

    def take(rng, n):
        levels = [20 * (1 + slope((i + 0.5) / n)) for i in range(n)]
        if n not in medians:
            cdf = _NORMAL.cdf
            medians[n] = _root(
                lambda x: sum(cdf(math.log(x / level) / sigma) for level in levels) / n, 15, 30
            )
        return [level * math.exp(rng.gauss(0, sigma)) for level in levels], medians[n]

    return take


def heavy_tailed(rng, n):
    run = [20 + 0.2 * rng.paretovariate(1.2) for _ in range(n)]
    return run, 20 + 0.2 * 2 ** (1 / 1.2)


def cauchy(rng, n):
    """Tails on both sides; cut off at 0."""
    return [max(0.0, 20 + 0.1 * math.tan(math.pi * (rng.random() - 0.5))) for _ in range(n)], 20.0


def quantised(sigma):
    """A duration rounded to 0.5 µs; its place between two ticks is another in each run."""

    def take(rng, n):
        true = rng.uniform(10, 12)
        return [0.5 * round((true + rng.gauss(0, sigma)) / 0.5) for _ in range(n)], true

    return take


def two_stamps(sigma):
    """A duration as the difference of two stamps, each rounded down to 0.5 µs."""

    def take(rng, n):
        true = rng.uniform(10, 12)
        run = []
        for _ in range(n):
            begin = rng.random() * 100
            end = begin + true + rng.gauss(0, sigma)
            run.append(0.5 * (math.floor(end / 0.5) - math.floor(begin / 0.5)))
        return run, true

    return take


def throttling(share, length):
    """Bursts of calls that take 1.3 times as long."""
    sigma = 0.01
    median = _root(
        lambda x: (
            (1 - share) * _NORMAL.cdf(math.log(x / 20) / sigma)
            + share * _NORMAL.cdf(math.log(x / 26) / sigma)
        ),
        19,
        27,
    )
    leave = 1 / length
    enter = leave * share / (1 - share)

    def take(rng, n):
        slow = rng.random() < share
        run = []
        for _ in range(n):
            run.append((26 if slow else 20) * math.exp(rng.gauss(0, sigma)))
            slow = rng.random() >= leave if slow else rng.random() < enter
        return run, median

    return take


def autocorrelated(rho):
    """AR(1): each call remembers the one before it."""

    def take(rng, n):
        state = rng.gauss(0, 1)
        run = []
        for _ in range(n):
            run.append(20 * math.exp(0.02 * state))
            state = rho * state + math.sqrt(1 - rho * rho) * rng.gauss(0, 1)
        return run, 20.0

    return take


TIMERS = (
    Timer("lognormal", "independent, spread 2 %", lognormal),
    Timer("bimodal", "65 % at 20 µs, 35 % at 22 µs", bimodal),
    Timer("drifting", "2 % up over the run, spread 1 %", _drift(lambda t: 0.02 * t, 0.01)),
    Timer(
        "warming", "4 % down at first, spread 1 %", _drift(lambda t: 0.04 * math.exp(-5 * t), 0.01)
    ),
    Timer("heavy-tailed", "Pareto tail, index 1.2: no variance", heavy_tailed),
    Timer("cauchy", "tails on both sides: not even a mean", cauchy),
    Timer("quantised", "0.5 µs ticks, spread 0.4 µs", quantised(0.4), 0.5),
    Timer("two stamps", "each in 0.5 µs ticks, spread 0.4 µs", two_stamps(0.4), 0.5),
    Timer("throttling", "bursts of 3 calls at 1.3 times, 8 %", throttling(0.08, 3)),
    Timer("AR(1) 0.3", "each call remembers 30 % of the last", autocorrelated(0.3)),
    # Beyond the promise: what is left of it there is printed all the same.
    Timer("even bimodal", "half at 20, half at 22 µs, spread 0.4", even_bimodal, promised=False),
    Timer("coarse stamps", "as above, spread 0.1 µs", two_stamps(0.1), 0.5, promised=False),
    Timer("coarse", "0.5 µs ticks, spread 0.1 µs", quantised(0.1), 0.5, promised=False),
    Timer(
        "steep drift",
        "8 % up over the run, spread 1 %",
        _drift(lambda t: 0.08 * t, 0.01),
        promised=False,
    ),
    Timer("AR(1) 0.6", "each call remembers 60 % of the last", autocorrelated(0.6), promised=False),
    Timer("AR(1) 0.9", "each call remembers 90 % of the last", autocorrelated(0.9), promised=False),
    Timer("long bursts", "of 10 calls, 10 % of all", throttling(0.10, 10), promised=False),
)
