"""What a device did for one call, and for how long: arithmetic on records of activity.

Times are in nanoseconds, on one clock for all streams and devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.errors import TimingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NS_PER_MS = 1e6
# What core occupies the device with: its own kernel, or torch's where that cannot be had.
_HOLD = "hold"
_SLEEP = "spin_kernel"


@dataclass(frozen=True)
class Activity:
    """One kernel, copy or fill.

    Attributes
    ----------
    what : str
        ``kernel``, ``memcpy`` or ``memset``.
    name : str
        Name of the kernel; empty for the others.
    start, end : int
        Nanoseconds; 0 where CUPTI does not know.
    order : int
        Correlation ID of the call that enqueued it: counts up over all of a process's calls. The
        kernels of a graph share one.
    device, stream : int
        Where it ran.
    graph : int
        ID of the CUDA graph that it is a part of; 0 if it is none.
    """

    what: str
    name: str
    start: int
    end: int
    order: int
    device: int = 0
    stream: int = 0
    graph: int = 0

    @property
    def holds(self) -> bool:
        """Whether it is what a timer occupies the device with, by its name."""
        return self.what == "kernel" and (self.name == _HOLD or _SLEEP in self.name)


@dataclass(frozen=True)
class Span:
    """From the first start to the last end.

    Attributes
    ----------
    start, end : int
        Nanoseconds.
    busy_ns : int
        For how long of that at least one activity was running.
    """

    start: int
    end: int
    busy_ns: int

    @property
    def milliseconds(self) -> float:
        """Its length."""
        return (self.end - self.start) / _NS_PER_MS

    @property
    def idle_share(self) -> float:
        """Which part of it the device was idle, from 0 to 1."""
        length = self.end - self.start
        return 1 - self.busy_ns / length if length else 0.0


def split_at_hold(activities: Iterable[Activity]) -> tuple[int, list[Activity]]:
    """Tell the activities of a call from the kernel that held the device before it.

    Parameters
    ----------
    activities : iterable of Activity
        All since the records were last discarded, in any order.

    Returns
    -------
    released : int
        When the device was let go, in nanoseconds.
    others : list of Activity
        What was enqueued after that kernel. A solution may have kernels of its name, too: the first
        one is the timer's.

    Raises
    ------
    TimingError
        If that kernel is not among them.
    """
    ordered = sorted(activities, key=lambda activity: activity.order)
    for index, activity in enumerate(ordered):
        if activity.holds:
            return activity.end, ordered[index + 1 :]
    raise TimingError(
        "CUPTI has not recorded the timer's own kernel: recording was switched off in this "
        f"process, or its buffers were lost ({len(ordered)} other records)",
        hint="see that the solution uses no profiler, or take --timer cuda_event",
    )


def span_of(activities: Sequence[Activity], *, not_before: int = 0) -> Optional[Span]:
    """Return from when to when a device worked.

    Parameters
    ----------
    activities : sequence of Activity
        What it did.
    not_before : int
        Nanoseconds. A kernel may be stamped as started while it waits for room on a device that is
        held; nothing counts before this.

    Returns
    -------
    Span or None
        None if there is no activity.

    Raises
    ------
    TimingError
        If a record has no times, or ends before it starts.
    """
    if not activities:
        return None
    for activity in activities:
        _require_times(activity)
    parts = sorted((max(a.start, not_before), max(a.end, not_before)) for a in activities)
    end = max(part[1] for part in parts)
    return Span(parts[0][0], end, _covered(parts))


def _covered(parts: Sequence[tuple[int, int]]) -> int:
    """Return how much the union of intervals covers, which are sorted by their starts."""
    total = 0
    reached = parts[0][0]
    for start, end in parts:
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _require_times(activity: Activity) -> None:
    """Raise `TimingError` for a record whose times make no sense."""
    if 0 < activity.start <= activity.end:
        return
    raise TimingError(
        f"CUPTI recorded {activity.what} {activity.name[:100]!r} from {activity.start} to "
        f"{activity.end} ns, which makes no sense",
        hint="take --timer cuda_event",
    )
