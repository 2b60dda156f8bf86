"""Rounds of warm-up and timed calls, each with inputs that no call before it has seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.judge.shots import shoot

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from flashinfer_bench.bench.executors.base import Candidate
    from flashinfer_bench.bench.judge.deadline import Deadline
    from flashinfer_bench.bench.judge.session import Session
    from flashinfer_bench.bench.judge.shots import TimedCall
    from flashinfer_bench.tensors.vary import Freedom, Variation


_SETTLING = 2
"""Uncounted calls after a look. The process was stopped, and its caches have gone to others: the
first call afterwards takes 5-20 % longer on a CPU, the third 1-5 %, as measured."""


@dataclass(frozen=True)
class Rounds:
    """How often something is called to time it.

    Attributes
    ----------
    count : int
        Number of rounds.
    warmup : int
        Untimed calls at the beginning of each.
    iterations : int
        Timed calls of each.
    """

    count: int
    warmup: int
    iterations: int

    @property
    def timed(self) -> int:
        """Number of timed calls of all rounds."""
        return self.count * self.iterations

    def within(self, budget_s: float, call_s: float) -> Rounds:
        """Return as many rounds of fewer calls, if these would take longer than `budget_s`.

        Parameters
        ----------
        budget_s : float
            Seconds that all rounds together may take.
        call_s : float
            Seconds that one call takes.
        """
        cost = self.count * (self.warmup + self.iterations) * call_s
        if cost <= budget_s:
            return self
        share = max(budget_s, 0.0) / cost
        return Rounds(self.count, int(self.warmup * share), max(1, int(self.iterations * share)))

    @property
    def settling(self) -> int:
        """Calls that are made, and not counted, after one whose outputs were looked at."""
        return min(_SETTLING, self.warmup)

    def places(self) -> Iterator[Optional[int]]:
        """Yield for each call, in order, its number among the timed ones; None for warm-up."""
        for number in range(self.count):
            yield from (None for _ in range(self.warmup))
            yield from range(number * self.iterations, (number + 1) * self.iterations)


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
    """

    def __init__(
        self, freedoms: Sequence[Freedom], inputs: Sequence[Sequence[Any]], rng: random.Random
    ) -> None:
        self._freedoms = freedoms
        self._inputs = inputs
        self._rng = rng

    def draw(self) -> Variation:
        """Return a fresh variation of one of the input sets."""
        from flashinfer_bench.tensors.vary import draw_variation

        slot = self._rng.randrange(len(self._inputs))
        return draw_variation(self._freedoms, self._inputs[slot], slot, self._rng)


def take_calls(
    session: Session,
    candidate: Candidate,
    rounds: Rounds,
    deadline: Deadline,
    *,
    variation_of: Callable[[Optional[int]], Variation],
    visit: Callable[[int], bool],
) -> list[TimedCall]:
    """Make all calls of all rounds. No other process times on the device meanwhile.

    What is looked at is disturbed by it. So calls follow a look that are like the others, but not
    counted, unless those of a warm-up follow anyway.

    Parameters
    ----------
    session : Session
        The run.
    candidate : Candidate
        Has loaded a solution, and been given all input sets.
    rounds : Rounds
        How many calls.
    deadline : Deadline
        When to give up.
    variation_of : callable
        Returns what a call is to see; it is told the call's number among the timed ones, or None.
    visit : callable
        Called after each timed call with its number; returns whether it has looked at the call.

    Returns
    -------
    list of TimedCall
        The timed calls, in order.

    Raises
    ------
    CandidateError
        If the candidate fails.
    """
    calls = []
    places = [*rounds.places()]
    with session.device_to_itself(deadline):
        for place, after in zip(places, [*places[1:], None], strict=True):
            call = shoot(candidate, variation_of(place), session.timer, deadline)
            if place is None:
                continue
            calls.append(call)
            if visit(place) and after is not None:
                for _ in range(rounds.settling):
                    shoot(candidate, variation_of(None), session.timer, deadline)
    return calls
