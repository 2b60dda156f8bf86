"""Write what is still in memory when a process ends: at exit and, optionally, on signals.

``atexit`` covers programs that end normally, and processes forked with ``os.fork`` that end with
``sys.exit``. A `multiprocessing` worker ends with ``os._exit``, which skips ``atexit`` functions,
but it runs its own finalizers, and ours is registered as one of them. A process that ends by
``os._exit``, SIGKILL or an unhandled SIGTERM keeps only what the thread of
`TracingRuntime.write_soon` has written.

`install_signal_handlers` adds SIGTERM and Ctrl-C. The handler writes everything and then continues
as without it: it calls the program's own handler, or lets the signal end the process. An ignored
signal stays ignored. If the program later sets its own handler, it replaces ours, and may call it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing
import multiprocessing.util
import os
import signal
import threading
import weakref
from typing import TYPE_CHECKING, Any, Union

from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

    from flashinfer_bench.tracing.runtime import TracingRuntime

_logger = logging.getLogger(__name__)

DEFAULT_SIGNALS = (signal.SIGTERM, signal.SIGINT)

FLUSH_TIMEOUT_S = 10.0
"""Seconds allowed for writing before the signal takes effect."""

_FINALIZER_PRIORITY = 50  # before the queues and pools of a worker, which have 10 at most


_flushed: weakref.WeakValueDictionary[int, TracingRuntime] = weakref.WeakValueDictionary()
_registered = False


def flush_at_exit(target: TracingRuntime) -> None:
    """Register `target` to be flushed when this process or a worker forked from it ends.

    In a forked process only entries recorded there are written.
    """
    global _registered
    _flushed[id(target)] = target
    if _registered:
        return
    _registered = True
    atexit.register(flush_all)
    # A forked worker discards its parent's finalizers when it starts.
    multiprocessing.util.register_after_fork(flush_all, _finalize)
    if multiprocessing.parent_process() is not None:
        _finalize()


def _finalize(_: object = None) -> None:
    multiprocessing.util.Finalize(None, flush_all, exitpriority=_FINALIZER_PRIORITY)


def runtimes() -> list[TracingRuntime]:
    """Return all existing runtimes."""
    found = [reference() for reference in _flushed.valuerefs()]
    return [each for each in found if each is not None]


def flush_all() -> None:
    """Write what is in memory now."""
    for each in runtimes():
        each.flush()


def warn(message: str, *values: object, exc_info: Union[bool, BaseException, None] = None) -> None:
    """Log a warning while a process ends: `logging` itself raises if stderr is closed."""
    with contextlib.suppress(Exception):
        _logger.warning(message, *values, exc_info=exc_info)


# ------------------------------------------------------------------------------------- signals

_handlers: dict[int, _Handler] = {}
_hold = threading.local()
_waiting: list[tuple[_Handler, int, Any]] = []
_flushing_pid = 0


class _Handler:
    """Our handler of one signal, and the handler it replaced."""

    def __init__(self, previous: Union[Callable[..., Any], signal.Handlers, int]) -> None:
        self.previous = previous
        self.active = True

    def __call__(self, number: int, frame: Union[FrameType, None]) -> None:
        if getattr(_hold, "depth", 0):  # writing is in progress: raise the signal again afterwards
            _waiting.append((self, number, frame))
            return
        if self.active:
            _flush_in_time()
        if callable(self.previous):
            self.previous(number, frame)
        elif self.previous is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def _flush_in_time() -> None:
    """Write unless a write is in progress: a second Ctrl-C should not wait."""
    global _flushing_pid
    if _flushing_pid == os.getpid():  # a parent's flag does not apply here
        return
    _flushing_pid = os.getpid()
    try:
        # Not in this thread: it may have been interrupted while holding a lock that writing needs.
        thread = threading.Thread(target=flush_all, name="fib-tracing-flush", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no new threads during interpreter shutdown
            flush_all()
            return
        thread.join(FLUSH_TIMEOUT_S)
        if thread.is_alive():
            warn("recorded workloads were not written within %g s", FLUSH_TIMEOUT_S)
    finally:
        _flushing_pid = 0


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Postpone our signal handlers until the end of this block, which should be short.

    The program's own handlers are delayed as well, but never run inside the block.
    """
    depth = getattr(_hold, "depth", 0)
    _hold.depth = depth + 1
    try:
        yield
    finally:
        _hold.depth = depth
        if not depth and threading.current_thread() is threading.main_thread():
            while _waiting:
                handler, number, frame = _waiting.pop(0)
                handler(number, frame)


def install_signal_handlers(
    signals: Iterable[int] = DEFAULT_SIGNALS,
) -> Callable[[], None]:
    """Write what is in memory when one of these signals arrives, then handle it as before.

    Parameters
    ----------
    signals : iterable of int
        The signals. Signals that are ignored, or handled outside Python, are left alone; signals
        that are already handled by us are unchanged.

    Returns
    -------
    callable
        `uninstall_signal_handlers`.

    Raises
    ------
    ConfigError
        If this is not the main thread, which Python requires for setting handlers, or a signal
        cannot be handled.
    """
    _require_main_thread()
    for number in signals:
        try:
            previous = signal.getsignal(number)
            ours = isinstance(previous, _Handler) and previous.active
            if ours or previous is None or previous is signal.SIG_IGN:
                continue
            handler = _Handler(previous)
            signal.signal(number, handler)
        except (OSError, ValueError) as error:
            raise ConfigError(f"signal {number} cannot be handled: {error}") from error
        _handlers[number] = handler
    return uninstall_signal_handlers


def uninstall_signal_handlers() -> None:
    """Restore the previous handlers.

    If the program has set its own handler since, that handler stays; ours, which it may still call,
    then only calls the previous one.

    Raises
    ------
    ConfigError
        If this is not the main thread.
    """
    _require_main_thread()
    while _handlers:
        number, handler = _handlers.popitem()
        handler.active = False
        current: object = signal.getsignal(number)
        if current is handler:
            signal.signal(number, handler.previous)


def _require_main_thread() -> None:
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            "signal handlers can only be set in the main thread",
            hint="call it before the program starts its threads",
        )
