"""Timer that computes latencies from the device's own activity records."""

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


# Activity records: which activities a device performed for one call, and how long they took.
#
# Times are in nanoseconds, on one clock for all streams and devices.


_NS_PER_MS = 1e6
# Kernels that core uses to occupy the device: its own, or torch's as a fallback.
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
        Name of the kernel; empty for copies and fills.
    start, end : int
        Nanoseconds; 0 if unknown to CUPTI.
    order : int
        Correlation ID of the call that enqueued it; increases over all calls of a process. The
        kernels of a graph share one.
    graph : int
        ID of its CUDA graph; 0 if none.
    """

    what: str
    name: str
    start: int
    end: int
    order: int
    graph: int = 0

    @property
    def holds(self) -> bool:
        """Whether its name is that of a kernel with which timers occupy the device."""
        return self.what == "kernel" and (self.name == _HOLD or _SLEEP in self.name)


@dataclass(frozen=True)
class Span:
    """The interval from the first start to the last end.

    Attributes
    ----------
    start, end : int
        Nanoseconds.
    busy_ns : int
        Time in which at least one activity was running.
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
        """Share of the interval in which the device was idle, from 0 to 1."""
        length = self.end - self.start
        return 1 - self.busy_ns / length if length else 0.0


def split_at_hold(activities: Iterable[Activity]) -> tuple[int, list[Activity]]:
    """Separate the activities of a call from the kernel that held the device before it.

    Parameters
    ----------
    activities : iterable of Activity
        All activities since the records were last discarded, in any order.

    Returns
    -------
    released : int
        When the device was released, in nanoseconds.
    others : list of Activity
        Activities enqueued after that kernel. A solution may also have kernels of this name: the
        first one is the timer's.

    Raises
    ------
    TimingError
        If that kernel is missing.
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
    """Return the interval in which a device worked.

    Parameters
    ----------
    activities : sequence of Activity
        The activities of the device.
    not_before : int
        Nanoseconds. A kernel may be recorded as started while it waits for space on a device that
        is held; time before this limit does not count.

    Returns
    -------
    Span or None
        None if there is no activity.

    Raises
    ------
    TimingError
        If a record has no times, or ends before it starts.
    """
    for activity in activities:
        if not 0 < activity.start <= activity.end:
            raise TimingError(
                f"CUPTI recorded {activity.what} {activity.name[:100]!r} from {activity.start} to "
                f"{activity.end} ns, which is invalid",
                hint="use --timer cuda_event",
            )
    parts = sorted((max(a.start, not_before), max(a.end, not_before)) for a in activities)
    if not parts:
        return None
    busy, first = 0, parts[0][0]
    reached = first
    for start, end in parts:
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    return Span(first, reached, busy)


# Recording the device activities of this process with CUPTI.
#
# Uses NVIDIA's ``cupti-python``, which passes records to a callback in its own buffers, from any
# thread.


logger = logging.getLogger(__name__)

# About 1000 kernels; CUPTI requests another buffer when one is full. It also does so after each
# flush, during a launch, and larger buffers take longer: 0.35 ms for 8 MiB.
_BUFFER_BYTES = 256 << 10
_ANY_NUMBER = 0  # of records in a buffer
_COMPLETE = 0  # only completed buffers
_FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: all of them
_SEVERAL_SUBSCRIBERS = 39  # CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
_INSUFFICIENT_PRIVILEGES = 35  # CUPTI_ERROR_INSUFFICIENT_PRIVILEGES

# Values of `cupti.ActivityKind`, with their names here.
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
    """Records kernels, copies and fills of all streams, from the first `start` on.

    All functions are looked up in the constructor, which does not touch a device. From `start` on
    this is the only CUPTI subscriber: no profiler can be started at the same time.
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
        """Start recording, unless already started.

        Raises
        ------
        TimingError
            If CUPTI refuses.
        """
        if self._subscriber is not None:
            return
        # Two tools would interfere with each other's records: only this call detects that.
        subscriber = self._try("subscribe to CUPTI", self._subscribe, lambda *_: None, None)
        try:
            new_buffer = (_BUFFER_BYTES, _ANY_NUMBER)
            self._try("hand buffers to CUPTI", self._register, lambda: new_buffer, self._take)
            for kind, what in self._kinds.items():
                self._try(f"record each {what}", self._enable, kind)
        except TimingError:
            self._unsubscribe(subscriber)
            raise
        self._subscriber, self._keeping = subscriber, True
        # Buffers completed at interpreter shutdown would find no callback.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stop recording; does nothing if it has not been started."""
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
        """Drop all records so far, and keep those that follow until they are collected.

        Raises
        ------
        TimingError
            If CUPTI does not return its buffers.
        """
        self._keeping = False  # reading a record takes longer than writing one
        self._try("hand over records", self._flush, _COMPLETE)
        self._found.clear()
        self._keeping = True

    def collect(self) -> list[Activity]:
        """Return and clear the records since, of devices that have finished.

        Raises
        ------
        TimingError
            If CUPTI does not return its buffers.
        """
        self._try("hand over records", self._flush, _COMPLETE)
        if not self._found:
            self._try("hand over records", self._flush, _FORCED)
        self._keeping = False
        found, self._found = self._found, []
        return found

    def _try(self, what: str, function: Any, *arguments: Any) -> Any:
        """Call a CUPTI function, and convert its errors."""
        try:
            return function(*arguments)
        except (self._error, RuntimeError) as error:  # RuntimeError: library not found
            hint = _HINTS.get(getattr(error, "status", -1), _OTHER_HINT)
            raise TimingError(f"cannot {what}: {error}", hint=hint) from error

    def _take(self, records: Iterable[Any]) -> None:
        """Keep the relevant parts of a buffer, which is freed together with its records."""
        if self._keeping:
            self._found.extend(
                _read(record, self._kinds) for record in records if record.kind in self._kinds
            )


