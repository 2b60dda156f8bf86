"""What is done at the same moment on several threads, or comes about in its own time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


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
