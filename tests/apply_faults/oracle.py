"""Which solution may run for a call, worked out from what a dataset was meant to say.

It shares no code with what it judges, and no idea but the rules that are written in the
documentation: recorded on this hardware, passed, within tolerance, there to be built.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Optional

from tests.apply_faults.channel import FALLBACK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.apply_faults.world import Record, World


@dataclass(frozen=True)
class Verdict:
    """What may happen in a call.

    Attributes
    ----------
    allowed : frozenset of str
        Who may run, besides the fallback.
    winner : str, optional
        Who has to run first, unless it has failed; None where the fallback has to.
    """

    allowed: frozenset[str]
    winner: Optional[str]

    def of_strangers(self, ran: Sequence[str]) -> str:
        """Return who ran that must not; empty if nobody did."""
        strangers = [name for name in ran if name != FALLBACK and name not in self.allowed]
        return f"{strangers[0]} must not run" if strangers else ""

    def of_order(self, ran: Sequence[str]) -> str:
        """Return what is wrong with who ran, in this order; empty if nothing is."""
        strangers = self.of_strangers(ran)
        if strangers:
            return strangers
        wanted = self.winner or FALLBACK
        return "" if ran and ran[0] == wanted else f"{wanted} should have run, not {list(ran)}"


class Oracle:
    """Knows the rules, and a dataset."""

    def __init__(self, world: World) -> None:
        self._world = world

    def verdict(self, definition: str, values: tuple[int, ...]) -> Verdict:
        """Return what may happen in a sound call of these sizes under the default settings."""
        times = self._times(definition, values)
        allowed = frozenset(filter(self._builds, times))
        ranked = sorted(times, key=lambda name: (median(times[name]), name))
        winner = ranked[0] if ranked and self._builds(ranked[0]) else None
        return Verdict(allowed, winner)

    def table_entry(self, definition: str, values: tuple[int, ...]) -> Optional[str]:
        """Return the fastest usable solution, whether it can be built here or not."""
        times = self._times(definition, values)
        return min(times, key=lambda name: (median(times[name]), name)) if times else None

    def _times(self, definition: str, values: tuple[int, ...]) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {}
        for record in self._world.records:
            if (record.definition, record.values) == (definition, values) and self._usable(record):
                times.setdefault(record.solution, []).append(record.latency_ms)
        return times

    def _usable(self, record: Record) -> bool:
        made = self._world.solutions.get(record.solution)
        return (
            record.fault is None
            and record.status == "PASSED"
            and record.hardware == self._world.hardware
            and made is not None
            and made.definition == record.definition
            and made.state == "good"
        )

    def _builds(self, name: str) -> bool:
        return self._world.solutions[name].language == "python"


NOTHING = Verdict(frozenset(), None)
"""What may happen in a call that no recorded kernel is meant for."""
