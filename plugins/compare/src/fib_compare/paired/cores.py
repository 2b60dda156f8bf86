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

from flashinfer_bench.bench.executors.threads import ENDED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashinfer_bench.bench.executors.base import Candidate

_PROC = Path("/proc")
_IDLE = (3, 4)  # of the fields of a line in /proc/stat: idle, iowait
_BUSY_FIELDS = 8  # user to steal; guest times are part of user's
_OTHERS = 0.1  # of the time of the calls, is what all threads but the busiest may do meanwhile


class Ticks(NamedTuple):
    """Clock ticks of a core since the start of the system."""

    idle: int
    total: int


def core_ticks(proc: Path = _PROC) -> dict[int, Ticks]:
    """Return the ticks of each core; nothing where the system does not tell."""
    found = {}
    with suppress(OSError, ValueError, IndexError):
        for line in (proc / "stat").read_text(encoding="ascii").splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks = [int(field) for field in fields[:_BUSY_FIELDS]]
                found[int(name[3:])] = Ticks(sum(ticks[n] for n in _IDLE), sum(ticks))
    return found


def worked_alone(before: Mapping[int, int], now: Mapping[int, int], called_ms: float) -> bool:
    """Return whether one thread did nearly all that was done between two looks.

    Threads that have ended were not it: a solution may start some in each call. What is done
    between calls, to make them ready, does not make the others' share smaller.

    Parameters
    ----------
    before, now : mapping
        As of `Candidate.thread_times`.
    called_ms : float
        How long the calls meanwhile have taken, in milliseconds.
    """
    spent = {thread: time - before.get(thread, 0) for thread, time in now.items()}
    # The whole of what a thread has done is under ENDED once it is gone.
    known = sum(time for thread, time in before.items() if thread not in now)
    ended = spent.pop(ENDED, 0) - known
    busiest = max(spent.values(), default=0)
    others = sum(spent.values()) - busiest + max(0, ended)
    return busiest > 0 and others <= _OTHERS * called_ms * 1e6


class Cores:
    """Chooses a core for each launch, the one that was idle the longest since the last choice.

    Parameters
    ----------
    device : str
        What is compared on; cores matter on ``cpu`` alone.
    proc : Path
        Where the system tells about itself.

    Attributes
    ----------
    allowed : frozenset of int
        The cores that there are for this process; none where nothing is to be chosen.
    """

    def __init__(self, device: str, proc: Path = _PROC) -> None:
        self.allowed: frozenset[int] = frozenset()
        if device == "cpu" and hasattr(os, "sched_getaffinity"):
            self.allowed = frozenset(os.sched_getaffinity(0))
        self._proc = proc
        self._before = core_ticks(proc) if len(self.allowed) > 1 else {}

    def choose(self) -> Optional[int]:
        """Return the number of a core; None if there is no choice."""
        now = core_ticks(self._proc) if self._before else {}
        shares = {
            core: _idle_share(self._before[core], now[core])
            for core in sorted(self.allowed)
            if core in now and core in self._before
        }
        self._before = now
        return max(shares, key=lambda core: shares[core]) if shares else None

    def give_up(self) -> None:
        """Choose none from now on."""
        self._before = {}


class Settled:
    """Gives both sides of a launch one core, once it is known that they do not need more.

    Parameters
    ----------
    candidates : tuple of Candidate
        The processes of both.
    cores : Cores
        To choose from.
    """

    def __init__(self, candidates: tuple[Candidate, Candidate], cores: Cores) -> None:
        self._candidates, self._cores = candidates, cores
        self._core: Optional[int] = None
        self._before = [candidate.thread_times() for candidate in candidates]

    def on_one_core(self, called_ms: tuple[float, float]) -> bool:
        """Move both, or neither; return whether that has been done.

        Parameters
        ----------
        called_ms : tuple of float
            How long the calls of each have taken since this was made.
        """
        now = [candidate.thread_times() for candidate in self._candidates]
        if not all(map(worked_alone, self._before, now, called_ms)):
            return False
        core = self._cores.choose()
        if core is None:
            return False
        if all(candidate.keep_on({core}) for candidate in self._candidates):
            self._core = core
            return True
        self._let_go()
        return False

    def end(self) -> None:
        """Look whether both have stayed there; if one has moved itself, nobody is moved again.

        Else it could go where it is quiet, and the other one could not.
        """
        if self._core is None:
            return
        if any(candidate.cores() - {self._core} for candidate in self._candidates):
            self._let_go()

    def _let_go(self) -> None:
        for candidate in self._candidates:
            candidate.keep_on(self._cores.allowed)
        self._cores.give_up()


def _idle_share(before: Ticks, now: Ticks) -> float:
    passed = now.total - before.total
    return (now.idle - before.idle) / passed if passed > 0 else 0.0
