"""Latencies and their ratio, with the intervals in which they lie."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data import Performance
from flashinfer_bench.data.samples import rounded
from flashinfer_bench.stats.describe import count_outliers
from flashinfer_bench.stats.intervals import interleaved_ratio, median_interval, ratio_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.bench.judge.baseline import DeviceBaseline
    from flashinfer_bench.bench.judge.beside import Beside
    from flashinfer_bench.bench.judge.measure import Measurement
    from flashinfer_bench.bench.judge.timed import TimedRun
    from flashinfer_bench.stats.intervals import Interval

CONFIDENCE = 0.95
_TICKS = 5
"""Of fewer different samples than this share of all, the clock's steps are to be seen."""


@dataclass(frozen=True)
class Speeds:
    """How fast a solution is, in itself and against the reference.

    Attributes
    ----------
    performance : Performance
        What is recorded.
    reference : str
        When the reference was timed: ``beside`` the solution, ``before`` it, or ``not``.
    notes : tuple of str
        What a reader should know.
    """

    performance: Performance
    reference: str
    notes: tuple[str, ...] = ()


def speeds_of(run: TimedRun, baseline: DeviceBaseline) -> Speeds:
    """Return what the timed calls of a solution say.

    The reference's latency is the one that it has beside the solution, if it was called there. If
    it was much slower there than alone, the solution might be to blame: then the latter counts.

    Parameters
    ----------
    run : TimedRun
        The calls; at least one sample counts.
    baseline : DeviceBaseline
        Has the reference's latency when it is alone, if that was asked for.
    """
    taken = run.measurement
    alone = baseline.measurement
    if alone is None:
        return Speeds(_performance(taken, None, None), "not")
    beside = run.beside
    if beside is not None and beside.believed(alone.latency_ms):
        return Speeds(_performance(taken, beside.samples_ms, _paired(taken, beside)), "beside")
    ratio = ratio_interval(alone.counted_ms, taken.counted_ms, confidence=CONFIDENCE)
    notes: tuple[str, ...] = ()
    if beside is not None:
        times = f"{median(beside.samples_ms):.4g} ms beside this solution", alone.latency_ms
        notes = ("the reference took {} and {:.4g} ms alone: the latter counts".format(*times),)
    return Speeds(_performance(taken, alone.counted_ms, ratio), "before", notes)


def _performance(
    taken: Measurement, reference_ms: Optional[Sequence[float]], ratio: Optional[Interval]
) -> Performance:
    latency = taken.latency_ms
    reference = median(reference_ms) if reference_ms else 0.0
    counted = taken.counted_ms
    own = median_interval(
        counted, confidence=CONFIDENCE, resolution=resolution_of(taken.samples_ms)
    )
    speedup = reference / latency
    return Performance(
        latency_ms=latency,
        reference_latency_ms=reference,
        speedup_factor=speedup,
        samples_ms=list(taken.samples_ms),
        interval_ms=_around(latency, own),
        reference_samples_ms=list(reference_ms) if reference_ms else None,
        speedup_interval=_around(speedup, ratio) if ratio is not None else None,
        outliers=count_outliers(counted),
        dropped=list(taken.dropped) or None,
    )


def _around(value: float, interval: Interval) -> tuple[float, float]:
    """Return the ends of an interval, which hold `value`, in single precision like samples."""
    low, high = rounded((min(interval.low, value), max(interval.high, value)))
    return min(low, value), max(high, value)


def _paired(taken: Measurement, beside: Beside) -> Interval:
    """Return the speed-up, from the turns and the calls around them."""
    out = {number for first, end in taken.dropped for number in range(first, end)}
    blocks = []
    start = 0
    for samples, end in beside.blocks:
        own = [taken.samples_ms[n] for n in range(start, end) if n not in out]
        if own:
            blocks.append((samples, tuple(own)))
        start = end
    if not blocks:
        return ratio_interval(beside.samples_ms, taken.counted_ms, confidence=CONFIDENCE)
    return interleaved_ratio(blocks, confidence=CONFIDENCE)


def resolution_of(samples_ms: Sequence[float]) -> float:
    """Return the step of the clock in milliseconds, as far as it is to be seen in `samples_ms`.

    The smallest difference between samples, if there are so few different ones that a finer clock
    would have told more of them apart; otherwise 0.
    """
    steps = sorted(set(samples_ms))
    if len(steps) < 2 or len(steps) * _TICKS > len(samples_ms):
        return 0.0
    return min(after - before for before, after in pairwise(steps))
