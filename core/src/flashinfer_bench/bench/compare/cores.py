"""Giving both sides of a comparison the same core of a CPU.

Cores are not alike on a machine that others use: one shares its arithmetic units with a busy
neighbour, another does not, and a process stays where it is for long. Two processes of one solution
then differ by 20-50 % for a whole launch, as measured with four cores at a load of 4 to 10. On one
core both have the same neighbour.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROC = Path("/proc")
_IDLE = (3, 4)  # of the fields of a line in /proc/stat: idle, iowait
_BUSY_FIELDS = 8  # user to steal; guest times are part of user's
_OTHERS = 0.1  # of what the busiest thread does, is what the others may do beside it


class Ticks(NamedTuple):
    """Clock ticks of a core since the start of the system."""

    idle: int
    total: int


def core_ticks(proc: Path = _PROC) -> dict[int, Ticks]:
    """Return the ticks of each core; nothing where the system does not tell."""
    found = {}
    with suppress(OSError, ValueError):
        for line in (proc / "stat").read_text(encoding="ascii").splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks = [int(field) for field in fields[:_BUSY_FIELDS]]
                found[int(name[3:])] = Ticks(sum(ticks[n] for n in _IDLE), sum(ticks))
    return found


def worked_alone(before: dict[int, int], now: dict[int, int]) -> bool:
    """Return whether one thread did nearly all that was done between two looks."""
    spent = sorted(time - before.get(thread, 0) for thread, time in now.items())
    return bool(spent) and spent[-1] > 0 and sum(spent[:-1]) <= _OTHERS * spent[-1]


class Cores:
    """Chooses a core for each launch, the one that was idle the longest since the last choice.

    Parameters
    ----------
    device : str
        What is compared on; cores matter on ``cpu`` alone.
    """

    def __init__(self, device: str) -> None:
        self._allowed: Sequence[int] = ()
        if device == "cpu" and hasattr(os, "sched_getaffinity"):
            self._allowed = sorted(os.sched_getaffinity(0))
        self._before = core_ticks() if len(self._allowed) > 1 else {}

    def choose(self) -> Optional[int]:
        """Return the number of a core; None if there is no choice."""
        now = core_ticks() if self._before else {}
        shares = {
            core: _idle_share(self._before[core], now[core])
            for core in self._allowed
            if core in now and core in self._before
        }
        self._before = now
        return max(shares, key=lambda core: shares[core]) if shares else None


def _idle_share(before: Ticks, now: Ticks) -> float:
    passed = now.total - before.total
    return (now.idle - before.idle) / passed if passed > 0 else 0.0
