"""One launch: a fresh process for each side, and pairs of calls with the same values."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, Optional

from fib_compare.stats import LOOKS, Launch
from fib_judge.timed import fresh_number
from flashinfer_bench.bench.executors.threads import ENDED
from flashinfer_bench.tensors import judge_core

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from fib_compare.paired.sides import Side
    from fib_judge.records import VerifiedSession
    from fib_judge.timed import TimedCheck
    from flashinfer_bench.bench.executors.base import Candidate, TimedCall
    from flashinfer_bench.bench.transport.deadline import Deadline

    Schedule = Mapping[int, Sequence[TimedCheck]]


# Pinning both sides of a comparison to the same CPU core.
#
# On a shared machine some cores share arithmetic units with a busy neighbour and others do not, and
# processes rarely change cores. Two processes of the same solution then differ by 20-50 % for a
# whole launch, as measured on four cores at a load of 4 to 10. On the same core both have the same
# neighbour.


_PROC = Path("/proc")
_IDLE = (3, 4)  # fields of a line in /proc/stat: idle, iowait
_BUSY_FIELDS = 8  # user to steal; guest times are part of user
_OTHERS = 0.1  # CPU time allowed to all threads but the busiest, as a share of the calls' time


class Ticks(NamedTuple):
    """Clock ticks of a core since the start of the system."""

    idle: int
    total: int


def core_ticks(proc: Path = _PROC) -> dict[int, Ticks]:
    """Return the ticks of each core; empty if the system does not provide them."""
    found = {}
    with suppress(OSError, ValueError, IndexError):
        for line in (proc / "stat").read_text(encoding="ascii").splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks = [int(field) for field in fields[:_BUSY_FIELDS]]
                found[int(name[3:])] = Ticks(sum(ticks[n] for n in _IDLE), sum(ticks))
    return found


def worked_alone(before: Mapping[int, int], now: Mapping[int, int], called_ms: float) -> bool:
    """Return whether one thread did nearly all work between two readings.

    Threads that have ended do not count as that thread, because a solution may start new ones in
    each call. The share of the other threads is relative to the time of the calls, not of the
    preparation between them.

    Parameters
    ----------
    before, now : mapping
        As `Candidate.thread_times` returns them.
    called_ms : float
        Time of the calls between the readings, in milliseconds.
    """
    spent = {thread: time - before.get(thread, 0) for thread, time in now.items()}
    # The time of a thread that has ended is added to ENDED.
    known = sum(time for thread, time in before.items() if thread not in now)
    ended = spent.pop(ENDED, 0) - known
    busiest = max(spent.values(), default=0)
    others = sum(spent.values()) - busiest + max(0, ended)
    return busiest > 0 and others <= _OTHERS * called_ms * 1e6


class Cores:
    """Chooses for each launch the core that was idle the longest since the last choice.

    Parameters
    ----------
    device : str
        The device of the comparison; cores are chosen on ``cpu`` only.
    proc : Path
        The mount point of procfs.

    Attributes
    ----------
    allowed : frozenset of int
        The cores for solutions; empty to choose none.
    """

    def __init__(self, device: str, proc: Path = _PROC) -> None:
        self.allowed: frozenset[int] = frozenset()
        if device == "cpu" and hasattr(os, "sched_getaffinity"):
            self.allowed = frozenset(os.sched_getaffinity(0) - {judge_core()})
        self._proc = proc
        self._before = core_ticks(proc) if len(self.allowed) > 1 else {}

    def choose(self) -> Optional[int]:
        """Return the number of a core; None to choose none."""
        now = core_ticks(self._proc) if self._before else {}
        shares = {
            core: _idle_share(self._before[core], now[core])
            for core in sorted(self.allowed)
            if core in now and core in self._before
        }
        self._before = now
        return max(shares, key=lambda core: shares[core]) if shares else None

    def give_up(self) -> None:
        """Choose no core from now on."""
        self._before = {}


class Settled:
    """Pins both sides of a launch to one core, if they do not need more.

    Parameters
    ----------
    candidates : tuple of Candidate
        The processes of both.
    cores : Cores
        The cores to choose from.
    """

    def __init__(self, candidates: tuple[Candidate, Candidate], cores: Cores) -> None:
        self._candidates, self._cores = candidates, cores
        self._core: Optional[int] = None
        self._before = [candidate.thread_times() for candidate in candidates]

    def on_one_core(self, called_ms: tuple[float, float]) -> bool:
        """Pin both sides or neither; return whether they were pinned.

        Parameters
        ----------
        called_ms : tuple of float
            Time of the calls of each side since this object was created.
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
        """Check that both have stayed on the core; if not, pin no side again.

        Otherwise a solution could move itself to a quiet core and gain an advantage.
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


WARMUP = 5
"""Uncounted pairs at the beginning. As measured on a CPU, the first two calls of a process take two
to three times as long, the third takes 5 % longer, and later ones no longer."""

MOST_PAIRS = 32
FEWEST_PAIRS = 4

_WATCHED = 2
"""Uncounted pairs during which working threads are counted. One-time work may use many threads,
which spin for a while: as measured, for 80 ms in the first pairs and less than 0.2 ms in the last
two."""

_LAUNCH_S = 0.6  # for the counted pairs; a whole launch takes about a second
_LAUNCHES = 1.7 * LOOKS[-1]  # launches are so short that the last look fits in the time
_SETTLING = 2  # uncounted pairs after a check; even, so that the order stays the same


class NoTimeLeft(Exception):
    """The time for the comparison ended before a launch was finished."""


@dataclass(frozen=True)
class LaunchSize:
    """Number of pairs of calls in a launch.

    Attributes
    ----------
    pairs : int
        Counted pairs; a multiple of 2.
    warmup : int
        Uncounted pairs before them.
    """

    pairs: int
    warmup: int

    @classmethod
    def fitting(cls, pair_s: float, budget_s: float) -> LaunchSize:
        """Return the size for pairs of `pair_s` seconds, with `budget_s` seconds for all launches.

        Slow calls get launches of fewer pairs, so that there are several launches: processes of
        one solution differ more than calls of one process.
        """
        wanted = min(_LAUNCH_S, budget_s / _LAUNCHES) / max(pair_s, 1e-9)
        pairs = max(FEWEST_PAIRS, min(MOST_PAIRS, int(wanted) // 2 * 2))
        if pairs * pair_s > budget_s / 8:
            return cls(FEWEST_PAIRS, 1)
        return cls(pairs, WARMUP)


class _Pairs:
    """Makes pairs of exchanges in the order ABBA, or BAAB in every other launch.

    An exchange has one call, or on a GPU several, as many for both sides. During the turn of one
    side, the processes of the other are stopped. A turn has two exchanges, one for the previous
    pair and one for the next. If resuming slowed the first call (which was not observed), it would
    affect each side once in each block of two pairs.
    """

    def __init__(
        self, sides: tuple[Side, Side], rng: random.Random, schedule: Schedule, number: int
    ) -> None:
        self._sides, self._rng, self._schedule = sides, rng, schedule
        self._turn = number
        self._awake: Optional[Side] = None
        self._begun = False
        self.called_ms = 0.0, 0.0  # reported time of the calls of each side

    def uncounted(self) -> None:
        self._both(())

    def counted(self, place: int) -> None:
        checks = self._schedule.get(place, ())
        for side, calls in self._both(checks):
            side.calls += calls
        if checks:  # the check has disturbed both
            self._awake = None
            for _ in range(_SETTLING):
                self.uncounted()

    def call_alone(self, checks: Sequence[TimedCheck]) -> None:
        for side in self._sides:
            self._wake(side)
            side.call_alone(checks)

    def _both(self, checks: Sequence[TimedCheck]) -> list[tuple[Side, list[TimedCall]]]:
        numbers = [fresh_number(self._rng) for _ in range(self._calls_at_once())]
        checks = checks[: len(numbers)]
        numbers[: len(checks)] = [check.number for check in checks]
        return [(side, self._fire(side, numbers, checks)) for side in self._next_sides()]

    def _calls_at_once(self) -> int:
        counts = []
        for side in self._sides:
            if not self._begun:  # the first time, calls are made to find out
                self._wake(side)
            counts.append(side.calls_at_once())
        self._begun = True
        return min(counts)

    def _fire(
        self, side: Side, numbers: Sequence[int], checks: Sequence[TimedCheck]
    ) -> list[TimedCall]:
        self._wake(side)
        calls = side.fire(numbers, checks)
        first, second = self.called_ms
        mine, took_ms = side is self._sides[0], sum(call.sample_ms for call in calls)
        self.called_ms = first + mine * took_ms, second + (not mine) * took_ms
        return calls

    def _wake(self, side: Side) -> None:
        if side is not self._awake:
            (other,) = (one for one in self._sides if one is not side)
            other.rest()
            self._awake = side

    @property
    def candidate_is_next(self) -> bool:
        """Whether the candidate is called first in the next pair."""
        return self._turn % 2 == 1

    def _next_sides(self) -> tuple[Side, ...]:
        self._turn += 1
        return self._sides if self._turn % 2 else self._sides[::-1]


def take_launch(
    session: VerifiedSession,
    sides: tuple[Side, Side],
    rng: random.Random,
    schedule: Schedule,
    alone: Sequence[TimedCheck],
    size: LaunchSize,
    *,
    number: int,
    cap: Deadline,
    cores: Cores,
) -> Launch:
    """Make the calls of a launch, while no other process measures on the device.

    Both calls of a pair get the same values.

    Parameters
    ----------
    session : VerifiedSession
        The run.
    sides : tuple of Side
        Baseline and candidate, prepared.
    rng : random.Random
        Decides which values calls get; secret from solutions.
    schedule : mapping
        The pairs whose outputs are checked, and the expected outputs of their calls.
    alone : sequence of TimedCheck
        Those of calls that are made alone after the pairs.
    size : LaunchSize
        Number of pairs.
    number : int
        Number of the launch: odd ones begin with the other side.
    cap : Deadline
        Time for the whole comparison; waiting for the device does not count.
    cores : Cores
        Cores to choose from, if calls use one core at a time; both sides get the same one.

    Returns
    -------
    Launch
        Samples in milliseconds, in the order taken.

    Raises
    ------
    CannotCompare
        If a process fails, or a checked output is wrong.
    NoTimeLeft
        If `cap` ends before the launch.
    """
    pairs = _Pairs(sides, rng, schedule, number)
    with ExitStack() as stack:
        with cap.stopped():
            stack.enter_context(session.device_to_itself(sides[0].attempt.deadline))
        settled = _warmed_up(pairs, sides, cores, size.warmup, cap)
        candidate_first = pairs.candidate_is_next
        for place in range(size.pairs):
            _require_time(cap)
            pairs.counted(place)
        if settled is not None:
            settled.end()
        pairs.call_alone(alone)
    baseline, candidate = sides
    return Launch(baseline.samples_ms(), candidate.samples_ms(), candidate_first)


def _warmed_up(
    pairs: _Pairs, sides: tuple[Side, Side], cores: Cores, count: int, cap: Deadline
) -> Optional[Settled]:
    """Make the uncounted calls, and pin both sides to one core if the last ones used only one."""
    settled = None
    for number in range(count):
        if number == max(0, count - _WATCHED):
            first, second = (side.attempt.worker.candidate for side in sides)
            settled = Settled((first, second), cores)
            pairs.called_ms = (0.0, 0.0)
        _require_time(cap)
        pairs.uncounted()
    if settled is not None and settled.on_one_core(pairs.called_ms):
        pairs.uncounted()
    return settled


def _require_time(cap: Deadline) -> None:
    if cap.remaining <= 0.0:
        raise NoTimeLeft(f"the time limit of {cap.seconds:g} s for this comparison is over")


def pair_seconds(
    session: VerifiedSession, sides: tuple[Side, Side], rng: random.Random, cap: Deadline
) -> float:
    """Return the time of one pair of calls in seconds, after a few warm-up calls."""
    pairs, taken = _Pairs(sides, rng, {}, 0), []
    with ExitStack() as stack:
        with cap.stopped():
            stack.enter_context(session.device_to_itself(sides[0].attempt.deadline))
        for _ in range(WARMUP):
            _require_time(cap)
            began = time.monotonic()
            pairs.uncounted()
            taken.append(time.monotonic() - began)
            if sum(taken) > cap.seconds / 10:
                break
    return median(taken[1:] or taken)
