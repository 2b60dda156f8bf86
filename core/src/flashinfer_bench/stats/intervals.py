"""Intervals of medians and of their ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """An estimate, and where the true value is with some confidence.

    Attributes
    ----------
    estimate : float
        The figure itself, in the unit of the samples, or a ratio.
    low, high : float
        The ends. The estimate lies between them.
    confidence : float
        Share of such intervals that hold the true value; less than asked for where few samples
        do not allow more.
    """

    estimate: float
    low: float
    high: float
    confidence: float

    @property
    def half_width(self) -> float:
        """Half of the width as a share of the estimate; infinite for an estimate of 0."""
        width = self.high - self.low
        if self.estimate == 0:
            return math.inf if width else 0.0
        return width / 2 / self.estimate

    def excludes(self, value: float) -> bool:
        """Return whether a value lies outside."""
        return not self.low <= value <= self.high


def median_interval(
    samples: Sequence[float], *, confidence: float = 0.95, resolution: float = 0.0
) -> Interval:
    """Return the median with its interval."""
    raise NotImplementedError


def ratio_interval(
    numerator: Sequence[float],
    denominator: Sequence[float],
    *,
    confidence: float = 0.95,
    resolution: float = 0.0,
) -> Interval:
    """Return the ratio of the medians of two independent runs with its interval."""
    raise NotImplementedError


def interleaved_ratio(
    blocks: Sequence[tuple[Sequence[float], Sequence[float]]],
    *,
    confidence: float = 0.95,
    resolution: float = 0.0,
) -> Interval:
    """Return the ratio of the medians of two runs that were interleaved, with its interval."""
    raise NotImplementedError
