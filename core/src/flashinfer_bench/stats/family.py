"""Several comparisons together: their mean, and p-values that allow for their number."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.comparison import Comparison, Effect, Verdict, decide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.stats.intervals import Interval


@dataclass(frozen=True)
class Overall:
    """Several comparisons together.

    Attributes
    ----------
    ratio : Interval
        Geometric mean of the ratios.
    p_value : float
        Of that mean, by Holm's method among it and all comparisons.
    verdict : Verdict
        About the mean.
    comparisons : tuple of Comparison
        Those given, with p-values by Holm's method, and verdicts by these.
    """

    ratio: Interval
    p_value: float
    verdict: Verdict
    comparisons: tuple[Comparison, ...]

    @property
    def worst(self) -> Verdict:
        """SLOWER if the mean or any comparison is; else ambiguous, the same, or faster alike."""
        found = {self.verdict, *(comparison.verdict for comparison in self.comparisons)}
        order = (Verdict.SLOWER, Verdict.AMBIGUOUS, Verdict.SAME, Verdict.FASTER)
        return next(verdict for verdict in order if verdict in found)


def overall(
    comparisons: Sequence[Comparison], *, min_effect: float = 0.01, alpha: float = 0.05
) -> Overall:
    """Take comparisons of several workloads together.

    The mean is over these workloads, each counting the same; it says nothing of others. Its error
    comes from theirs, with degrees of freedom by Welch & Satterthwaite. It and each comparison are
    one family of tests for Holm's method; intervals are not widened for that. That two are the same
    is not corrected: to say it of all, every single test has to be passed.

    Parameters
    ----------
    comparisons : sequence of Comparison
        At least one.
    min_effect, alpha : float
        As for `compare_launches`.

    Raises
    ------
    DataError
        If there are none.
    """
    if not comparisons:
        raise DataError("no comparisons to take together; at least one is needed")
    if len(comparisons) == 1:
        one = comparisons[0]
        single = _judged(one, one.p_value, min_effect, alpha)
        return Overall(one.ratio, one.p_value, single.verdict, (single,))
    mean = _mean(comparisons)
    spent = min(comparison.spent for comparison in comparisons)
    ratio = mean.interval(alpha, spent)
    p_values = [mean.p_value(spent), *(comparison.p_value for comparison in comparisons)]
    adjusted = holm(p_values)
    judged = tuple(
        _judged(each, p_value, min_effect, alpha)
        for each, p_value in zip(comparisons, adjusted[1:], strict=True)
    )
    verdict = decide(
        ratio.estimate,
        adjusted[0],
        mean.p_same(min_effect, spent),
        min_effect=min_effect,
        alpha=alpha,
    )
    return Overall(ratio, adjusted[0], verdict, judged)


def _judged(one: Comparison, p_value: float, min_effect: float, alpha: float) -> Comparison:
    """Return a comparison with the verdict that a corrected p-value gives."""
    effect = Effect(math.log(one.ratio.estimate), one.error, one.freedom)
    p_same = effect.p_same(min_effect, one.spent)
    verdict = decide(one.ratio.estimate, p_value, p_same, min_effect=min_effect, alpha=alpha)
    return replace(one, p_value=p_value, p_same=p_same, verdict=verdict)


def _mean(comparisons: Sequence[Comparison]) -> Effect:
    count = len(comparisons)
    log = math.fsum(math.log(each.ratio.estimate) for each in comparisons) / count
    squares = [each.error**2 for each in comparisons]
    total = math.fsum(squares)
    if total == 0 or math.isinf(total):
        return Effect(log, math.sqrt(total), 1.0)
    shares = [square / total for square in squares]
    freedom = 1 / max(
        math.fsum(s * s / each.freedom for s, each in zip(shares, comparisons, strict=True)), 1e-300
    )
    return Effect(log, math.sqrt(total) / count, freedom)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return p-values adjusted for their number, in the order given.

    By Holm, A simple sequentially rejective multiple test procedure (1979): the chance that any of
    them falls to alpha or below by chance is at most alpha, however they depend on one another.

    Raises
    ------
    DataError
        If one is not in [0, 1].
    """
    for index, value in enumerate(p_values):
        if not 0 <= value <= 1:
            raise DataError(f"p_values[{index}] is {value!r}; allowed is 0 to 1")
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for done, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        reached = max(reached, min(1.0, (len(p_values) - done) * p_values[index]))
        adjusted[index] = reached
    return tuple(adjusted)
