"""Timed calls in batches, each with inputs that no call before it has seen."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.executors.threads import waited_here
from flashinfer_bench.bench.judge.shots import shoot
from flashinfer_bench.bench.stopping.fixed import Fixed
from flashinfer_bench.bench.stopping.plan import Ending, Step, TimingPlan

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from flashinfer_bench.bench.executors.base import Candidate
    from flashinfer_bench.bench.judge.deadline import Deadline
    from flashinfer_bench.bench.judge.session import Session
    from flashinfer_bench.bench.judge.shots import TimedCall
    from flashinfer_bench.tensors.vary import Freedom, Variation

_NS_PER_MS = 1e6
_SETTLING = 2
"""Uncounted calls after a look. The process was stopped, and its caches have gone to others: the
first call afterwards takes 5-20 % longer on a CPU, the third 1-5 %, as measured."""


@dataclass(frozen=True)
class Taken:
    """Timed calls, and why there are no more.

    Attributes
    ----------
    calls : tuple of TimedCall
        All of them, in the order taken.
    ending : str
        What ended them: ``rule``, ``max_samples`` or ``max_seconds``.
    waited_ms : float
        How long an exchange was held up since others had the cores: milliseconds, in the mean.
    """

    calls: tuple[TimedCall, ...]
    ending: str
    waited_ms: float = 0.0


def fixed_rounds(count: int, warmup: int, iterations: int) -> TimingPlan:
    """Return a plan of `count` rounds: each of `warmup` untimed calls and `iterations` timed ones.

    Parameters
    ----------
    count, iterations : int
        At least 1.
    warmup : int
        At least 0.
    """
    total = count * iterations
    return TimingPlan(Fixed(total), warmup, iterations, total, total, rounds=True)


class Variations:
    """Draws what each call is to see.

    Parameters
    ----------
    freedoms : sequence of Freedom
        How the inputs may vary.
    inputs : sequence
        The input sets, in the order of their slots.
    rng : random.Random
        The only source of chance.
    warm : bool
        Whether the device's caches are left as they are before a call.
    """

    def __init__(
        self,
        freedoms: Sequence[Freedom],
        inputs: Sequence[Sequence[Any]],
        rng: random.Random,
        warm: bool = False,
    ) -> None:
        self._warm = warm
        self._freedoms = freedoms
        self._inputs = inputs
        self._rng = rng

    def draw(self) -> Variation:
        """Return a fresh variation of one of the input sets."""
        from flashinfer_bench.tensors.vary import draw_variation

        slot = self._rng.randrange(len(self._inputs))
        drawn = draw_variation(self._freedoms, self._inputs[slot], slot, self._rng)
        return replace(drawn, warm=self._warm)


def take_calls(
    session: Session,
    candidate: Candidate,
    plan: TimingPlan,
    deadline: Deadline,
    *,
    variation_of: Callable[[Optional[int]], Variation],
    visit: Callable[[int], bool],
    begin: Callable[[int, int, bool], object] = lambda first, count, closing: None,
) -> Taken:
    """Make calls until the plan ends. No other process times on the device meanwhile.

    What is looked at is disturbed by it. So calls follow a look that are like the others, but not
    counted, unless those of a warm-up follow anyway.

    Parameters
    ----------
    session : Session
        The run.
    candidate : Candidate
        Has loaded a solution, and been given all input sets.
    plan : TimingPlan
        How many calls.
    deadline : Deadline
        When to give up.
    variation_of : callable
        Returns what a call is to see; it is told the call's number among the timed ones, or None.
    visit : callable
        Called after each timed call with its number; returns whether that has disturbed the
        candidate.
    begin : callable
        Called before each batch, with the number of its first timed call, how many there are to be,
        and whether it is the closing one: a single call that follows when time has run out.

    Raises
    ------
    CandidateError
        If the candidate fails.
    """
    course = _Course(candidate, session.timer, plan, deadline, variation_of, visit)
    with session.device_to_itself(deadline):
        began = time.monotonic()
        ending = None
        while ending is None:
            step = plan.step(len(course.calls))
            begin(len(course.calls), step.calls, False)
            course.take(step, began)
            ending = course.ending(time.monotonic() - began)
        if ending is Ending.MAX_SECONDS:  # there may have been no look so far
            begin(len(course.calls), 1, True)
            course.take(Step(warmup=0, calls=1), time.monotonic())
        waited_ms = course.waited_ms()
    return Taken(tuple(course.calls), ending.value, waited_ms)


class _Course:
    """Calls of one candidate, batch by batch."""

    def __init__(
        self,
        candidate: Candidate,
        timer: str,
        plan: TimingPlan,
        deadline: Deadline,
        variation_of: Callable[[Optional[int]], Variation],
        visit: Callable[[int], bool],
    ) -> None:
        self._shot = candidate, timer, deadline
        self._plan = plan
        self._variation_of, self._visit = variation_of, visit
        self._disturbed = False
        self._shots = 0
        self._waited = candidate.waiting_times(), waited_here()
        self.calls: list[TimedCall] = []

    def take(self, step: Step, began: float) -> None:
        """Make the calls of a batch, at least one, as long as there is time."""
        for _ in range(step.warmup):
            if self._plan.out_of_time(time.monotonic() - began):
                break  # a call of each is made all the same
            self._shoot(None)
        for number in range(step.calls):
            if number and self._plan.out_of_time(time.monotonic() - began):
                return
            settling = min(_SETTLING, self._plan.warmup) if self._disturbed else 0
            for _ in range(settling):
                self._shoot(None)
            place = len(self.calls)
            self.calls.append(self._shoot(place))
            self._disturbed = self._visit(place)

    def _shoot(self, place: Optional[int]) -> TimedCall:
        candidate, timer, deadline = self._shot
        self._disturbed = False
        self._shots += 1
        return shoot(candidate, self._variation_of(place), timer, deadline)

    def waited_ms(self) -> float:
        """Return how long the candidate's slowest thread, and this one, waited in each exchange."""
        candidate, (before, here) = self._shot[0], self._waited
        after = candidate.waiting_times()
        longest = max((after[each] - before.get(each, 0) for each in after), default=0)
        return (longest + waited_here() - here) / self._shots / _NS_PER_MS if longest else 0.0

    def ending(self, seconds: float) -> Optional[Ending]:
        return self._plan.ending([call.sample_ms for call in self.calls], seconds)
