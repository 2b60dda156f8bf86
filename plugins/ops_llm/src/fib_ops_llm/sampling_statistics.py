"""Whether samples can come from given distributions: bounds that an honest sampler keeps to.

Every limit here is exceeded by independent samples of the right distribution with a probability of
at most `FALSE_ALARM`, whatever the distribution and however few samples there are:

* The **total-variation distance** (TVD) of *n* samples is, in the mean, half the sum of the mean
  absolute deviations of binomial variables, for which de Moivre's formula is exact. One sample
  changes it by at most 1/*n*, so that it exceeds its mean by √(ln(1/α) / 2*n*) with a probability
  of at most α (McDiarmid 1989).
* The **Kolmogorov-Smirnov distance** of *n* probability integral transforms from the uniform
  distribution exceeds √(ln(2/α) / 2*n*) with a probability of at most α (Massart 1990). In the
  order of probabilities it is as large as the TVD for every bias that favours or neglects probable
  tokens, and unlike the TVD it can be estimated from few samples of many tokens.
* A token of probability *e* is drawn at least *c* times of *n* with a probability of at most
  exp(-*n* KL(*c*/*n* ‖ *e*)) (Chernoff). It is **repeated** too often if that is below α *e*; these
  add up to α over all tokens.
* Rows are **independent**: of standardised variables of *B* rows and *n* calls, the sum of all
  products of two rows, divided by *B*, is a chi-square form of variance 2*n*(1 - 1/*B*), held to
  the bound 2√(*n s L*) + 2*s L* with *s* = 1 - 1/*B*, *L* = ln(1/α) (Laurent and Massart 2000).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Vector = np.ndarray[Any, np.dtype[Any]]

#: How often an honest sampler may fail each of the tests of one trial.
FALSE_ALARM = 1e-6


def expected_tvd(falling: Vector, count: int) -> float:
    """Return the mean total-variation distance of `count` samples from their own distribution.

    Parameters
    ----------
    falling : numpy.ndarray
        Probabilities of the tokens from the largest on; their sum is 1.
    count : int
        Number of samples.
    """
    import numpy as np

    # Tokens expected less than once, of which there may be very many: E|f - e| = 2 e (1 - e)ⁿ.
    often = int(np.count_nonzero(falling * count >= 1.0))
    rare = falling[often:]
    total = float((rare * np.exp(count * np.log1p(-rare))).sum())
    common = falling[:often][falling[:often] < 1.0]
    if not len(common):
        return total
    m = np.minimum(np.floor(common * count), count - 1).astype(np.int64)
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, count + 1)))))
    choose = factorials[count] - factorials[m + 1] - factorials[count - m - 1]
    logs = np.log(m + 1.0) + choose + (m + 1) * np.log(common) + (count - m) * np.log1p(-common)
    return total + float(np.exp(logs).sum()) / count


def tvd_margin(count: int, tests: int = 1) -> float:
    """Return by how much a TVD of `count` samples may exceed its mean, if it is one of `tests`."""
    return math.sqrt(math.log(tests / FALSE_ALARM) / (2.0 * count))


def ks_limit(count: int) -> float:
    """Return the largest Kolmogorov-Smirnov distance that `count` honest samples have."""
    return math.sqrt(math.log(2.0 / FALSE_ALARM) / (2.0 * count))


def ks_distance(uniforms: Vector) -> float:
    """Return the largest distance between the distribution of `uniforms` and that on [0, 1]."""
    import numpy as np

    ordered = np.sort(uniforms, axis=None)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))


def is_repeated(
    counts: Vector, probabilities: Vector, *, rows: int = 1, threshold: float = 0.0
) -> Vector:
    """Return which tokens were drawn more often than chance explains.

    Parameters
    ----------
    counts, probabilities : numpy.ndarray
        Of each token that was drawn.
    rows : int
        Number of rows that are tested.
    threshold : float
        By how much the share of a token may exceed its probability in any case.
    """
    import numpy as np

    total = counts.sum()
    share, expected = counts / total, np.clip(probabilities, 1e-300, 1.0)
    # Terms with 0 · log 0 are 0; a token that must come cannot come too often.
    with np.errstate(divide="ignore", invalid="ignore"):
        others = np.where(share < 1.0, (1 - share) * np.log((1 - share) / (1 - expected)), 0.0)
    divergence = share * np.log(share / expected) + others
    allowed = math.log(FALSE_ALARM / rows) + np.log(expected)
    found: Vector = (share > expected + threshold) & (-total * divergence < allowed)
    return found


def dependence(standard: Vector) -> tuple[float, float]:
    """Return how much rows depend on one another, and the most that chance explains.

    Both are shares of what rows would have that are copies of one another.

    Parameters
    ----------
    standard : numpy.ndarray
        ``[calls, rows]`` bounded values of mean 0 and variance 1 for every row; at least two rows.
    """
    calls, rows = standard.shape
    products = float((standard.sum(axis=1) ** 2 - (standard**2).sum(axis=1)).sum()) / rows
    share, log = 1.0 - 1.0 / rows, math.log(1.0 / FALSE_ALARM)
    limit = 2.0 * math.sqrt(calls * share * log) + 2.0 * share * log
    copies = calls * (rows - 1)
    return products / copies, limit / copies
