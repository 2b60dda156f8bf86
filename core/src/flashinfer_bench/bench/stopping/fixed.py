"""The rule that takes a number of samples known beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flashinfer_bench.bench.stopping.base import StoppingRule

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Fixed(StoppingRule):
    """Stop after `count` samples, whatever they are.

    Attributes
    ----------
    count : int
        ``num_trials`` times ``iterations``, which is why it is no parameter.
    """

    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "after num_trials rounds of iterations samples"

    count: int = 150

    def wants_more(self, samples_ms: Sequence[float]) -> bool:
        """Return whether there are fewer than `count`."""
        return len(samples_ms) < self.count
