"""How the errors of an output are distributed, in a form short enough for a trace."""

from __future__ import annotations

import math
import struct
from functools import cache
from typing import TYPE_CHECKING

from flashinfer_bench.bench.judge.correctness import errors, pairs

if TYPE_CHECKING:
    import torch

LOWEST, HIGHEST = -12, 4
"""Powers of ten: smaller errors, 0 among them, are counted as one class, larger ones too."""

_NAMES = [f"<{10.0**LOWEST:.0e}", *(f"{10.0**power:.0e}" for power in range(LOWEST, HIGHEST + 1))]

_PIECES = 170  # of a larger output are counted, 4 million elements

# Errors are sorted by the upper bits of their float64: sign, exponent and 6 bits of the mantissa.
# That takes a fraction of the time of logarithms, and mixes up decades only within 1.6 % of their
# limits.
_DROPPED_BITS = 46
_LEAST, _MOST = 0.5 * 10.0**LOWEST, 2.0 * 10.0**HIGHEST


def error_histogram(actual: torch.Tensor, expected: torch.Tensor) -> dict[str, dict[str, int]]:
    """Count the elements of an output by the decade of their errors.

    Parameters
    ----------
    actual, expected : torch.Tensor
        CPU tensors of one shape.

    Returns
    -------
    dict
        ``absolute`` and ``relative``, each with the number of elements by the lower end of their
        decade: ``"1e-03"`` counts errors from 0.001 to below 0.01 (to within 1.6 %), ``"<1e-12"``
        and ``"1e+04"`` everything below and above, and ``"nonfinite"`` NaN and ±inf out of place.
        Classes without elements are left out. Of more than 4 million elements as many are counted,
        in pieces that lie at equal distances.
    """
    import torch

    counts = torch.zeros(2, _key(_MOST) - _key(_LEAST) + 1, dtype=torch.int64)
    out_of_place = [0, 0]
    for left, right in pairs(actual, expected, most=_PIECES):
        for place, error in enumerate(errors(left, right)):
            out_of_place[place] += _clear_nonfinite(error, left, right)
            counts[place] += torch.bincount(_bins(error), minlength=counts.shape[1])
    shown = map(_decades, counts.tolist(), out_of_place)
    return dict(zip(("absolute", "relative"), shown, strict=True))


def _clear_nonfinite(error: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> int:
    """Set errors that are NaN or inf to 0; return how many stand for elements that differ."""
    import torch

    if math.isfinite(float(error.amax())):
        return 0
    wide = left.to(torch.float64), right.to(torch.float64)
    same = (wide[0] == wide[1]) | (wide[0].isnan() & wide[1].isnan())
    odd = ~error.isfinite()
    error.masked_fill_(odd, 0.0)
    return int((odd & ~same).sum())


def _bins(error: torch.Tensor) -> torch.Tensor:
    """Return the upper bits of each error, counted from those of the smallest."""
    import torch

    bits = error.clamp_(_LEAST, _MOST).view(torch.int64)
    return bits.bitwise_right_shift_(_DROPPED_BITS).sub_(_key(_LEAST))


def _decades(counts: list[int], out_of_place: int) -> dict[str, int]:
    found = dict.fromkeys(_NAMES, 0)
    for place, count in enumerate(counts):
        found[_name(place + _key(_LEAST))] += count
    found[_NAMES[0]] -= out_of_place  # their errors were set to 0
    return {name: n for name, n in {**found, "nonfinite": out_of_place}.items() if n}


def _key(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0]) >> _DROPPED_BITS


@cache
def _name(key: int) -> str:
    """Return the name of the decade of all errors whose upper bits are `key`."""
    middle = (2 * key + 1) << (_DROPPED_BITS - 1)
    value = struct.unpack("<d", struct.pack("<q", middle))[0]
    power = math.floor(math.log10(value))
    return _NAMES[min(power, HIGHEST) - LOWEST + 1]
