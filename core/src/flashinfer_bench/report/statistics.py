"""The few statistics that reports need, on plain floats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.stats.samples import at_rank

if TYPE_CHECKING:
    from collections.abc import Sequence


def geometric_mean(values: Sequence[float]) -> Optional[float]:
    """Return the geometric mean, the right mean of ratios.

    Parameters
    ----------
    values : sequence of float
        Positive numbers.

    Returns
    -------
    float or None
        None if there are no values, or one is not a positive finite number.
    """
    if not values or any(not 0.0 < value < math.inf for value in values):
        return None
    if len(values) == 1:
        return values[0]  # as it is, without the rounding of a logarithm
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile by linear interpolation between neighbours.

    Parameters
    ----------
    ordered : sequence of float
        At least one value, in ascending order.
    share : float
        From 0, the smallest, to 1, the largest.

    Returns
    -------
    float
        The value below which that share of them lies.

    Raises
    ------
    ValueError
        If there is no value, or `share` is outside [0, 1].
    """
    if not ordered or not 0.0 <= share <= 1.0:
        raise ValueError(f"no quantile {share!r} of {len(ordered)} values")
    return at_rank(ordered, share * (len(ordered) - 1))


def median(values: Sequence[float]) -> Optional[float]:
    """Return the median, or None if there are no values."""
    return quantile(sorted(values), 0.5) if values else None


class Spread(NamedTuple):
    """Where samples lie: the median, the middle half, and all but the outer tenth at each end."""

    p10: float
    p25: float
    median: float
    p75: float
    p90: float


def spread(samples: Sequence[float]) -> Optional[Spread]:
    """Return the spread of `samples`, or None if there are none."""
    if not samples:
        return None
    ordered = sorted(samples)
    return Spread(*(quantile(ordered, share) for share in (0.1, 0.25, 0.5, 0.75, 0.9)))


def fast_p(speedups: Sequence[float], total: int) -> list[tuple[float, float]]:
    """Return the fast_p curve: the share of tasks solved, and more than p times as fast.

    The measure is that of KernelBench; a task here is one workload of one definition.

    Parameters
    ----------
    speedups : sequence of float
        Speed-up of each task that was solved correctly, positive.
    total : int
        Number of tasks, solved or not; at least ``len(speedups)``.

    Returns
    -------
    list of (float, float)
        Corners (p, share) in ascending order of p. The share holds from its p up to the next one;
        the first corner is at p = 0. Empty if there are no tasks.
    """
    if total <= 0:
        return []
    ordered = sorted(speedups)
    corners = [(0.0, len(ordered) / total)]
    for index, speedup in enumerate(ordered):
        share = (len(ordered) - index - 1) / total
        if corners[-1][0] == speedup:
            corners[-1] = (speedup, share)
        else:
            corners.append((speedup, share))
    return corners
