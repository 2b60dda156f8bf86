"""Latencies from the device's own records of what it did."""

from __future__ import annotations

import atexit
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from fib_timing_cuda.cuda_event import CudaEventTimer
from fib_timing_cuda.driver import LEAST_MS
from flashinfer_bench.bench.timing import Timer
from flashinfer_bench.errors import TimingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


# What a device did for one call, and for how long: arithmetic on records of activity.
#
# Times are in nanoseconds, on one clock for all streams and devices.


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
        hint="make sure the solution uses no profiler, or use --timer cuda_event",
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
        hint="use --timer cuda_event",
    )


# Having CUPTI record what this process does on its devices.
#
# Through NVIDIA's ``cupti-python``. Records come in buffers of its own, to a callback, in any
# thread.


logger = logging.getLogger(__name__)

# About 1000 kernels; CUPTI asks for another one when it is full. It does after each flush, too, in
# the middle of a launch, and the larger it is the longer that takes: 0.35 ms for 8 MiB.
_BUFFER_BYTES = 256 << 10
_ANY_NUMBER = 0
_COMPLETE = 0  # only buffers whose records are all complete
_FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: all of them
_SEVERAL_SUBSCRIBERS = 39  # CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
_INSUFFICIENT_PRIVILEGES = 35  # CUPTI_ERROR_INSUFFICIENT_PRIVILEGES

# Of `cupti.ActivityKind`, with what they are called here.
_KINDS = {
    "CONCURRENT_KERNEL": "kernel",
    "MEMCPY": "memcpy",
    "MEMCPY2": "memcpy",
    "MEMSET": "memset",
}

_HINTS = {
    _SEVERAL_SUBSCRIBERS: "another tool records this process: nsys, ncu, torch.profiler, "
    "compute-sanitizer or cuda-gdb; run without it, or use --timer cuda_event",
    _INSUFFICIENT_PRIVILEGES: "the driver allows profiling to administrators only; ask for "
    "NVreg_RestrictProfilingToAdminUsers=0, or use --timer cuda_event",
}
_OTHER_HINT = "check that cupti-python and libcupti match torch's CUDA, or use --timer cuda_event"


class Recorder:
    """Records kernels, copies and fills of all streams, from the first `start` to the end.

    All functions are looked up when it is made, which touches no device. It is the only subscriber
    from then on: no profiler can be started beside it.
    """

    def __init__(self) -> None:
        from cupti import cupti

        self._subscribe: Any = cupti.subscribe
        self._unsubscribe: Any = cupti.unsubscribe
        self._register: Any = cupti.activity_register_callbacks
        self._enable: Any = cupti.activity_enable
        self._disable: Any = cupti.activity_disable
        self._flush: Any = cupti.activity_flush_all
        self._error: type[Exception] = cupti.cuptiError
        self._kinds = {int(getattr(cupti.ActivityKind, k)): what for k, what in _KINDS.items()}
        self._found: list[Activity] = []
        self._keeping = True
        self._subscriber: Any = None

    def start(self) -> None:
        """Begin, unless that is done.

        Raises
        ------
        TimingError
            If CUPTI refuses.
        """
        if self._subscriber is not None:
            return
        # Another tool's records would stop, or come here, if both went on: only this call says so.
        subscriber = self._try("subscribe to CUPTI", self._subscribe, _ignore, None)
        try:
            self._try("hand buffers to CUPTI", self._register, _new_buffer, self._take)
            for kind, what in self._kinds.items():
                self._try(f"record each {what}", self._enable, kind)
        except TimingError:
            self._unsubscribe(subscriber)
            raise
        self._subscriber, self._keeping = subscriber, True
        # Buffers that are handed over while the interpreter ends would find no callback.
        atexit.register(self.stop)

    def stop(self) -> None:
        """End it; nothing happens if it has not been started."""
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is None:
            return
        atexit.unregister(self.stop)
        try:
            for kind in self._kinds:
                self._disable(kind)
            self._flush(_FORCED)
            self._unsubscribe(subscriber)
        except (self._error, RuntimeError) as error:
            logger.debug("CUPTI could not be stopped: %s", error)

    def discard(self) -> None:
        """Forget what has been recorded; keep what is recorded from now on, until it is collected.

        Raises
        ------
        TimingError
            If CUPTI does not hand over its buffers.
        """
        self._keeping = False  # reading a record takes longer than CUPTI takes to write it
        self._try("hand over records", self._flush, _COMPLETE)
        self._found.clear()
        self._keeping = True

    def collect(self) -> list[Activity]:
        """Return what has been recorded since, by devices that have finished; forget it.

        Raises
        ------
        TimingError
            If CUPTI does not hand over its buffers.
        """
        self._try("hand over records", self._flush, _COMPLETE)
        if not self._found:
            self._try("hand over records", self._flush, _FORCED)
        self._keeping = False
        found, self._found = self._found, []
        return found

    def _try(self, what: str, function: Any, *arguments: Any) -> Any:
        """Call a function of CUPTI."""
        try:
            return function(*arguments)
        except (self._error, RuntimeError) as error:  # the latter where a library is not found
            hint = _HINTS.get(getattr(error, "status", -1), _OTHER_HINT)
            raise TimingError(f"cannot {what}: {error}", hint=hint) from error

    def _take(self, records: Iterable[Any]) -> None:
        """Keep what matters of a buffer, which is freed once its records are."""
        if self._keeping:
            self._found.extend(
                _read(record, self._kinds) for record in records if record.kind in self._kinds
            )


