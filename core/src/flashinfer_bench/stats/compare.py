"""Whether one solution is faster than another: tests over pairs of fresh processes.

Two processes of the same program differ: in where their memory lies, in what the machine does
meanwhile. Calls of one process share that, so they are not independent, and more of them do not
make it smaller (Kalibera & Jones, Rigorous benchmarking in reasonable time, 2013). So a launch,
which is one pair of fresh processes, counts as one observation, and Student's t allows for there
being few.

Launches go on until the answer is clear. Whoever looks often finds something by chance in the
end, so alpha is spent over planned looks, in equal parts (Lan & DeMets, Discrete sequential
boundaries for clinical trials, 1983; the linear spending of Kim & DeMets, 1987). Bonferroni's
inequality adds the looks up, rather than an integral over their joint normal distribution: with
four launches nothing is normal, and p-values made so are valid at every level, which Holm's
method needs. Intervals are repeated confidence intervals (Jennison & Turnbull, 1989): they hold
at all looks together.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.comparison import Comparison, Effect, Launch, Verdict, decide
from flashinfer_bench.stats.distributions import normal_quantile
from flashinfer_bench.stats.family import Overall, holm, overall
from flashinfer_bench.stats.intervals import Interval, median_interval
from flashinfer_bench.stats.samples import median_of, require_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "LOOKS",
    "PROCESS_SPREAD",
    "Comparison",
    "Launch",
    "Overall",
    "Verdict",
    "compare_launches",
    "compare_unpaired",
    "decide",
    "enough",
    "holm",
    "overall",
]

LOOKS = (4, 8, 12, 16, 20, 24)
"""After so many launches `enough` looks at them. Each look spends an equal part of alpha."""

PROCESS_SPREAD = 0.01
"""How far the medians of two processes of one program differ, as a standard deviation of their
logarithms, if nobody has measured it. Runs that were not interleaved differ by at least that."""

_TRIMMED = 0.2
"""Share of launches left out at either end, of at least eight: as Wilcox, Introduction to robust
estimation and hypothesis testing (2012), recommends. On busy machines a fifth are disturbed."""

_FEWEST_TO_TRIM = 8


def compare_launches(
    launches: Sequence[Launch],
    *,
    min_effect: float = 0.01,
    alpha: float = 0.05,
    capped: bool = False,
) -> Comparison:
    """Compare two solutions over pairs of fresh processes.

    What coming second costs is estimated over all launches together, and taken out. Of each launch,
    what then counts is the median of the log ratios of its pairs. Of these, the trimmed mean is
    taken, with the t test of Tukey & McLaughlin (1963).

    Parameters
    ----------
    launches : sequence of Launch
        At least one. One alone gives no verdict, two or three hardly.
    min_effect : float
        Least relative difference that matters: 0.01 for 1 %.
    alpha : float
        Chance of a false alarm.
    capped : bool
        Whether the launches ended for another reason than `enough`, such as time. Then the last
        look spends all that is left of alpha.

    Raises
    ------
    DataError
        If a sample is no latency or is 0, the two sides differ in number, or there is no launch.
    """
    effects = _effects_of(launches)
    if not effects:
        raise DataError("no launches to compare; at least one is needed")
    spent = _spent(len(launches), capped)
    effect = _trimmed(effects)
    return _compared(
        effect,
        min_effect,
        alpha,
        launches=len(launches),
        pairs=sum(len(launch.baseline) for launch in launches),
        paired=True,
        spent=spent,
    )


def _compared(
    effect: Effect,
    min_effect: float,
    alpha: float,
    *,
    launches: int,
    pairs: int,
    paired: bool,
    spent: float = 1.0,
) -> Comparison:
    ratio, p_value = effect.interval(alpha, spent), effect.p_value(spent)
    p_same = effect.p_same(min_effect, spent)
    return Comparison(
        ratio=ratio,
        p_value=p_value,
        verdict=decide(ratio.estimate, p_value, p_same, min_effect=min_effect, alpha=alpha),
        launches=launches,
        pairs=pairs,
        paired=paired,
        error=effect.error,
        freedom=effect.freedom,
        spent=spent,
        p_same=p_same,
    )


def _spent(count: int, capped: bool) -> float:
    """Return the share of alpha for a look after so many launches."""
    if not capped and count < LOOKS[-1]:
        return 1 / len(LOOKS)
    return 1 - min(bisect_left(LOOKS, count), len(LOOKS) - 1) / len(LOOKS)


def _effects_of(launches: Sequence[Launch]) -> list[float]:
    """Return the log ratio of each launch, without what the order of calls does.

    A median of all pairs is far surer than one of blocks of two: a block is disturbed if either of
    its pairs is. But then the order has to be taken out first. It is the same in all launches,
    and so is known better than in any of them.
    """
    logs = [_logs_of(launch, f"launches[{i}]") for i, launch in enumerate(launches)]
    found = [_order_of(*one) for one in zip(launches, logs, strict=True) if len(one[1]) > 1]
    order = median_of(found) if found else 0.0
    return [
        median_of([log - _sign(launch, place) * order for place, log in enumerate(each)])
        for launch, each in zip(launches, logs, strict=True)
    ]


def _sign(launch: Launch, place: int) -> int:
    """Return 1 if the baseline was called first in a pair, else -1."""
    return -1 if bool(place % 2) != launch.candidate_first else 1


def _order_of(launch: Launch, logs: Sequence[float]) -> float:
    """Return how much more the log ratio is where the baseline was called first."""
    whole = len(logs) // 2 * 2
    even, odd = median_of(logs[:whole:2]), median_of(logs[1:whole:2])
    return _sign(launch, 0) * (even - odd) / 2


def _logs_of(launch: Launch, what: str) -> list[float]:
    """Return the log ratio of each pair."""
    sides = {
        name: require_samples(samples, f"{what}.{name}")
        for name, samples in (("baseline", launch.baseline), ("candidate", launch.candidate))
    }
    for name, samples in sides.items():
        if 0 in samples:
            raise DataError(f"{what}.{name}[{samples.index(0)}] is 0, which has no ratio")
    before, after = sides.values()
    if len(before) != len(after):
        raise DataError(f"{what} has {len(before)} baseline and {len(after)} candidate samples")
    return [math.log(b / a) for a, b in zip(before, after, strict=True)]


def _trimmed(effects: Sequence[float]) -> Effect:
    """Return the trimmed mean of the launches with its standard error."""
    count = len(effects)
    cut = int(_TRIMMED * count) if count >= _FEWEST_TO_TRIM else 0
    ordered = sorted(effects)
    kept = ordered[cut : count - cut]
    middle = math.fsum(kept) / len(kept)
    if count == 1:
        return Effect(middle, math.inf, 1.0)
    drawn_in = [ordered[cut]] * cut + kept + [ordered[-1 - cut]] * cut
    centre = math.fsum(drawn_in) / count
    variance = math.fsum((value - centre) ** 2 for value in drawn_in) / (count - 1)
    share = len(kept) / count
    return Effect(middle, math.sqrt(variance / count) / share, len(kept) - 1.0)


def compare_unpaired(
    baseline_samples: Sequence[float],
    candidate_samples: Sequence[float],
    *,
    min_effect: float = 0.01,
    alpha: float = 0.05,
    resolution: float = 0.0,
    process_spread: float = PROCESS_SPREAD,
) -> Comparison:
    """Compare two runs that were taken apart. Weaker: what differs between processes is assumed.

    Parameters
    ----------
    baseline_samples, candidate_samples : sequence of float
        Latencies of one unit, each in the order taken, from one process each.
    min_effect, alpha : float
        As for `compare_launches`.
    resolution : float
        Tick of their clock.
    process_spread : float
        Standard deviation of the logarithm of the median from one process to another of one
        program.

    Raises
    ------
    DataError
        If a sample is no latency, or a median is 0.
    """
    runs = (baseline_samples, candidate_samples)
    sides = [median_interval(samples, resolution=resolution) for samples in runs]
    for name, side in zip(("baseline", "candidate"), sides, strict=True):
        if side.estimate == 0:
            raise DataError(f"the median of the {name} is 0, so there is no ratio")
    errors = [_log_error(side) for side in sides] + [process_spread, process_spread]
    log = math.log(sides[1].estimate / sides[0].estimate)
    effect = Effect(log, math.hypot(*errors), math.inf)
    return _compared(effect, min_effect, alpha, launches=1, pairs=0, paired=False)


def _log_error(side: Interval) -> float:
    """Return the standard error of the logarithm of a median, from its interval."""
    if side.low <= 0 or side.confidence <= 0:
        return math.inf
    reach = normal_quantile((1 + side.confidence) / 2)
    return math.log(side.high / side.low) / 2 / reach


def enough(
    launches: Sequence[Launch], min_effect: float = 0.01, alpha: float = 0.05, *, tests: int = 1
) -> bool:
    """Return whether more launches are not needed. To be asked after each launch.

    It looks only after 4, 8, 12, 16, 20 and 24 launches (`LOOKS`), and says no in between. It
    says yes for any verdict but AMBIGUOUS, and for the last look.

    Parameters
    ----------
    launches : sequence of Launch
        All so far.
    min_effect, alpha : float
        As for `compare_launches`.
    tests : int
        How many tests Holm's method will be applied to; those of `overall` are one more than there
        are workloads, if there are several.
    """
    if len(launches) >= LOOKS[-1]:
        return True
    if len(launches) not in LOOKS:
        return False
    found = compare_launches(launches, min_effect=min_effect, alpha=alpha / max(1, tests))
    return found.verdict is not Verdict.AMBIGUOUS or found.p_same <= alpha
