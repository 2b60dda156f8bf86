"""A policy that keeps a random sample."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.tracing.policies.base import FastPath, OnlinePolicy, positive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashinfer_bench.tracing.entry import WorkloadEntry
    from flashinfer_bench.tracing.layout import Layout


class KeepRandomK(OnlinePolicy):
    """Keeps so many calls, each as likely as any other: of all since the policy was last drained.

    Algorithm L of Li, "Reservoir-sampling algorithms of time complexity O(n(1 + log(N/n)))", ACM
    TOMS 20 (1994): how many calls are passed over is drawn, not each call's fate.

    Parameters
    ----------
    k : int
        How many.
    seed : int, optional
        For the same choice in each run.
    """

    def __init__(self, k: int = 1, seed: Optional[int] = None) -> None:
        super().__init__()
        self._k = positive("k", k)
        self._seed = seed
        self._random = random.Random(seed)
        self._skip = 0
        self._weight = 1.0

    def skips(self) -> bool:
        """Return whether the call that is made now is passed over; it counts as seen then."""
        if self._skip > 0:
            self._skip -= 1
            return True
        return False

    def admit(self, axes: Mapping[str, int], inputs: Mapping[str, Any]) -> bool:
        """See `OnlinePolicy.admit`."""
        return not self.skips()

    def keep(self, entry: WorkloadEntry) -> Optional[WorkloadEntry]:
        """See `OnlinePolicy.keep`."""
        displaced = None
        if len(self.entries) < self._k:
            self.entries.append(entry)
        else:
            index = self._random.randrange(self._k)
            displaced, self.entries[index] = self.entries[index], entry
        if len(self.entries) == self._k:
            self._draw()
        return displaced

    def _draw(self) -> None:
        # Of ]0, 1]: the logarithm of zero is none.
        self._weight *= math.exp(math.log(1.0 - self._random.random()) / self._k)
        most = 1.0 - self._weight
        steps = math.log(1.0 - self._random.random()) / math.log(most) if 0 < most < 1 else 0.0
        self._skip = int(min(steps, 2.0**62))

    def fast_path(self, layout: Layout) -> Optional[FastPath]:
        """See `OnlinePolicy.fast_path`."""
        return FastPath("policy._skip and policy.skips()", (), {"policy": self})

    def drain(self) -> list[WorkloadEntry]:
        """See `FilterPolicy.drain`. The next sample begins afterwards."""
        self._skip, self._weight = 0, 1.0
        return sorted(super().drain(), key=lambda entry: entry.order)

    def reset(self) -> None:
        """See `FilterPolicy.reset`."""
        super().reset()
        self._random = random.Random(self._seed)
        self._skip, self._weight = 0, 1.0
