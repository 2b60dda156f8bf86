"""Holding an evaluation against the one that was recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import quantiles
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flashinfer_bench.data import Correctness, Evaluation, Performance, Provenance

_ERRORS_MAY_DIFFER = 0.1  # relatively: sums whose order nobody decides end differently
_FEWEST_SAMPLES = 4  # of fewer nobody knows how they are spread
_MOST_EXCUSED = 2.0  # no spread of samples, and no slower machine, explains a larger factor
_SPEEDUP_MAY_DIFFER = 0.01  # relatively, of the recorded one from the latencies beside it
_NOTHING = "nothing"

_ABOUT_HOST = {
    "host": "host",
    "driver": "driver",
    "harness_version": "flashinfer-bench",
    "timer": "timer",
    "timer_version": "version of the timer",
    "evaluator": "evaluator",
    "sm_clock_mhz": "SM clock (MHz)",
    "memory_clock_mhz": "memory clock (MHz)",
    "device": "device",
}
_TABLES = ("plugins", "toolchain")
_COUNTS = {
    "cpu_threads": "CPU threads",
    "reference_calls": "timed calls of the reference alone",
    "timed_checks": "checked variations",
}


@dataclass(frozen=True)
class Comparison:
    """Two evaluations of the same thing, held against each other.

    Attributes
    ----------
    drift : tuple of str
        In what they contradict each other.
    differences : tuple of str
        What else is different, and may be why.
    """

    drift: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()


def compare(before: Evaluation, now: Evaluation, tolerance: float) -> Comparison:
    """Hold two evaluations of the same solution, inputs and settings against each other.

    Parameters
    ----------
    before, now : Evaluation
        The recorded one, and that of a replay.
    tolerance : float
        By how much latencies may differ, relative to the recorded one.

    Returns
    -------
    Comparison
        Statuses must be equal, errors must agree to 10 %. Latencies drift if they differ by more
        than `tolerance` *and* the interquartile ranges of their samples do not overlap. The samples
        of the recorded one, and the reference's latency, are part of a record that anyone may have
        edited, so that neither excuses more than a factor of two.
    """
    differences = list(_environment(before, now))
    if before.status != now.status:
        return Comparison((f"status {before.status} -> {now.status}",), tuple(differences))
    drift, notes = _errors(before.correctness, now.correctness)
    more, remarks = _performances(before.performance, now.performance, tolerance)
    drift, notes = drift + more, notes + remarks
    return Comparison(tuple(drift), (*notes, *differences))


def _errors(
    before: Optional[Correctness], now: Optional[Correctness]
) -> tuple[list[str], list[str]]:
    """Return errors that differ much, and those that differ little."""
    drift: list[str] = []
    notes: list[str] = []
    if before is None or now is None:
        return drift, notes
    for name in ("max_absolute_error", "max_relative_error"):
        then, today = getattr(before, name), getattr(now, name)
        if not _same_number(then, today):
            text = f"{name} {then:.4g} -> {today:.4g} (differs by {abs(today - then):.3g})"
            (notes if _close(then, today) else drift).append(text)
    return drift, notes


def _same_number(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= _ERRORS_MAY_DIFFER * max(abs(one), abs(other)) < math.inf


def _performances(
    before: Optional[Performance], now: Optional[Performance], tolerance: float
) -> tuple[list[str], list[str]]:
    """Return what contradicts the recorded latencies, and what does not count."""
    drift: list[str] = []
    notes: list[str] = []
    if before is None:
        return drift, notes
    if now is not None:
        drift += _latency(before, now, tolerance)
    drift += _speedup(before)
    then = before.reference_latency_ms
    today = now.reference_latency_ms if now is not None else 0.0
    # Then it may be the machine that drifts.
    if then and today and abs(today - then) > tolerance * then:
        far = max(then, today) > max(_MOST_EXCUSED, 1 + tolerance) * min(then, today)
        text = f"the reference's latency {then:.4g} -> {today:.4g} ms"
        (drift if far else notes).append(text)
    return drift, notes


def _latency(before: Performance, now: Performance, tolerance: float) -> list[str]:
    then, today = before.latency_ms, now.latency_ms
    if abs(today - then) <= tolerance * then:
        return []
    text = f"latency {then:.4g} -> {today:.4g} ms, outside {tolerance:.3g} of the recorded one"
    ranges = interquartile(before.samples_ms), interquartile(now.samples_ms)
    if ranges[0] is None or ranges[1] is None:
        return [f"{text} (there are too few samples to compare their ranges)"]
    if ranges[0][0] <= ranges[1][1] and ranges[1][0] <= ranges[0][1]:
        if max(then, today) <= _MOST_EXCUSED * min(then, today):
            return []
        return [f"{text}, by more than samples that scatter can excuse"]
    return [f"{text}, and the interquartile ranges of the samples do not overlap"]


def interquartile(samples: Optional[Sequence[float]]) -> Optional[tuple[float, float]]:
    """Return the first and the third quartile; None of fewer than four samples."""
    if samples is None or len(samples) < _FEWEST_SAMPLES:
        return None
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return low, high


def _speedup(before: Performance) -> list[str]:
    """Return whether the recorded speed-up contradicts the latencies that it was made of."""
    if before.latency_ms <= 0:
        return []
    told, made = before.speedup_factor, before.reference_latency_ms / before.latency_ms
    if math.isclose(told, made, rel_tol=_SPEEDUP_MAY_DIFFER):
        return []
    return [f"the recorded speed-up {told:.4g} is not that of the recorded latencies: {made:.4g}"]


def _environment(before: Evaluation, now: Evaluation) -> Iterator[str]:
    yield from _changed("hardware", before.environment.hardware, now.environment.hardware)
    yield from _tables(before.environment.libs, now.environment.libs)
    if before.provenance is not None and now.provenance is not None:
        yield from _provenance(before.provenance, now.provenance)


def _provenance(before: Provenance, now: Provenance) -> Iterator[str]:
    for field, name in _ABOUT_HOST.items():
        yield from _changed(name, getattr(before, field), getattr(now, field))
    for table in _TABLES:
        yield from _tables(getattr(before, table) or {}, getattr(now, table) or {}, fresh=False)
    for key, name in _COUNTS.items():
        yield from _changed(name, before.extra.get(key), now.extra.get(key))


def _changed(name: str, before: Any, now: Any) -> Iterator[str]:
    """Yield a line if both are known and different."""
    if before is not None and now is not None and before != now:
        yield f"{name}: {before} -> {now}"


def _tables(
    before: Mapping[str, Any], now: Mapping[str, Any], *, fresh: bool = True
) -> Iterator[str]:
    """Yield what differs; with `fresh` also what only one of them has."""
    for key in dict.fromkeys((*before, *now)):
        one, other = before.get(key), now.get(key)
        if one != other and (fresh or (one and other)):
            yield f"{key}: {one or _NOTHING} -> {other or _NOTHING}"
