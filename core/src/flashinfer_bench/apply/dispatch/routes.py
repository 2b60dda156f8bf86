"""What calls of known patterns take: by the sizes of inputs, tensors as seen and what to call.

A route is a tuple, so that it is read and replaced as a whole by threads that hold no lock::

    (check, extra, run, good, spans, entry)

``check(*tensors)`` recognises the tensors of a call. ``extra()``, unless it is None, says whether
the thread is in the right state. ``run(*args)`` makes the call, and ``good(*outputs)`` recognises
what it returned, if outputs are returned. `spans` has the number of bytes of each tensor.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Optional, Union

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.apply.dispatch.entries import Entry

    Route = tuple[Any, ...]


def never(*_args: Any) -> bool:
    """Return False."""
    return False


def always(*_args: Any) -> bool:
    """Return True."""
    return True


NOWHERE: Route = (never, None, None, never, (), None)
"""The route that no call takes."""

_MOST_PATTERNS = 4  # of one size: inference mode and others, two devices


class Routes:
    """The routes of one definition, for calls in one convention.

    Parameters
    ----------
    most : int
        For how many sizes there may be routes. Beyond that all are forgotten, and learned anew.

    Attributes
    ----------
    hot : tuple
        The route that the last call took.
    latest : dict
        For each size the route that the last call of that size took; or, a string, the reason for
        which such calls always go to the original.
    """

    __slots__ = ("_known", "_lock", "_most", "hot", "latest")

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[Any, list[Route]] = {}
        self._lock = threading.Lock()
        self.latest: dict[Any, Union[Route, str]] = {}
        self.hot: Route = NOWHERE

    def find(self, key: Any, tensors: Sequence[Any]) -> Optional[Route]:
        """Return the route for a call of this size with these tensors, if there is one.

        It is the latest then.
        """
        for route in tuple(self._known.get(key, ())):
            if route[0](*tensors):
                return route if self._bring_up(key, route) else None
        return None

    def _bring_up(self, key: Any, route: Route) -> bool:
        with self._lock:  # it may have been retired meanwhile
            there = any(each is route for each in self._known.get(key, ()))
            if there:
                self.latest[key] = route
            return there

    def add(self, key: Any, route: Route, entry: Entry) -> None:
        """Add a route, unless its entry is not in plain use, or there are enough of this size."""
        with self._lock:
            self._make_room(key)
            known = self._known.setdefault(key, [])
            # Whoever takes an entry out changes its state first, and then comes here.
            if len(known) < _MOST_PATTERNS and entry.state == "plain":
                known.append(route)
                self.latest[key] = route

    def close(self, key: Any, reason: str) -> None:
        """Send all calls of this size to the original from now on."""
        with self._lock:
            self._make_room(key)
            self._known.pop(key, None)
            self.latest[key] = reason

    def retire(self, entry: Entry) -> None:
        """Take out all routes to an entry, which is out."""
        with self._lock:
            for key, routes in list(self._known.items()):
                if any(route[5] is entry for route in routes):
                    del self._known[key]
                    self.latest.pop(key, None)
            # Last: who has made one of these hot meanwhile looks whether it is still there.
            self.hot = NOWHERE

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._clear()

    def _make_room(self, key: Any) -> None:
        if key not in self.latest and len(self.latest) >= self._most:
            self._clear()

    def _clear(self) -> None:
        self._known.clear()
        self.latest.clear()
        self.hot = NOWHERE

    def __len__(self) -> int:
        return len(self.latest)
