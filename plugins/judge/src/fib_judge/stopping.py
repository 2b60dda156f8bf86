"""The stop rule ``rse``: the median is known well enough, or will not be known any better."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, pstdev, stdev
from typing import TYPE_CHECKING, ClassVar

from flashinfer_bench.bench.stopping import StoppingRule, parameter

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class RelativeStandardError(StoppingRule):
    """Stop when the relative standard error of the median is at most `target`.

    After the idea of nvbench's ``stdrel``: there the noise of single samples has to be small, here
    the error of what is reported, which falls with the number of samples. As there, a benchmark too
    noisy for the target ends when the estimate of its noise has itself settled.
    """

    name: ClassVar[str] = "rse"
    summary: ClassVar[str] = "when the relative standard error of the median has reached a target"

    target: float = parameter(
        0.005, "Relative error of the median to reach.", unit="fraction", high=1.0
    )
    settled: float = parameter(
        0.02, "Give up once the noise changes by less; 0: never.", unit="fraction", high=1.0
    )
    min_time_ms: float = parameter(0.0, "Minimum total of all samples.", unit="ms")

    def wants_more(self, samples_ms: Sequence[float]) -> bool:
        """Return whether the median is not known well enough, and may yet be."""
        if sum(samples_ms) < self.min_time_ms:
            return True
        if relative_error(samples_ms) <= self.target:
            return False
        return noise_change(samples_ms) > self.settled or self.settled == 0

    def outcome(self, samples_ms: Sequence[float]) -> str:
        """Return what error there is, and what was asked for."""
        if (error := relative_error(samples_ms)) == math.inf:
            return super().outcome(samples_ms)
        reached = "reached" if error <= self.target else "not reached"
        taken = f"standard error {error:.2%} after {len(samples_ms)} samples"
        return f"{taken}, target {self.target:.2%} {reached}"


_Z = 2.5758  # standard normal quantile at 0.995, which McKean and Schrader take
_BLOCKS = 8
_PER_BLOCK = 4  # fewer samples do not make a block
_SETTLED_FROM = 64  # nvbench too looks at its noise estimates only when there are so many
_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def relative_error(samples_ms: Sequence[float]) -> float:
    """Return the relative standard error of the median; infinite if that cannot be told.

    The larger one of two estimates: `order_error` holds for independent samples, `block_error` sees
    drift and slow oscillation too.
    """
    if len(samples_ms) < _PER_BLOCK:
        return math.inf
    centre = median(samples_ms)
    error = max(order_error(samples_ms), block_error(samples_ms))
    if error == 0:
        return 0.0
    return error / centre if centre > 0 else math.inf


def order_error(samples: Sequence[float]) -> float:
    """Return the standard error of the median of independent samples, of any distribution.

    Half the width of the 99 % interval between two order statistics, over the normal quantile:
    J. W. McKean, R. M. Schrader, "A comparison of methods for studentizing the sample median",
    Communications in Statistics B 13 (1984) 751-773.
    """
    count = len(samples)
    ordered = sorted(samples)
    low = max(round((count + 1) / 2 - _Z * math.sqrt(count / 4)), 1)
    return (ordered[count - low] - ordered[low - 1]) / (2 * _Z)


def block_error(samples: Sequence[float]) -> float:
    """Return the standard error of the median by what the medians of successive blocks are like.

    Batch means (L. W. Schruben, "Confidence interval estimation using standardized time series",
    Operations Research 31 (1983) 1090-1108, section 1, and the works named there), with medians.
    """
    blocks = min(_BLOCKS, len(samples) // _PER_BLOCK)
    if blocks < 2:
        return 0.0
    edges = [number * len(samples) // blocks for number in range(blocks + 1)]
    medians = [median(samples[first:last]) for first, last in pairwise(edges)]
    return stdev(medians) / math.sqrt(blocks)


def noise_change(samples_ms: Sequence[float]) -> float:
    """Return by how much the estimate of the noise has changed over the second half of the samples.

    Noise is the standard error of the median that a single sample would have: `order_error` times
    the root of the number of samples, so that it does not fall with that. It is taken of the first
    half of the samples, the first 60 %, …, all of them. Returned is the relative standard deviation
    of these: infinite for fewer than 64 samples, and if there is no noise around the median.
    """
    if len(samples_ms) < _SETTLED_FROM:
        return math.inf
    counts = [round(share * len(samples_ms)) for share in _SHARES]
    estimates = [order_error(samples_ms[:count]) * math.sqrt(count) for count in counts]
    mean = fmean(estimates)
    return pstdev(estimates) / mean if mean > 0 else math.inf