def _read(record: Any, kinds: dict[int, str]) -> Activity:
    what = kinds[record.kind]
    is_kernel = what == "kernel"
    # A kernel that launches others ends when they end.
    end = max(record.end, record.completed) if is_kernel else record.end
    return Activity(
        what=what,
        name=str(record.name) if is_kernel else "",
        start=record.start,
        end=end,
        order=record.correlation_id,
        graph=record.graph_id,
    )


# Time from one event to the first activity, plus from the last activity to the other event: 2.0 to
# 3.5 µs on an H200, and 6.4 µs if a graph has to be started.
_EVENTS_MS = 0.005
_GRAPH_MS = 0.009
# A call without records has the time of two events, unless it works elsewhere.
_ELSEWHERE_MS = 1.0
_NOTICEABLE_IDLENESS = 0.10

# Without figures, because a trace stores each distinct remark once.
_NOTHING = "no kernel, copy or fill was recorded: the latency is that of two events with no work"
_UNSEEN = (
    "the time by CUDA events, being longer than from the first recorded activity to the last, is "
    "used"
)
_IDLE = "the device was idle for over a tenth of the time from a call's first activity to its last"


class CuptiTimer(Timer):
    """Measures from the start of a call's first activity to the end of its last, on all streams.

    The call is made by the CUDA event timer, which holds the device while work is enqueued. Its
    result is an upper bound, so a call cannot appear faster by hiding work from CUPTI: if the two
    differ by more than events can explain, the result of the events is used.
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
        # Completes earlier work, so that it cannot appear in the records of this call.
        self._synchronize(device)
        self._recorder.discard()
        by_events, result = self._events.time_call(function, arguments, device=device)
        return self._latency(self._recorder.collect(), by_events), result

    def take_notes(self) -> list[str]:
        """Return and clear the remarks; see `Timer.take_notes`."""
        notes, self._notes = [*self._events.take_notes(), *self._notes], {}
        return notes

    def _latency(self, activities: list[Activity], by_events: float) -> float:
        released, others = split_at_hold(activities)
        span = span_of(others, not_before=released)
        if span is None:
            if by_events > _ELSEWHERE_MS:
                raise TimingError(
                    "CUPTI has recorded no kernel, copy or fill of a call that took "
                    f"{by_events * 1e3:.0f} µs by CUDA events",
                    hint="a function that works on the CPU, or switches recording off, can be "
                    "timed with --timer cuda_event",
                )
            self._notes[_NOTHING] = None
            return by_events
        starts_graph = min(others, key=lambda activity: activity.start).graph != 0
        # The event time excludes the events' own cost, as far as it is known.
        unseen = by_events + self._events.removed_ms - span.milliseconds
        if unseen > (_GRAPH_MS if starts_graph else _EVENTS_MS):
            self._notes[_UNSEEN] = None
            return by_events
        if span.idle_share > _NOTICEABLE_IDLENESS:
            self._notes[_IDLE] = None
        return max(span.milliseconds, LEAST_MS)