def _ignore(*_: object) -> None:
    """Be the callback of a subscriber who wants no calls."""


def _new_buffer() -> tuple[int, int]:
    """Say how large a buffer is to be, in bytes, and how many records may be in it."""
    return _BUFFER_BYTES, _ANY_NUMBER


def _read(record: Any, kinds: dict[int, str]) -> Activity:
    what = kinds[record.kind]
    is_kernel = what == "kernel"
    # A kernel that launches others is over when they are.
    end = max(record.end, record.completed) if is_kernel else record.end
    return Activity(
        what=what,
        name=str(record.name) if is_kernel else "",
        start=record.start,
        end=end,
        order=record.correlation_id,
        device=record.device_id,
        stream=record.stream_id,
        graph=record.graph_id,
    )


# From one event to the first activity, and from the last to the other event: 2.0 to 3.5 µs on an
# H200, and 6.4 where a graph has to be started.
_EVENTS_MS = 0.005
_GRAPH_MS = 0.009
# A call that leaves no record has the time of two events, unless it works elsewhere.
_ELSEWHERE_MS = 1.0
_NOTICEABLE_IDLENESS = 0.10

# Without figures: a trace keeps each remark once, whatever the number of calls.
_NOTHING = "no kernel, copy or fill was recorded: the latency is that of two events with no work"
_UNSEEN = (
    "the time by CUDA events, being longer than from the first recorded activity to the last, is "
    "used"
)
_IDLE = "the device was idle for over a tenth of the time from a call's first activity to its last"


class CuptiTimer(Timer):
    """Times from the start of a call's first activity to the end of its last, on all streams.

    The call is made by the timer of CUDA events, which holds the device while work is enqueued. Its
    figure is an upper bound, so a call cannot be quicker by what CUPTI is kept from seeing: where
    both differ by more than events ever take, that of the events is given.
    """

    name = "cupti"
    version = "2"
    resolution_ms = 1e-6

    def __init__(self) -> None:
        import torch

        self._synchronize = torch.cuda.synchronize
        self._events = CudaEventTimer()
        self._recorder = Recorder()
        self._notes: dict[str, None] = {}

    def time_call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], *, device: str
    ) -> tuple[float, Any]:
        """Time one call; see `Timer.time_call`."""
        self._recorder.start()
        self._events.prepare(device)
        # What went on before is complete then, and cannot come with the records of this call.
        self._synchronize(device)
        self._recorder.discard()
        by_events, result = self._events.time_call(function, arguments, device=device)
        return self._latency(self._recorder.collect(), by_events), result

    def take_notes(self) -> list[str]:
        """Return and forget the remarks; see `Timer.take_notes`."""
        notes, self._notes = [*self._events.take_notes(), *self._notes], {}
        return notes

    def _latency(self, activities: list[Activity], by_events: float) -> float:
        released, others = split_at_hold(activities)
        span = span_of(others, not_before=released)
        if span is None:
            return self._without_activity(by_events)
        starts_graph = min(others, key=lambda activity: activity.start).graph != 0
        # Its own cost has been taken out of the time by events, as far as that is known.
        unseen = by_events + self._events.removed_ms - span.milliseconds
        if unseen > (_GRAPH_MS if starts_graph else _EVENTS_MS):
            self._notes[_UNSEEN] = None
            return by_events
        if span.idle_share > _NOTICEABLE_IDLENESS:
            self._notes[_IDLE] = None
        return max(span.milliseconds, LEAST_MS)

    def _without_activity(self, by_events: float) -> float:
        """Return the latency of a call that has done nothing on the device."""
        if by_events > _ELSEWHERE_MS:
            raise TimingError(
                "CUPTI has recorded no kernel, copy or fill of a call that took "
                f"{by_events * 1e3:.0f} µs by CUDA events",
                hint="a function that works on the CPU, or switches recording off, can be timed "
                "with --timer cuda_event",
            )
        self._notes[_NOTHING] = None
        return by_events
