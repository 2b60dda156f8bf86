"""Policies that look at no call: all, none, the first so many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.tracing.policies.base import FastPath, OnlinePolicy, positive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashinfer_bench.tracing.layout import Layout


class KeepAll(OnlinePolicy):
    """Keeps each call."""

    def admit(self, axes: Mapping[str, int], inputs: Mapping[str, Any]) -> bool:
        """See `OnlinePolicy.admit`."""
        return True


class KeepNone(OnlinePolicy):
    """Keeps nothing; no call is even looked at."""

    def admit(self, axes: Mapping[str, int], inputs: Mapping[str, Any]) -> bool:
        """See `OnlinePolicy.admit`."""
        return False

    def fast_path(self, layout: Layout) -> Optional[FastPath]:
        """See `OnlinePolicy.fast_path`."""
        return FastPath("True", (), {})


class KeepFirstK(OnlinePolicy):
    """Keeps the first so many calls.

    Parameters
    ----------
    k : int
        How many.
    """

    def __init__(self, k: int = 1) -> None:
        super().__init__()
        self._k = positive("k", k)
        self._admitted = 0
        self.done = False

    def admit(self, axes: Mapping[str, int], inputs: Mapping[str, Any]) -> bool:
        """See `OnlinePolicy.admit`."""
        if self.done:
            return False
        self._admitted += 1
        self.done = self._admitted >= self._k
        return True

    def fast_path(self, layout: Layout) -> Optional[FastPath]:
        """See `OnlinePolicy.fast_path`."""
        return FastPath("policy.done", (), {"policy": self})

    def reset(self) -> None:
        """See `FilterPolicy.reset`."""
        super().reset()
        self._admitted, self.done = 0, False
