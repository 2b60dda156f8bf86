"""Policies by which calls of one key are as good as each other."""

from __future__ import annotations

from abc import abstractmethod
from itertools import islice
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.tracing.policies.base import FastPath, OnlinePolicy, positive

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from flashinfer_bench.tracing.layout import Layout


class KeyedPolicy(OnlinePolicy):
    """Keeps the first so many calls of each key.

    Of more keys than `bound` allows, the older half is forgotten: their calls may be kept again.

    Parameters
    ----------
    k : int
        How many.
    """

    def __init__(self, k: int = 1) -> None:
        super().__init__()
        self._k = positive("k", k)
        self._most: Optional[int] = None
        # Both in the order in which keys came. The first is what fast paths look into: it is
        # changed in place.
        self._full: dict[Hashable, None] = {}
        self._counts: dict[Hashable, int] = {}

    @abstractmethod
    def key_of(self, axes: Mapping[str, int], inputs: Mapping[str, Any]) -> Hashable:
        """Return the key of a call."""

    def key_source(self, layout: Layout) -> Optional[tuple[str, tuple[int, ...]]]:
        """Return Python for the key, and the positions of the inputs in it; None if there is none.

        Keys have the same form then as those of `key_of`.
        """
        return None

    def admit(self, axes: Mapping[str, int], inputs: Mapping[str, Any]) -> bool:
        """See `OnlinePolicy.admit`."""
        key = self.key_of(axes, inputs)
        if key in self._full:
            return False
        count = self._counts.pop(key, 0) + 1
        if count < self._k:
            self._counts[key] = count
        else:
            self._full[key] = None
        if self._most is not None and self.keys > self._most:
            _forget(self._full)
            _forget(self._counts)
        return True

    @property
    def keys(self) -> int:
        """How many keys are remembered."""
        return len(self._full) + len(self._counts)

    def fast_path(self, layout: Layout) -> Optional[FastPath]:
        """See `OnlinePolicy.fast_path`."""
        found = self.key_source(layout)
        if found is None:
            return None
        source, positions = found
        return FastPath(f"{source} in full", positions, {"full": self._full})

    def bound(self, max_keys: int) -> None:
        """See `OnlinePolicy.bound`."""
        self._most = max_keys

    def reset(self) -> None:
        """See `FilterPolicy.reset`."""
        super().reset()
        self._full.clear()
        self._counts.clear()


def _forget(keys: dict[Hashable, Any]) -> None:
    for key in list(islice(keys, (len(keys) + 1) // 2)):
        del keys[key]


class KeepFirstKByAxes(KeyedPolicy):
    """Keeps the first so many calls of each size: those with the same value of all variable axes.

    Parameters
    ----------
    k : int
        How many.
    """

    def __init__(self, k: int = 1) -> None:
        super().__init__(k)
        self._names: Optional[tuple[str, ...]] = None

    def key_of(self, axes: Mapping[str, int], inputs: Mapping[str, Any]) -> Hashable:
        """See `KeyedPolicy.key_of`."""
        if self._names is None:
            return tuple(axes.values())
        values = tuple(axes[name] for name in self._names)
        return values[0] if len(values) == 1 else values

    def key_source(self, layout: Layout) -> Optional[tuple[str, tuple[int, ...]]]:
        """See `KeyedPolicy.key_source`."""
        self._names = layout.free_axes
        positions = tuple({layout.places[name][0]: None for name in self._names})
        sizes = [layout.size_of(name) for name in self._names]
        return sizes[0] if len(sizes) == 1 else f"({', '.join(sizes)})", positions
