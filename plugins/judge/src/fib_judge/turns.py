"""The ratio of the medians of two runs that took turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Optional

from flashinfer_bench.stats.distributions import t_quantile
from flashinfer_bench.stats.intervals import Interval, ratio_interval
from flashinfer_bench.stats.samples import median_of

_MANY_BLOCKS = 6
"""From so many blocks on, their ratios themselves tell how much a ratio varies."""

_MOST_GROUPS = 16
"""More blocks are merged: a median of several is not moved by one call that was disturbed."""

Block = tuple[Sequence[float], Sequence[float]]
"""Samples of the numerator, and samples of the denominator that were taken beside them."""


def interleaved_ratio(
    blocks: Sequence[Block],
    *,
    confidence: float = 0.95,
    resolution: float = 0.0,
) -> Interval:
    """Return the ratio of the medians of two runs that took turns, with its interval.

    What slows both down for a while does not change the ratio of a block. From six blocks on the
    interval is Student's of the logarithms of their ratios. With fewer it is that of
    `ratio_interval`, which is longer where blocks differ. The estimate is the ratio of the medians
    of all samples in either case, and the interval reaches to it.

    Parameters
    ----------
    blocks : sequence of (sequence of float, sequence of float)
        Numerator and denominator, for a speed-up reference and solution, one block after the other.
    confidence, resolution : float
        As for `median_interval`.

    Raises
    ------
    DataError
        As `ratio_interval`; also if there is no block.
    """
    top = [value for block in blocks for value in block[0]]
    bottom = [value for block in blocks for value in block[1]]
    whole = ratio_interval(top, bottom, confidence=confidence, resolution=resolution)
    logs = [_log_ratio(group) for group in _groups(blocks)]
    known = [log for log in logs if log is not None]
    if len(known) < _MANY_BLOCKS:
        return whole
    middle = math.fsum(known) / len(known)
    reach = t_quantile(confidence, len(known) - 1) * standard_error(known)
    low, high = math.exp(middle - reach), math.exp(middle + reach)
    return Interval(whole.estimate, min(low, whole.estimate), max(high, whole.estimate), confidence)


def _groups(blocks: Sequence[Block]) -> list[Block]:
    """Merge neighbours until there are at most as many as a t test gains from."""
    size = math.ceil(len(blocks) / _MOST_GROUPS)
    merged: list[Block] = []
    for begin in range(0, len(blocks), size):
        group = blocks[begin : begin + size]
        above = [value for block in group for value in block[0]]
        merged.append((above, [value for block in group for value in block[1]]))
    return merged


def _log_ratio(block: Block) -> Optional[float]:
    """Return the logarithm of the ratio of a block; None if it has none."""
    above, below = block
    if not above or not below:
        return None
    medians = median_of(above), median_of(below)
    return math.log(medians[0] / medians[1]) if min(medians) > 0 else None


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of at least two values."""
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - 1) / len(values))
