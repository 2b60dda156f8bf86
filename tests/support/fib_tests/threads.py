"""What is done at the same moment on several threads, or comes about in its own time."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def at_once(count: int, function: Callable[[], Any]) -> list[Any]:
    """Call a function on several threads that begin together; return what each call returned."""
    start = threading.Barrier(count)

    def call(_: int) -> Any:
        start.wait()
        return function()

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(call, range(count)))


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> bool:
    """Wait until a condition holds; return whether it does."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())


def forked_while_held(locks: Iterable[Any], work: Callable[[], Any]) -> bool:
    """Fork a child while another thread holds some locks; return whether `work()` is true in it."""
    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            holding.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holding.wait(60)
    if (child := os.fork()) == 0:
        signal.alarm(60)  # rather than wait for ever
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    try:
        return os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        thread.join()
