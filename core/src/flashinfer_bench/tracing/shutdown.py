"""Writing what is still in memory when a process ends.

``atexit`` covers a program that ends by itself, and one that was forked with ``os.fork`` and leaves
by ``sys.exit``. A worker of `multiprocessing` leaves by ``os._exit``, which runs no such functions,
but it runs its own finalizers, so that ours is one of them. What ends by ``os._exit`` or SIGKILL
loses what it had not written yet; for SIGTERM and Ctrl-C see `tracing.signals`.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing
import multiprocessing.util
import threading
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)

_FINALIZER_PRIORITY = 50  # before the queues and pools of a worker, which have 10 at most


def warn(message: str, *values: object, exc_info: Union[bool, BaseException] = False) -> None:
    """Log a warning while a process ends: `logging` itself raises if stderr is closed."""
    with contextlib.suppress(Exception):
        _logger.warning(message, *values, exc_info=exc_info)


class _Flushers:
    """Functions that write what is in memory, in the order in which they were added."""

    def __init__(self) -> None:
        self._functions: dict[int, Callable[[], object]] = {}
        self._next = 0
        self._registered = False
        self._lock = threading.RLock()

    def add(self, flush: Callable[[], object]) -> Callable[[], None]:
        with self._lock:
            self._register()
            number = self._next
            self._next += 1
            self._functions[number] = flush

        def cancel() -> None:
            self._functions.pop(number, None)

        return cancel

    def _register(self) -> None:
        if self._registered:
            return
        self._registered = True
        atexit.register(flush_all)
        multiprocessing.util.register_after_fork(self, _Flushers.after_fork)
        if multiprocessing.parent_process() is not None:
            self.finalize()

    def after_fork(self) -> None:
        """Begin anew in a forked worker, which has just dropped all finalizers of its parent."""
        self._lock = threading.RLock()
        self.finalize()

    def finalize(self) -> None:
        multiprocessing.util.Finalize(None, flush_all, exitpriority=_FINALIZER_PRIORITY)

    def run(self) -> None:
        for function in list(self._functions.values()):
            try:
                function()
            except Exception:  # noqa: BLE001 - the process must end as it would without us
                warn("recorded workloads could not be written", exc_info=True)


_flushers = _Flushers()


def at_shutdown(flush: Callable[[], object]) -> Callable[[], None]:
    """Call a function before this process ends, also if it is a worker that is forked later.

    Parameters
    ----------
    flush : callable
        Writes what is in memory; calling it twice must be harmless. What it raises is logged. In a
        forked process it is called there, too: what it writes must be that process's own.

    Returns
    -------
    callable
        Takes it back; calling that twice is harmless.
    """
    return _flushers.add(flush)


def flush_all(*_: Any) -> None:
    """Write what is in memory now; never raises an `Exception`."""
    _flushers.run()
