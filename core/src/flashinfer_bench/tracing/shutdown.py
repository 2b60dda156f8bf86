"""Writing what is still in memory when a process ends: at its exit and, where asked, on signals.

``atexit`` covers a program that ends by itself, and one that was forked with ``os.fork`` and leaves
by ``sys.exit``. A worker of `multiprocessing` leaves by ``os._exit``, which runs no such functions,
but it runs its own finalizers, so that ours is one of them. What ends by ``os._exit``, SIGKILL or a
SIGTERM that nobody handles keeps what the thread of `TracingRuntime.write_soon` has written.

`install_signal_handlers` adds SIGTERM and Ctrl-C. The handler writes everything and then does what
would have been done without it: it calls the program's own handler, or lets the signal end the
process. A signal that is ignored stays ignored. A program that sets a handler of its own later
replaces ours; it may call it, as any other.
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
"""Seconds that writing may take before a signal goes its way."""

_FINALIZER_PRIORITY = 50  # before the queues and pools of a worker, which have 10 at most


_flushed: weakref.WeakValueDictionary[int, TracingRuntime] = weakref.WeakValueDictionary()
_registered = False


def flush_at_exit(target: TracingRuntime) -> None:
    """Have `target` flushed before this process ends, also if it is a worker that is forked later.

    In a forked process it is flushed there, too: what it writes must be that process's own.
    """
    global _registered
    _flushed[id(target)] = target
    if _registered:
        return
    _registered = True
    atexit.register(flush_all)
    # A forked worker drops all finalizers of its parent when it starts.
    multiprocessing.util.register_after_fork(flush_all, _finalize)
    if multiprocessing.parent_process() is not None:
        _finalize()


def _finalize(_: object = None) -> None:
    multiprocessing.util.Finalize(None, flush_all, exitpriority=_FINALIZER_PRIORITY)


def runtimes() -> list[TracingRuntime]:
    """Return all runtimes that there are."""
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
    """Our handler of one signal, and the one that was there before."""

    def __init__(self, previous: Union[Callable[..., Any], signal.Handlers, int]) -> None:
        self.previous = previous
        self.active = True

    def __call__(self, number: int, frame: Union[FrameType, None]) -> None:
        if getattr(_hold, "depth", 0):  # in the middle of writing: come again when that is done
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
    """Write, unless that is being done already: a second Ctrl-C is in a hurry."""
    global _flushing_pid
    if _flushing_pid == os.getpid():  # that of a parent says nothing
        return
    _flushing_pid = os.getpid()
    try:
        # Not in this thread: it may have been interrupted while it held a lock that writing needs.
        thread = threading.Thread(target=flush_all, name="fib-tracing-flush", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending: there are no new threads any more
            flush_all()
            return
        thread.join(FLUSH_TIMEOUT_S)
        if thread.is_alive():
            warn("recorded workloads were not written within %g s", FLUSH_TIMEOUT_S)
    finally:
        _flushing_pid = 0


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Let our handlers wait until the end of this block, which is to be a short one.

    The program's own handlers then run late, too, but they are never run in between.
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
    """Write what is in memory when one of these signals arrives; then go on as without us.

    Parameters
    ----------
    signals : iterable of int
        The signals. Those that are ignored, or handled outside Python, are left alone; for those
        that are handled by us already nothing changes.

    Returns
    -------
    callable
        `uninstall_signal_handlers`.

    Raises
    ------
    ConfigError
        If this is not the main thread, where alone Python lets handlers be set, or a signal cannot
        be handled.
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
    """Put the handlers back that were there before.

    Where the program has set one of its own since, it stays; ours, which it may call, then only
    calls the one before.

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
