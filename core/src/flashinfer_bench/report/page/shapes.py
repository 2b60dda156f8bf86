"""How samples are distributed, in some forty bytes for each evaluation.

Of many samples 32 quantiles are kept, the least and the greatest among them, so that an outlier
stays in sight. Between these two each is one of 256 levels on a logarithmic scale: finer than the
pixels of a plot that shows them all.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.report.statistics import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

POINTS = 32
"""Most points of a shape."""

TOP = 255
"""The highest level; the lowest is 0."""

MOST_BYTES = 400_000
"""Compressed size of all shapes from which on none is taken along."""

_MOST = 1e300
_ZERO = 48  # the character of a step of 0: small steps are printable ones, of one byte each


class Shape(NamedTuple):
    """A distribution.

    Attributes
    ----------
    low, high : float
        The least and the greatest sample, in milliseconds.
    steps : str
        A character for each point, in ascending order: 48 more than how many levels it is above the
        one before; the first is above 0.
    """

    low: float
    high: float
    steps: str


def shape_of(samples: Sequence[float]) -> Optional[Shape]:
    """Return the shape of some samples; None if there are none.

    Up to 32 samples are kept one by one, of more the quantiles at 0, 1/31, … 1.

    Parameters
    ----------
    samples : sequence of float
        Finite and not negative, in any order.
    """
    if not samples:
        return None
    ordered = sorted(samples)
    points = ordered
    if len(ordered) > POINTS:
        points = [quantile(ordered, number / (POINTS - 1)) for number in range(POINTS)]
    low, high = ordered[0], ordered[-1]
    levels = [_level(point, low, high) for point in points]
    steps = [after - before for before, after in zip([0, *levels], levels, strict=False)]
    return Shape(low, high, "".join(chr(_ZERO + step) for step in steps))


def _level(value: float, low: float, high: float) -> int:
    if not low < high:
        return 0
    share = (value - low) / (high - low)
    if _is_logarithmic(low, high):
        share = math.log(value / low) / math.log(high / low)
    return round(TOP * min(max(share, 0.0), 1.0))


def _is_logarithmic(low: float, high: float) -> bool:
    """Return whether the quotient of both ends is a number; else levels are linear."""
    return low > 0 and high / low < _MOST


def points_of(shape: Shape) -> list[float]:
    """Return the points of a shape in milliseconds, as the page's script makes them, too."""
    points, level = [], 0
    for step in shape.steps:
        level += ord(step) - _ZERO
        share = level / TOP
        if _is_logarithmic(shape.low, shape.high):
            points.append(shape.low * (shape.high / shape.low) ** share)
        else:
            points.append(shape.low + (shape.high - shape.low) * share)
    return points


class ShapeBook:
    """Collects shapes, and stops where the page would get too large.

    Parameters
    ----------
    most_bytes : int
        See `MOST_BYTES`.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.shapes: list[Shape] = []
        self._most, self._used = most_bytes, 0
        self._compressor = zlib.compressobj(6)

    def add(self, samples: Sequence[float]) -> int:
        """Take the shape of some samples along; add those that matter most first.

        Returns
        -------
        int
            Its place in `shapes`; -1 if there are no samples, or there is no room.
        """
        shape = shape_of(samples) if self._used < self._most else None
        if shape is None:
            return -1
        text = f'[{shape.low:.5g},{shape.high:.5g},"{shape.steps}"],'
        self._used += len(self._compressor.compress(text.encode("utf-8")))
        if len(self.shapes) % 64 == 63:  # now and then: each flush costs room that is not used
            self._used += len(self._compressor.flush(zlib.Z_SYNC_FLUSH))
        self.shapes.append(shape)
        return len(self.shapes) - 1
