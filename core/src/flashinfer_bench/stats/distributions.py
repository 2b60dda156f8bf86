"""The normal distribution and Student's t, for any real number of degrees of freedom."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_NORMAL = NormalDist()
_TERMS = 300
_SMALL = 1e-300
_EXACT = 1e-15
_NORMAL_ENOUGH = 1e7
"""From so many degrees of freedom on, Student's t is the normal distribution to seven digits."""


def normal_quantile(share: float) -> float:
    """Return where the standard normal distribution reaches a share in (0, 1)."""
    return _NORMAL.inv_cdf(share)


def two_sided_p(statistic: float, freedom: float) -> float:
    """Return the chance of a value of Student's t at least as far from 0.

    Parameters
    ----------
    statistic : float
        The value; its sign does not matter.
    freedom : float
        Degrees of freedom, above 0.
    """
    if math.isinf(statistic):
        return 0.0
    if freedom >= _NORMAL_ENOUGH:
        return math.erfc(abs(statistic) / math.sqrt(2))
    square = statistic * statistic
    whole = freedom + square
    return _beta_share(freedom / whole, square / whole, freedom / 2, 0.5)


@lru_cache(maxsize=4096)
def t_quantile(confidence: float, freedom: float) -> float:
    """Return the half-width, in standard errors, of a two-sided interval of a mean.

    Parameters
    ----------
    confidence : float
        In (0, 1), such as 0.95.
    freedom : float
        Degrees of freedom, above 0.
    """
    outside = 1 - confidence
    low, high = 0.0, 2.0
    while two_sided_p(high, freedom) > outside:
        low, high = high, high * 2
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        if two_sided_p(middle, freedom) > outside:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _beta_share(x: float, rest: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b): DLMF 8.17.

    `rest` is 1 - x, which the difference itself would not tell where x is nearly 1.
    """
    if x <= 0 or rest <= 0:
        return float(rest <= 0)
    log_front = a * math.log(x) + b * math.log(rest)
    front = math.exp(log_front + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(rest, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of DLMF 8.17.22 by Lentz's method."""
    upper = 1.0
    lower = 1 / _away(1 - (a + b) * x / (a + 1))
    product = lower
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            lower = 1 / _away(1 + term * lower)
            upper = _away(1 + term / upper)
            step = upper * lower
            product *= step
        if abs(step - 1) < _EXACT:
            break
    return product


def _away(value: float) -> float:
    """Keep a divisor from 0."""
    return value if abs(value) > _SMALL else _SMALL
