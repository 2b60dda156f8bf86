"""The rule that stops when further samples show nothing new."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from statistics import correlation, linear_regression
from typing import TYPE_CHECKING, ClassVar

from flashinfer_bench.bench.stopping.base import StoppingRule, parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

_FEW = 8  # points through which no line is worth drawing
_FLAT = 1e-12  # bits; less than this is rounding


@dataclass(frozen=True)
class Entropy(StoppingRule):
    """Stop when the entropy of the histogram of the samples rises no more.

    After nvbench's criterion of that name, which draws a line through the entropies that the
    histogram had after each sample, and wants it flat and straight. There every value is a bin of
    its own, so that a clock of fine resolution needs some 1 900 samples whatever it measures; here
    values that differ by less than `bin_width` share one. The line goes through the second half of
    the curve instead of its last 299 points.
    """

    name: ClassVar[str] = "entropy"
    summary: ClassVar[str] = "when the histogram of the samples has stopped changing"

    max_angle: float = parameter(
        0.048, "Steepest line through the entropy (bit per sample).", unit="degree", high=90.0
    )
    min_r2: float = parameter(0.36, "Least R2 of that line.", unit="", high=1.0)
    bin_width: float = parameter(
        0.005, "Samples closer than this are the same.", unit="fraction", high=1.0
    )

    def wants_more(self, samples_ms: Sequence[float]) -> bool:
        """Return whether the histogram still changes."""
        curve = self._second_half(samples_ms)
        if len(curve) < _FEW:
            return True
        angle, straight = line_through(curve)
        return abs(angle) > self.max_angle or straight < self.min_r2

    def outcome(self, samples_ms: Sequence[float]) -> str:
        """Return how steep and how straight the curve is."""
        curve = self._second_half(samples_ms)
        if len(curve) < 2:
            return super().outcome(samples_ms)
        angle, straight = line_through(curve)
        return f"entropy at {angle:.3f} degree, R2 {straight:.2f} after {len(samples_ms)} samples"

    def _second_half(self, samples_ms: Sequence[float]) -> list[float]:
        return entropies(samples_ms, self.bin_width)[len(samples_ms) // 2 :]


def entropies(samples: Sequence[float], bin_width: float) -> list[float]:
    """Return the Shannon entropy of the histogram after each sample, in bit.

    Parameters
    ----------
    samples : sequence of float
        Not negative.
    bin_width : float
        Relative width of the bins, which are equal on the logarithmic scale; 0 for one bin for each
        value.
    """
    counts: Counter[float] = Counter()
    weighted = 0.0  # sum of n log2 n over all bins; entropy is log2 N minus that over N
    curve = []
    for number, sample in enumerate(samples, start=1):
        place = _bin(sample, bin_width)
        before = counts[place]
        counts[place] = before + 1
        weighted += _n_log_n(before + 1) - _n_log_n(before)
        curve.append(max(math.log2(number) - weighted / number, 0.0))
    return curve


def _bin(sample: float, width: float) -> float:
    if width == 0 or sample == 0:
        return sample if width == 0 else -math.inf
    return math.floor(math.log(sample) / math.log1p(width))


def _n_log_n(count: int) -> float:
    return count * math.log2(count) if count else 0.0


def line_through(curve: Sequence[float]) -> tuple[float, float]:
    """Return the angle of the line of least squares, in degrees, and its R².

    A curve without changes is straight: its R² is 1.
    """
    if max(curve) - min(curve) <= _FLAT:
        return 0.0, 1.0
    places = range(len(curve))
    slope = linear_regression(places, curve).slope
    return math.degrees(math.atan(slope)), correlation(places, curve) ** 2
