"""How well a median is known: a quick estimate that drift and outliers do not deceive."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_Z = 2.5758  # standard normal quantile at 0.995, which McKean and Schrader take
_BLOCKS = 8
_PER_BLOCK = 4  # fewer samples do not make a block


def relative_error(samples_ms: Sequence[float]) -> float:
    """Return the relative standard error of the median.

    The larger one of two estimates: `order_error` holds for independent samples, `block_error` sees
    drift and slow oscillation too.

    Parameters
    ----------
    samples_ms : sequence of float
        At least one sample, in the order taken.

    Returns
    -------
    float
        Standard error over median; infinite if that cannot be told.
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
