"""Stop rules of a plugin, with parameters of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flashinfer_bench.bench.stopping import StoppingRule, parameter


@dataclass(frozen=True)
class Flat(StoppingRule):
    """Stop when the last samples are alike."""

    name: ClassVar[str] = "flat"
    summary: ClassVar[str] = "when the last samples are alike"

    max_angle: float = parameter(0.05, "Steepest course.", unit="degree", high=90.0)
    min_r2: float = parameter(0.36, "Least fit of a line.", unit="", high=1.0)

    def wants_more(self, samples_ms):
        last = samples_ms[-8:]
        return len(last) < 8 or max(last) > min(last) * (1 + self.max_angle)


@dataclass(frozen=True)
class Near(StoppingRule):
    """Stop when the last two samples are near each other."""

    name: ClassVar[str] = "near"
    summary: ClassVar[str] = "when the last two samples are near each other"

    reach: float = parameter(0.005, "How near.", unit="fraction", high=1.0)
    calm: float = parameter(0.02, "Not looked at.", unit="fraction", high=1.0)

    def wants_more(self, samples_ms):
        last = samples_ms[-2:]
        return len(last) < 2 or max(last) > min(last) * (1 + self.reach)
