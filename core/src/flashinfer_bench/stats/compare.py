"""Whether one solution is faster than another: tests over pairs of fresh processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from flashinfer_bench.stats.intervals import Interval


class Verdict(str, Enum):
    """What a comparison has found about the candidate."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True)
class Launch:
    """One pair of fresh processes; their calls alternate in ABBA order.

    Attributes
    ----------
    baseline, candidate : tuple of float
        Latencies in one unit; those of one index were taken one after the other.
    """

    baseline: tuple[float, ...]
    candidate: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """A candidate against a baseline.

    Attributes
    ----------
    ratio : Interval
        Latency of the candidate by that of the baseline: above 1 is slower.
    p_value : float
        Adjusted for the looks.
    verdict : Verdict
        By `decide`.
    launches, pairs : int
        How many there were.
    paired : bool
        Whether samples were interleaved.
    error : float
        Standard error of the logarithm of the ratio.
    freedom : float
        Degrees of freedom of that error.
    """

    ratio: Interval
    p_value: float
    verdict: Verdict
    launches: int
    pairs: int
    paired: bool
    error: float = 0.0
    freedom: float = 0.0


@dataclass(frozen=True)
class Overall:
    """Several comparisons together: geometric mean of the ratios, and each with Holm's p-value."""

    ratio: Interval
    p_value: float
    verdict: Verdict
    comparisons: tuple[Comparison, ...]


def compare_launches(
    launches: Sequence[Launch],
    *,
    min_effect: float = 0.01,
    alpha: float = 0.05,
    capped: bool = False,
) -> Comparison:
    """Compare over pairs of processes. `capped`: stopped by the clock, not by `enough`."""
    raise NotImplementedError


def compare_unpaired(
    baseline_samples: Sequence[float],
    candidate_samples: Sequence[float],
    *,
    min_effect: float = 0.01,
    alpha: float = 0.05,
    resolution: float = 0.0,
) -> Comparison:
    """Compare two recorded runs."""
    raise NotImplementedError


def overall(
    comparisons: Sequence[Comparison], *, min_effect: float = 0.01, alpha: float = 0.05
) -> Overall:
    """Take several comparisons together."""
    raise NotImplementedError


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return p-values adjusted for their number, in the order given."""
    raise NotImplementedError


def decide(interval: Interval, p_value: float, min_effect: float, alpha: float) -> Verdict:
    """Return the verdict."""
    raise NotImplementedError


def enough(
    launches: Sequence[Launch], min_effect: float = 0.01, alpha: float = 0.05, *, tests: int = 1
) -> bool:
    """Return whether more launches would change nothing. Ask after each launch."""
    raise NotImplementedError
