"""Threads that do the same thing at the same moment."""

from __future__ import annotations

import threading
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
