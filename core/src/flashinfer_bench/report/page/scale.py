"""From values to places on a chart, and where its grid lines stand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """A map of values onto one side of a chart.

    Parameters
    ----------
    low, high : float
        Values at `start` and `end`, ``low < high``; positive for a logarithmic scale.
    start, end : float
        Coordinates; the axis may run in either direction.
    logarithmic : bool
        Whether equal ratios, not equal differences, get equal lengths.
    ticks : tuple of float
        Values that get a grid line.
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        """Return the coordinate of `value`; values beyond the ends stay at the ends."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def doubling_scale(values: Iterable[float], start: float, end: float) -> Scale:
    """Return a logarithmic scale of ratios around 1, with lines at powers of two."""
    kept = [value for value in values if 0.0 < value < math.inf]
    low = math.floor(math.log2(min([*kept, 0.5])))
    high = math.ceil(math.log2(max([*kept, 2.0])))
    stride = math.ceil((high - low) / 8)
    # Counted from 1, so that the line that stands for "as fast as the reference" is always there.
    exponents = [e for e in range(low, high + 1) if e % stride == 0]
    return Scale(2.0**low, 2.0**high, start, end, True, tuple(2.0**e for e in exponents))


def decimal_scale(values: Iterable[float], start: float, end: float) -> Scale:
    """Return a scale of positive quantities: logarithmic if they differ more than tenfold."""
    kept = [value for value in values if 0.0 < value < math.inf] or [1.0]
    low, high = min(kept), max(kept)
    if high / low <= 10.0:
        return _from_zero(high, start, end)
    ticks = _decades(low, high)
    return Scale(min(low, ticks[0]), max(high, ticks[-1]), start, end, True, ticks)


def _from_zero(high: float, start: float, end: float) -> Scale:
    rough = high / 4.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(s * unit for s in _STEPS if s * unit >= rough * 0.999)
    count = math.ceil(high / step * 0.999)
    ticks = tuple(step * index for index in range(count + 1))
    return Scale(0.0, max(high, ticks[-1]), start, end, False, ticks)


def _decades(low: float, high: float) -> tuple[float, ...]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1.0, 2.0, 5.0) if high / low <= 100.0 else (1.0,)
    ticks = [f * 10.0**exponent for exponent in range(first, last + 1) for f in factors]
    # The outermost lines are the last below and the first above all values.
    begin = max(index for index, tick in enumerate(ticks) if tick <= low)
    end = min(index for index, tick in enumerate(ticks) if tick >= high)
    inside = ticks[begin : end + 1]
    return tuple(inside[:: math.ceil(len(inside) / 7)])


def ratio_label(value: float) -> str:
    """Return a ratio as it is read: ``2×``, ``0.52×``, ``1/250×``."""
    if value < 0.01:
        return f"1/{1 / value:,.0f}×"
    return f"{value:,.0f}×" if value >= 100.0 else f"{value:.3g}×"


def duration_label(milliseconds: float) -> str:
    """Return a duration in the unit that suits it: ``3.2 µs``, ``41 ms``, ``2 s``."""
    if milliseconds == 0.0:
        return "0"
    for limit, factor, unit in ((1e-3, 1e6, "ns"), (1.0, 1e3, "µs"), (1e3, 1.0, "ms")):
        if milliseconds < limit * 0.9995:
            return f"{milliseconds * factor:.3g} {unit}"
    seconds = milliseconds / 1e3
    return f"{seconds:,.0f} s" if seconds >= 1e3 else f"{seconds:.3g} s"
