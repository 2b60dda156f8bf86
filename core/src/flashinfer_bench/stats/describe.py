"""A run of samples in a few figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashinfer_bench.stats.intervals import Interval
from flashinfer_bench.stats.samples import require_samples

__all__ = ["Summary", "count_outliers", "describe", "require_samples"]


@dataclass(frozen=True)
class Summary:
    """A run of samples in a few figures; all but counts and shares in the unit of the samples."""

    count: int
    median: float
    interval: Interval
    mean: float
    minimum: float
    maximum: float
    p05: float
    p25: float
    p75: float
    p95: float
    relative_spread: float
    outliers: int


def describe(
    samples: Sequence[float], *, confidence: float = 0.95, resolution: float = 0.0
) -> Summary:
    """Return the figures of a run."""
    raise NotImplementedError


def count_outliers(samples: Sequence[float], *, resolution: float = 0.0) -> int:
    """Return how many samples lie far from the bulk."""
    raise NotImplementedError
