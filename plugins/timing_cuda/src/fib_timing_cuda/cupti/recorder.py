"""Having CUPTI record what this process does on its devices.

Through NVIDIA's ``cupti-python``. Records come in buffers of its own, to a callback, in any thread.
"""

from __future__ import annotations

import atexit
import logging
from typing import TYPE_CHECKING, Any

from fib_timing_cuda.cupti.span import Activity
from flashinfer_bench.errors import TimingError

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    "compute-sanitizer or cuda-gdb; run without it, or take --timer cuda_event",
    _INSUFFICIENT_PRIVILEGES: "the driver allows profiling to administrators only; ask for "
    "NVreg_RestrictProfilingToAdminUsers=0, or take --timer cuda_event",
}
_OTHER_HINT = "see that cupti-python and libcupti are of torch's CUDA, or take --timer cuda_event"


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
