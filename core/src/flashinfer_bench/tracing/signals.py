"""Writing what is in memory when a signal ends the process. Only where it is asked for.

::

    from flashinfer_bench.tracing.signals import install_signal_handlers

    uninstall = install_signal_handlers()

The handler writes everything and then does what would have been done without it: it calls the
program's own handler, or lets the signal end the process. A signal that is ignored stays ignored. A
program that sets a handler of its own later replaces ours; it may call it, as any other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Union

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.tracing.shutdown import flush_all, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

DEFAULT_SIGNALS = (signal.SIGTERM, signal.SIGINT)

FLUSH_TIMEOUT_S = 10.0
"""Seconds that writing may take before the signal goes its way.

It runs in a thread, because the main thread may have been interrupted while it held a lock that
writing needs.
"""

_handlers: dict[int, _Handler] = {}
_hold = threading.local()
_waiting: list[tuple[int, Any]] = []


class _Handler:
    """Our handler of one signal, and the one that was there before."""

    def __init__(self, number: int, previous: Union[Callable[..., Any], signal.Handlers]) -> None:
        self.number = number
        self.previous = previous
        self.active = True

    def __call__(self, number: int, frame: Union[FrameType, None]) -> None:
        if getattr(_hold, "depth", 0):  # in the middle of writing: come again when that is done
            _waiting.append((number, frame))
            return
        if self.active:
            _flush.run()
        self._chain(frame)

    def _chain(self, frame: Union[FrameType, None]) -> None:
        if callable(self.previous):
            self.previous(self.number, frame)
        elif self.previous is signal.SIG_DFL:
            signal.signal(self.number, signal.SIG_DFL)
            signal.raise_signal(self.number)


class _Flush:
    """Writes everything in a thread, once at a time."""

    def __init__(self) -> None:
        self._pid = 0

    def run(self) -> None:
        """Write, unless that is being done already: a second Ctrl-C is in a hurry."""
        pid = os.getpid()
        if self._pid == pid:  # of a parent, it says nothing
            return
        self._pid = pid
        try:
            self._run_in_time()
        finally:
            self._pid = 0

    @staticmethod
    def _run_in_time() -> None:
        thread = threading.Thread(target=flush_all, name="fib-tracing-flush", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending: there are no new threads any more
            flush_all()
            return
        thread.join(FLUSH_TIMEOUT_S)
        if thread.is_alive():
            warn("recorded workloads were not written within %g s", FLUSH_TIMEOUT_S)


_flush = _Flush()


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
            _deliver()


def _deliver() -> None:
    while _waiting:
        number, frame = _waiting.pop(0)
        handler = _handlers.get(number)
        if handler is None:  # taken away meanwhile
            signal.raise_signal(number)
        else:
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
        _install(number)
    return uninstall_signal_handlers


def _require_main_thread() -> None:
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            "signal handlers can only be set in the main thread",
            hint="call it before the program starts its threads",
        )


def _install(number: int) -> None:
    try:
        previous = signal.getsignal(number)
        known = isinstance(previous, _Handler) and previous.active
        if known or previous is None or previous is signal.SIG_IGN:
            return
        handler = _Handler(number, previous)  # type: ignore[arg-type]
        signal.signal(number, handler)
    except (OSError, ValueError) as error:
        raise ConfigError(f"signal {number} cannot be handled: {error}") from error
    _handlers[number] = handler


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
    for number, handler in list(_handlers.items()):
        handler.active = False
        current: object = signal.getsignal(number)
        if current is handler:
            signal.signal(number, handler.previous)
        del _handlers[number]
