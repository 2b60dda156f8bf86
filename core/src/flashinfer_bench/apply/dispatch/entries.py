"""Entries: a target chosen for a key, and how far it is trusted."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

from flashinfer_bench.apply.dispatch.stats import OUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flashinfer_bench.apply.config import ApplyConfig
    from flashinfer_bench.apply.dispatch.target import Target
    from flashinfer_bench.apply.keys import ApplyKey

State = Literal["shadow", "plain", "out"]
"""Compared with the original at each call; used as it is; not used any more."""


def shown(key: Optional[ApplyKey]) -> str:
    """Return what people call the calls of a key."""
    if key is None or not key.axes:
        return "any call"
    return ", ".join(f"{axis}={size}" for axis, size in (*key.axes, *key.feats))


class Entry:
    """A target chosen for a key.

    Parameters
    ----------
    key : ApplyKey, optional
        What it was chosen for; None if it serves all calls of its definition.
    target : Target
        What is called.
    config : ApplyConfig
        How often it is compared, and how often it may fail.
    comparable : bool
        Whether it can be compared at all.

    Attributes
    ----------
    state : str
        How far it is trusted.
    failures : int
        How often it raised, or returned something that is no output of the definition.
    checked : int
        How often it was compared with the original, and agreed.
    problem : str
        Why it is out.
    due : bool
        Whether the next call is to be compared.
    layouts : dict
        Whether it agreed with the original, by strides of inputs that are not contiguous.
    """

    __slots__ = (
        *("_lock", "_max_failures", "_share", "_wanted"),
        *("checked", "due", "failures", "key", "layouts", "problem", "state", "target"),
    )

    def __init__(
        self,
        key: Optional[ApplyKey],
        target: Target,
        config: ApplyConfig,
        *,
        comparable: bool = True,
    ) -> None:
        self.key = key
        self.target = target
        self._wanted = config.shadow_calls if comparable else 0
        self._share = config.shadow_share if comparable else 0.0
        self._max_failures = config.max_failures
        self.state: State = "shadow" if self._wanted else "plain"
        self.failures = 0
        self.checked = 0
        self.problem = ""
        self.due = False
        self.layouts: dict[tuple[tuple[int, ...], ...], bool] = {}
        self._lock = threading.Lock()

    @property
    def sampled(self) -> bool:
        """Whether some calls are compared even when the entry is plain."""
        return self._share > 0.0

    def draw(self) -> bool:
        """Draw whether the coming call of a plain entry is to be compared."""
        if self._share and random.random() < self._share:
            self.due = True
        return self.due

    def agreed(self) -> bool:
        """Note that a comparison went well; return whether the entry has just become plain."""
        with self._lock:
            self.checked += 1
            if self.state == "shadow" and self.checked >= self._wanted:
                self.state = "plain"
                return True
            return False

    def failed(self, problem: str) -> bool:
        """Note a failure; return whether the entry is out from now on, and was not before."""
        with self._lock:
            self.failures += 1
            return self.failures >= self._max_failures and self._take_out(problem)

    def take_out(self, problem: str) -> bool:
        """Use the entry no more; return whether it was used before."""
        with self._lock:
            return self._take_out(problem)

    def _take_out(self, problem: str) -> bool:
        if self.state == "out":
            return False
        self.state, self.problem = "out", problem
        return True

    def view(self) -> EntryView:
        """Return what there is to know about the entry."""
        return EntryView(
            self.key, self.target.solution, self.state, self.failures, self.checked, self.problem
        )


@dataclass(frozen=True)
class EntryView:
    """An entry as it was at one moment; see `Entry` for the fields."""

    key: Optional[ApplyKey]
    solution: str
    state: State
    failures: int
    checked: int
    problem: str


class EntryTable:
    """Entries by what their key is made of, or why there is none: so many at most.

    Beyond that the oldest are forgotten, and made anew when they are asked for; those that are out
    are kept, so that what was found out about them is not lost. If these alone are too many,
    nothing more is put in.

    Parameters
    ----------
    most : int
        How many there may be.
    on_forgotten : callable
        Called after some have been forgotten.
    """

    def __init__(self, most: int, on_forgotten: Callable[[], None]) -> None:
        self._most = most
        self._on_forgotten = on_forgotten
        self._found: dict[Any, Union[Entry, str]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Entry]:
        return (found for found in list(self._found.values()) if isinstance(found, Entry))

    def get(self, key: Any) -> Union[Entry, str, None]:
        """Return the entry of a key, or the reason for which it has none; None if never seen."""
        return self._found.get(key)

    def add(self, key: Any, found: Union[Entry, str]) -> Union[Entry, str]:
        """Put in what was found, and return what is there: the first of several that race."""
        with self._lock:
            if key in self._found:
                return self._found[key]
            forgotten = len(self._found) >= self._most and self._forget()
            if len(self._found) >= self._most:
                return OUT
            self._found[key] = found
        if forgotten:
            self._on_forgotten()
        return found

    def _forget(self) -> bool:
        items = list(self._found.items())
        usual = [key for key, found in items if isinstance(found, str) or found.state != "out"]
        for key in usual[: max(1, self._most // 2)]:
            del self._found[key]
        return bool(usual)
