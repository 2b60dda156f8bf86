"""What has been seen during a timing, and which samples count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_DROPPED = 0.75
"""If more than this share was throttled, that is how the device is: all samples count."""

Range = tuple[int, int]


@dataclass(frozen=True)
class WatchReport:
    """What watchers have seen during one timing.

    Attributes
    ----------
    facts : dict
        For each watcher what it has read: JSON, and small enough for every trace.
    throttled : tuple of (int, int)
        First and last number of the samples that were taken while the device was throttled, counted
        from 0, both included; in order, without overlap.
    notes : tuple of str
        What a reader of the numbers should know.
    samples : int
        How many samples the watch knows of.
    waited_s : float
        Seconds waited for the device to be fast again.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    throttled: tuple[Range, ...] = ()
    notes: tuple[str, ...] = ()
    samples: int = 0
    waited_s: float = 0.0


class Kept(NamedTuple):
    """Samples that count, and the numbers of those that do not.

    Attributes
    ----------
    kept : tuple of float
        What statistics are made of; never empty if there was a sample.
    dropped : tuple of int
        Positions, counted from 0, of the samples that were left out.
    """

    kept: tuple[float, ...]
    dropped: tuple[int, ...]


def keep(samples: Sequence[float], report: WatchReport) -> Kept:
    """Leave out the samples that were taken while the device was throttled.

    All samples belong into the trace, these included. If more than `MOST_DROPPED` of them would go,
    none do: a benchmark never ends empty, nor with a handful of lucky samples.

    Parameters
    ----------
    samples : sequence of float
        All samples, in the order taken.
    report : WatchReport
        Of the watch that was told of them.
    """
    dropped = throttled_positions(report.throttled, len(samples))
    if too_many(len(dropped), len(samples)):
        dropped = ()
    out = frozenset(dropped)
    kept = tuple(sample for index, sample in enumerate(samples) if index not in out)
    return Kept(kept, dropped)


def too_many(throttled: int, samples: int) -> bool:
    """Return whether so many samples were throttled that all have to count."""
    return throttled > MOST_DROPPED * samples


def throttled_positions(ranges: Iterable[Range], samples: int) -> tuple[int, ...]:
    """Return the positions in `ranges` that are below `samples`, in order, each once."""
    clipped = ((max(first, 0), min(last, samples - 1)) for first, last in ranges)
    return tuple(sorted({index for first, last in clipped for index in range(first, last + 1)}))


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return ranges that hold the same numbers, in order, without overlaps and seams."""
    result: list[Range] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        elif first <= last:
            result.append((first, last))
    return tuple(result)


def remark(ranges: Iterable[Range], samples: int, reasons: Iterable[str]) -> tuple[str, ...]:
    """Return what to say about throttled samples; nothing if there are none."""
    count = len(throttled_positions(ranges, samples))
    if not count:
        return ()
    why = ", ".join(sorted(set(reasons)))
    many = too_many(count, samples)
    then = "too many to leave out, so all of them count" if many else "they do not count"
    return (
        f"{count} of {samples} samples were taken while the device was throttled ({why}): {then}",
    )
