"""Timing a solution that is not trusted: fresh inputs, unannounced checks, the judge's clock."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Optional, TypeVar, cast

from fib_judge.integrity import (
    Mode,
    Violation,
    find_overlap,
    find_violation,
    least_alone_ms,
    longest,
    unaccounted_us,
    whole,
)
from fib_judge.records import KeyedRandom
from fib_judge.ring import LATE, DeviceTurns, Ring, Turn
from flashinfer_bench.bench import calls
from flashinfer_bench.bench.correctness import find_problem
from flashinfer_bench.bench.evaluation import EvaluatorFailed, ask
from flashinfer_bench.bench.evaluators.base import Check, Trial
from flashinfer_bench.bench.evaluators.default import LOOSE
from flashinfer_bench.bench.executors.base import Round
from flashinfer_bench.bench.stopping import DEFAULT_MIN_SAMPLES
from flashinfer_bench.data import EvaluationStatus

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from fib_judge.integrity import Overhead
    from fib_judge.paired_reference import PairedSamples
    from fib_judge.records import VerifiedAttempt, VerifiedBaseline
    from fib_judge.values import Values
    from flashinfer_bench.bench.executors.base import TimedCall
    from flashinfer_bench.bench.measurement import DeviceBaseline
    from flashinfer_bench.bench.stopping import TimingPlan
    from flashinfer_bench.data import Correctness


MOST_CHECKS = 32
"""On the CPU; on other devices, where a comparison costs little, every call may be one."""

_FEWEST_CHECKS = 2

CALLS_ALONE = 5
"""Calls of a solution on a GPU that are made alone, where the others follow one another."""

_MEMORY_SHARE = 0.25  # of what is free
_MOST_BYTES = 1 << 30  # of outputs, on the CPU: to fetch and compare them takes two seconds
_MOST_KEPT_BYTES = 1 << 30
_OFTEN = 0.6  # of as many calls as there are checks are compared: chance seldom uses them up
_ALL_OF, _OFTEN_LIMITED, _OFTEN_ADAPTED = 16, 0.5, 0.25
"""Where nobody knows how many calls there will be, the first so many are compared, then others by
this chance: the first where time limits rounds, the second where a rule adapts."""
_LONG_MS = 2.5  # is a call whose time is known well enough from an exchange of its own
_PATIENCE_S, _TIMES = 0.02, 5  # more than what calls take that wait for the device
_LONG_PATIENCE_S = 1.0
_SETTLING, _TRIES = 2, 2
_ON_HOST = (
    "calls wait for the device before they return: each is made alone, and its latency is the "
    "judge's time until the device has finished"
)
_AFTERWARDS = "what was returned is as declared only when it is asked for after the answer"
_Checked = TypeVar("_Checked")
_FIRST_FRESH = 1 << 40
"""Numbers of draws from here on are for calls that are not compared."""


@dataclass(frozen=True)
class TimedCheck:
    """A draw of inputs, and what the reference made of it.

    Attributes
    ----------
    number : int
        The draw, as of `Values.draw`.
    expected : list of torch.Tensor
        The reference's outputs, on the device where outputs are compared.
    """

    number: int
    expected: list[torch.Tensor]


def number_of_checks(timed_calls: int, output_bytes: int, free_bytes: int, device: str) -> int:
    """Return how many calls of the reference are kept as checks.

    Parameters
    ----------
    timed_calls : int
        Of the reference.
    output_bytes : int
        Size of all outputs of one call: at most a quarter of `free_bytes` is held, and on the CPU
        1 GiB.
    free_bytes : int
        Memory that is free where they are kept.
    device : str
        Where calls run.

    Returns
    -------
    int
        At least 2, or 1 if there is one timed call only.
    """
    most, memory = timed_calls, free_bytes * _MEMORY_SHARE
    if device == "cpu":
        most, memory = MOST_CHECKS, min(memory, _MOST_BYTES)
    return min(max(_FEWEST_CHECKS, min(most, int(memory / max(1, output_bytes)))), timed_calls)


def number_to_keep(checks: int, input_bytes: int, free_bytes: int) -> int:
    """Return of how many checks the inputs are kept, where others are drawn anew each time.

    They take at most an eighth of the memory that is free, and 1 GiB on each device.
    """
    most = min(free_bytes * _MEMORY_SHARE / 2, _MOST_KEPT_BYTES)
    return min(checks, int(most / max(1, input_bytes)))


def free_memory(device: str = "cpu") -> int:
    """Return the bytes of a device's memory that nothing uses; 0 where nobody says."""
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def secret_schedule(
    timed_calls: int,
    checks: Sequence[_Checked],
    rng: random.Random,
    more: Callable[[int], Sequence[_Checked]] = lambda count: (),
) -> dict[int, _Checked]:
    """Return which timed calls are compared, and with what; no check comes twice.

    If they are not as many, each call has the same chance, whatever has been before: a process sees
    that a call was compared, as that takes time, and is to know nothing of those to come. At least
    one is. If chance wants more of them, `more` is asked for so many.
    """
    places: Sequence[int] = range(timed_calls)
    if len(checks) < timed_calls:
        share = _OFTEN * len(checks) / timed_calls
        places = [place for place in places if rng.random() < share]
        places = places or [rng.randrange(timed_calls)]
    if checks and len(places) > len(checks):
        checks = [*checks, *more(len(places) - len(checks))]
    return dict(zip(places, rng.sample(list(checks), len(checks)), strict=False))


Look = tuple[Trial, list[Any]]
"""What a timed call got, with what the reference made of it, and what it returned."""


class WrongTimedCall(Exception):
    """A timed call did not do what the solution does when it is looked at.

    Parameters
    ----------
    check : Check
        What is wrong with it.
    note : dict
        Goes into ``correctness.extra["integrity"]``.
    """

    def __init__(self, check: Check, note: dict[str, Any]) -> None:
        super().__init__(check.message)
        self.check = check
        self.note = note


@dataclass(frozen=True)
class TimedRun:
    """What timing a solution has given.

    Attributes
    ----------
    measurement : Measurement
        Its latencies.
    facts : dict
        What was done to make sure of them.
    violation : Violation, optional
        Why they are not believed, if they are not.
    beside : PairedSamples, optional
        The reference's latencies in between; None if it was not called.
    watched : dict
        What was seen of the machine meanwhile.
    looks : tuple of Look
        What the calls that were compared got, and what they returned; if the evaluator asks.
    alone_ms : float, optional
        The least that calls took which were made alone; see `find_overlap`.
    spread : bool
        Whether other processes are to make the rest of the calls, as they wait for the device.
    """

    measurement: calls.Measurement
    facts: dict[str, Any]
    violation: Optional[Violation] = None
    beside: Optional[PairedSamples] = None
    watched: dict[str, Any] = field(default_factory=dict)
    looks: tuple[Look, ...] = ()
    alone_ms: Optional[float] = None
    spread: bool = False

    def compared_alone(self) -> TimedRun:
        """Return it with a violation if calls took too long alone; see `find_overlap`."""
        if self.alone_ms is None:
            return self
        facts = {**self.facts, "alone_us": round(1e3 * self.alone_ms, 2)}
        found = find_overlap(self.measurement.latency_ms, self.alone_ms)
        return replace(self, facts=facts, violation=self.violation or found)

    def as_disputed(self) -> TimedRun:
        """Return it with a latency that reaches to what a typical call took with all around it."""
        violation, taken = self.violation, self.measurement
        assert violation is not None
        unseen = float(f"{violation.unseen_ms:.4g}")
        note = (
            f"disputed: {violation.message}, probably load on this machine: the latency is between "
            f"{taken.latency_ms:.4g} and {taken.latency_ms + unseen:.4g} ms"
        )
        return replace(
            self,
            measurement=replace(taken, unseen_ms=unseen, notes=(*taken.notes, note)),
            facts={**self.facts, "disputed": violation.rule, "unseen_ms": unseen},
        )


def compared_plan(plan: TimingPlan, checks: int, device: str) -> TimingPlan:
    """Return a solution's plan of rounds: on a GPU with at most one call for each check, or 30.

    On the CPU, and with a limit of time, it is unchanged.
    """
    if device == "cpu" or not plan.rounds or plan.max_seconds is not None:
        return plan
    return plan.at_most(max(checks, DEFAULT_MIN_SAMPLES, plan.min_samples))


def is_counted(plan: TimingPlan) -> bool:
    """Return whether it is known beforehand how many calls a plan has."""
    return plan.rounds and plan.max_seconds is None


def fresh_number(rng: random.Random) -> int:
    """Return the number of a draw that is not compared with anything."""
    return _FIRST_FRESH + rng.getrandbits(50)


class Course:
    """The timed calls of a process, some of which are compared.

    Parameters
    ----------
    attempt : Attempt
        A process that has loaded a solution, and the workload.
    values : Values
        Draws inputs.
    rng : random.Random
        Decides what each call sees; nobody else knows it.
    overhead : Overhead, optional
        What an exchange takes beyond a call; None if that is still to be seen.
    """

    def __init__(
        self,
        attempt: calls.Attempt,
        values: Values,
        rng: random.Random,
        overhead: Optional[Overhead] = None,
    ) -> None:
        self.attempt, self.values = attempt, values
        self._rng = rng
        self.ring = Ring(attempt, values.written)
        self._overhead = overhead if attempt.session.device == "cpu" else None
        self.looks: list[Look] = []
        self.mode: Optional[Mode] = None  # of the exchanges, once it is known; None for single ones
        self.took_ms = 0.0  # an exchange with calls, the last time
        self._waiting_ms = 0.0  # an exchange with a call that is not behind a gate
        self._tried_ms, self._single_gated = 0.0, False  # of the call for which one is made at once
        # Not while it is found out.
        self._known: Optional[Mapping[Mode, Overhead]] = getattr(
            attempt.baseline, "of_rounds", None
        )
        self._most = 0
        if attempt.session.device != "cpu" and attempt.session.timer_enqueues:
            self._most = len(self.ring)
            if self._known is not None:
                self._most = min(self._most, max((mode.calls for mode in self._known), default=0))
        self.made_alone: list[TimedCall] = []
        self.numbers: list[int] = []  # of the draws of the last exchange
        self._made: list[tuple[list[Any], Turn]] = []
        self._call = 0  # of these is the last one
        self.drawn: list[Any] = []
        self.turn: Optional[Turn] = None
        self.late = False  # in any call so far
        self.secured = True  # of the last outputs, whether they are those of the answer
        self.loose = False  # whether any was right by a loose tolerance alone
        self.correctness: Optional[Correctness] = None  # of the last look

    def follow_mode(self, mode: Optional[Mode]) -> None:
        """Make calls as another process does, if there is as much memory; else it is found out."""
        if mode is not None and mode.calls <= len(self.ring):
            self.mode = mode

    def at_once(self) -> int:
        """Return how many calls an exchange may have."""
        if self.mode is None and self._most:
            self.mode = self._chosen()
        elif self._tried_ms and self._single_ms() < self._tried_ms / 2:
            # Whoever is slow only to have exchanges of its own.
            self.mode = self._settled(self._single_ms())
        return 1 if self.mode is None else self.mode.calls

    def _chosen(self) -> Optional[Mode]:
        """Find out how calls of this process can be made.

        A call that waits for the device cannot be enqueued behind a gate, and only so many launches
        can.
        """
        for _ in range(_SETTLING):
            self.round([None], Mode(gated=False, calls=1))
        if self._known is None and not self.attempt.candidate.has_gate:
            logger.info("this system has no gate for a device: calls are made in single exchanges")
            self._most = 0
            return None
        self._waiting_ms, tried_ms = self.took_ms, self._single_ms()
        self._single_gated = self._enqueues(1)
        if self._single_gated:
            tried_ms = self._single_ms()  # without what the host needs to enqueue it
        return self._settled(tried_ms)

    def _settled(self, single_ms: float) -> Mode:
        """Return how calls are made of which one takes about so long."""
        several = self._single_gated and self._most > 1
        self._tried_ms = single_ms if several else 0.0
        if several and single_ms < _LONG_MS and self._enqueues(self._most):
            self._tried_ms = 0.0
            return Mode(True, self._most)
        return Mode(self._single_gated, 1)

    def _enqueues(self, count: int) -> bool:
        """Return whether so many calls can be enqueued behind a gate.

        The first try may have to wait for memory, or for a core.
        """
        mode, patience_s = Mode(True, count), _PATIENCE_S + _TIMES * count * self._waiting_ms / 1e3
        return any(
            self.round([None] * count, mode, patience_s=patience_s)[0].gated for _ in range(_TRIES)
        )

    def _single_ms(self) -> float:
        """Return what the call of the last exchange, which had no other, took about."""
        usual = (self._known or {}).get(Mode(gated=self._single_gated, calls=1))
        return self.took_ms - (usual.beyond_ms if usual is not None else 0.0)

    def take(
        self, numbers: Sequence[Optional[int]], *, secured: bool = False
    ) -> Sequence[TimedCall]:
        """Make calls in an exchange, each with values of its own; see `fire`."""
        if self.mode is not None:
            return self.round(numbers, self.mode, secured=secured)
        return [self.fire(number, secured=secured) for number in numbers]

    def round(
        self,
        numbers: Sequence[Optional[int]],
        mode: Mode,
        *,
        secured: bool = False,
        patience_s: Optional[float] = None,
    ) -> list[TimedCall]:
        """Make calls on a GPU in an exchange, each with values of its own."""
        turns = self._prepared(numbers, secured=secured)
        made = self.attempt.fire_round(self._calls(mode, patience_s), release=turns)
        self.took_ms = made[0].secured_ms
        if mode.gated or not self._known:
            return made
        return self._known[mode].for_outputs(into=self.ring.writes_there).timed_on_host(made)

    def _prepared(
        self, numbers: Sequence[Optional[int]], *, secured: bool, clocked: bool = False
    ) -> DeviceTurns:
        self._made, self.drawn, self.turn = [], [], None  # their memory is to be had again
        self.numbers = [fresh_number(self._rng) if one is None else one for one in numbers]
        drawn = [self.values.draw(number) for number in self.numbers]
        kept = map(self.values.packed, self.numbers)
        packed = [
            self.ring.packed(values) if one is None else one
            for values, one in zip(drawn, kept, strict=True)
        ]
        turns = DeviceTurns(self.ring, packed, self._rng, secured=secured, clocked=clocked)
        self._made = list(zip(drawn, turns.parts, strict=True))
        self.select(self.numbers[-1])
        return turns

    def call_alone(self, checks: Sequence[TimedCheck]) -> None:
        """Make calls alone, where they follow one another otherwise; see `find_overlap`.

        All are compared, as the process sees that they are alone.

        Raises
        ------
        WrongTimedCall
            As of `look`.
        """
        if self.mode is not None and self.mode.calls > 1:
            for check in checks:
                self.made_alone += self.round(
                    [check.number], Mode(self.mode.gated, 1), secured=True
                )
                self.look(check, "a call made alone", trust="full")

    def alone_ms(self, growth_ms: float = 0.0) -> Optional[float]:
        """Return the least that calls made alone took, if there were any; see `violation`."""
        if not self.made_alone:
            return None
        return least_alone_ms(self.made_alone, self.usual(self.made_alone, growth_ms))

    def usual(self, made: Sequence[TimedCall], growth_ms: float = 0.0) -> Overhead:
        """Return what exchanges like those of these calls take beyond them; see `violation`."""
        baseline, mode = cast("VerifiedBaseline", self.attempt.baseline), self.mode
        if mode is not None:
            mode = Mode(mode.gated, 1 if longest(made)[0].shared == 1 else self._most)
        return baseline.usual(mode, into=self.ring.writes_there).longer(growth_ms)

    def violation(self, made: Sequence[TimedCall], growth_ms: float = 0.0) -> Optional[Violation]:
        """Return why the latency of calls is not believed, or None.

        Parameters
        ----------
        made : sequence of TimedCall
            Timed calls, at least one.
        growth_ms : float
            How much longer an exchange takes than is usual.
        """
        session, baseline = self.attempt.session, cast("VerifiedBaseline", self.attempt.baseline)
        return find_violation(
            made,
            device=session.device,
            timer=session.timer,
            timer_version=session.timer_version,
            floor=baseline.floor,
            overhead=self.usual(made, growth_ms),
        )

    @property
    def waits(self) -> bool:
        """Whether calls wait for the device before they return."""
        return self.mode is not None and not self.mode.gated

    def _calls(self, mode: Mode, patience_s: Optional[float] = None) -> Round:
        """Return what is to be told of an exchange with so many calls as have been prepared."""
        slots = range(len(self._made))
        warm = self.attempt.baseline.config.cache == "warm"
        patience_s = _LONG_PATIENCE_S if patience_s is None else patience_s
        return Round(slots, gated=mode.gated, touch=warm, patience_s=patience_s)

    def select(self, number: int) -> None:
        """Have the call with a draw, of the last exchange, be the last one."""
        self._call = self.numbers.index(number)
        self.drawn, self.turn = self._made[self._call]

    def fire(self, number: Optional[int] = None, *, secured: bool = False) -> TimedCall:
        """Make a call with values of its own; on the CPU its sample is the judge's."""
        if self.attempt.session.device != "cpu":
            turns = self._prepared([number], secured=secured, clocked=True)
            return self.attempt.fire(0, release=turns)
        if number is None:
            number = fresh_number(self._rng)
        draw = partial(self.values.draw, number)
        self.turn = turn = self.ring.turn(draw, self._rng, secured=secured)
        call = self.attempt.fire(turn.slot, release=turn)
        self.drawn = turn.drawn
        self.numbers, self._made = [number], [(self.drawn, turn)]
        call = replace(call, waited_ms=turn.waited_ms)
        self.late = self.late or turn.late
        return call if self._overhead is None else self._overhead.timed(call, into=turn.into)

    def empty(self, *, into: bool, mode: Optional[Mode] = None) -> TimedCall:
        """Make everything but calls, as if outputs were written into, or returned.

        Returns
        -------
        TimedCall
            As of `whole`.
        """
        given = self.values.given_on_device
        if self.attempt.session.device == "cpu":
            turn = self.ring.turn(lambda: given, self._rng, secured=True, into=into)
            return self.attempt.fire(turn.slot, release=turn, empty=into)
        packed = [self.ring.packed(given)] * (1 if mode is None else mode.calls)
        how = {"into": into, "clocked": mode is None}
        turns = DeviceTurns(self.ring, packed, self._rng, secured=True, **how)
        if mode is None:
            return self.attempt.fire(0, release=turns, empty=into)
        self._made = [(given, part) for part in turns.parts]
        made = self.attempt.fire_round(self._calls(mode), release=turns, empty=into)
        return whole(made)[0]

    def kept(self) -> tuple[list[Any], Optional[torch.Tensor]]:
        """Return the inputs of the last call, as `Values.kept` holds them."""
        packed = self.turn.packed if self.turn is not None else None
        return (self.drawn if packed is None else self.ring.unpacked(packed, self.drawn)), packed

    def outputs(self) -> list[Any]:
        """Return what the last call has left behind; on the CPU its process stands still then."""
        attempt, turn, ring = self.attempt, self.turn, self.ring
        assert turn is not None
        if attempt.session.device == "cpu" and ring.writes_there:
            # Whatever the process tells: there they are.
            attempt.candidate.rest(timeout_s=attempt.left("call"))
            return [output.clone() for output in ring.parts(turn.slot)[1]]
        self.secured = True
        if attempt.session.device != "cpu":
            if find_problem(attempt.candidate.returned(self._call), ring.specs) is None:
                return list(turn.outputs)
            self.secured = False
        return attempt.candidate.collect(timeout_s=attempt.left("call"), call=self._call)

    def look(self, check: TimedCheck, where: str, **note: Any) -> None:
        """Compare what the last call has left behind.

        Parameters
        ----------
        check : TimedCheck
            What it must be.
        where : str
            Names the call.
        **note
            More about it, for the record.

        Raises
        ------
        WrongTimedCall
            If it is wrong, or came too late, or the call has changed an input.
        """
        assert self.turn is not None
        outputs = self.outputs()
        problem = self.turn.problem() or (LATE if self.late else None)
        baseline = self.attempt.baseline
        if baseline.evaluator.finds_patterns:
            trial = _DrawnTrial(check.number, self.values, _on_cpu(check.expected))
            self.looks.append((trial, _on_cpu(outputs)))
        with self.attempt.deadline.stopped():
            found = compare_timed(baseline, self.values, check, outputs)
        self.correctness = found.correctness
        if found.passed and found.correctness is not None:
            self.loose = self.loose or LOOSE in (found.correctness.extra or {})
        if problem is not None and found.correctness is not None:
            message = f"integrity: {where}: {problem}"
            if not found.passed:
                message += f"; {found.message}"
            wrong = Check(EvaluationStatus.INCORRECT_NUMERICAL, found.correctness, message)
            raise WrongTimedCall(wrong, {**note, "rule": "memory"})
        if found.passed and not self.secured:  # only now are they as declared
            found = Check(EvaluationStatus.INCORRECT_NUMERICAL, found.correctness, _AFTERWARDS)
        if not found.passed:
            message = (
                f"integrity: outputs: {where} gave different outputs from an untimed one: "
                f"{found.message}"
            )
            raise WrongTimedCall(replace(found, message=message), {**note, "rule": "outputs"})

    def close(self) -> None:
        """Let go of the memory."""
        self.ring.close()


class CheckedCourse(Course):
    """The timed calls of a solution.

    Parameters
    ----------
    attempt : VerifiedAttempt
        As of `Course`.
    rng : random.Random
        As of `Course`.
    schedule : mapping
        Which calls are compared, if it is known how many there will be.
    checks : iterator of TimedCheck
        Without end: what others are compared with.
    alone : sequence of TimedCheck
        What calls made alone are compared with.
    """

    def __init__(
        self,
        attempt: VerifiedAttempt,
        rng: random.Random,
        schedule: Mapping[int, TimedCheck],
        checks: Iterator[TimedCheck],
        alone: Sequence[TimedCheck],
    ) -> None:
        baseline = attempt.baseline
        assert baseline.values is not None
        assert baseline.overhead is not None
        super().__init__(attempt, baseline.values, rng, baseline.overhead)
        self.checked = 0
        self.plan, self._checks, self.checks_alone = attempt.plan, checks, alone
        self._schedule = dict(schedule)

    def begin(self, first: int, count: int) -> bool:
        """Decide what to compare in a batch of which nobody knows how many follow.

        A solution that spends the time in other ways makes few calls: then all are compared.
        Returns whether the reference may have had to make more checks.
        """
        if is_counted(self.plan):
            return False
        share = _OFTEN_LIMITED if self.plan.rounds else _OFTEN_ADAPTED
        places = range(first, first + count)
        chosen = [one for one in places if one < _ALL_OF or self._rng.random() < share]
        with self.attempt.deadline.stopped():
            self._schedule.update(zip(chosen, self._checks, strict=False))
        return bool(chosen)

    def take_places(self, places: Sequence[Optional[int]]) -> Sequence[TimedCall]:
        """Make calls, timed or not, and compare what those left behind whose turn has come."""
        due = [(place, self._schedule.get(place)) for place in places if place is not None]
        checks = {place: check for place, check in due if check is not None}
        draws = [checks[one].number if one in checks else None for one in places]
        taken = self.take(draws, secured=bool(checks))
        for place, check in checks.items():
            self.select(check.number)
            planned = self.plan.max_samples
            note = {"trust": "full", "timed_call": place, "timed_calls": planned}
            self.look(check, f"timed call {place} of {planned}", **note)
            self.checked += 1
        made = max((place + 1 for place in places if place is not None), default=0)
        plan = self.plan
        self.call_due(made / (plan.max_samples if plan.rounds else plan.min_samples))
        return taken

    def call_due(self, share: float = 1.0) -> None:
        """Make those calls alone that are due after a share of the others: machines change."""
        due = int(min(share, 1.0) * len(self.checks_alone))
        self.call_alone(self.checks_alone[len(self.made_alone) : due])


def time_distrusting(
    attempt: VerifiedAttempt,
    seed: int,
    schedule: Mapping[int, TimedCheck],
    checks: Iterator[TimedCheck],
    visit: Callable[[int], bool] = lambda place: False,
    grown_ms: Optional[Callable[[], float]] = None,
    *,
    alone: Sequence[TimedCheck] = (),
    waiting: Sequence[TimingPlan] = (),
) -> TimedRun:
    """Time the solution with fresh inputs for each call, compare some calls, and weigh the rest.

    Parameters
    ----------
    attempt : Attempt
        Its calls are right when they are looked at.
    seed : int
        Decides the inputs of all calls, and which of them are compared; nobody else knows it.
    schedule, checks, alone
        As of `CheckedCourse`; no process has seen any of it.
    visit : callable
        Called after each timed call; returns whether that has disturbed the candidate.
    grown_ms : callable, optional
        Called at the end for how much longer an exchange takes by then.
    waiting : sequence of TimingPlan
        If calls wait for the device: what several processes do. This one is the first of them.

    Raises
    ------
    WrongTimedCall
        If a timed call gives wrong outputs, or changes an input.
    CandidateError
        If the candidate fails.
    """
    session = attempt.session
    course = CheckedCourse(attempt, KeyedRandom(seed), schedule, checks, alone)
    spread = False
    try:
        if waiting:
            with session.device_to_itself(attempt.deadline):
                course.at_once()
            spread = course.waits
        if spread:
            course.plan, course.checks_alone = waiting[0], ()
        taken = calls.take_calls(
            *(attempt, course.plan, course.take_places),
            at_once=course.at_once,
            visit=visit,
            begin=course.begin,
        )
        if course.mode is not None:
            with session.device_to_itself(attempt.deadline):
                course.call_due()
        elif course.usual(taken.calls).holds_host(taken.calls):
            taken = replace(taken, calls=tuple(map(_with_host, taken.calls)))
    finally:
        course.close()
    if course.late and course.correctness is not None:  # after the last look
        message = f"integrity: in a timed call {LATE}"
        wrong = Check(EvaluationStatus.INCORRECT_NUMERICAL, course.correctness, message)
        raise WrongTimedCall(wrong, {"trust": "full", "rule": "memory"})
    growth_ms = 0.0 if grown_ms is None else grown_ms()
    overhead = course.usual(taken.calls, growth_ms)
    measured = calls.measurement_of(taken)
    if course.waits:
        measured = replace(measured, notes=(*measured.notes, _ON_HOST))
    measurement = replace(
        measured,
        dropped=rows_of(overhead.disturbed(taken.calls)),
        least_ms=overhead.least_ms(taken.calls),
    )
    return TimedRun(
        measurement,
        _facts(course, taken.calls, overhead),
        course.violation(taken.calls, growth_ms),
        looks=tuple(course.looks),
        alone_ms=course.alone_ms(growth_ms),
        spread=spread,
    )


def _facts(course: CheckedCourse, made: Sequence[TimedCall], overhead: Overhead) -> dict[str, Any]:
    """Return what was done to make sure of these calls."""
    attempt, ring = course.attempt, course.ring
    baseline = cast("VerifiedBaseline", attempt.baseline)
    confinement = attempt.worker.confinement
    facts: dict[str, Any] = {
        "trust": "full",
        "timed_calls": len(made),
        "checked_calls": course.checked,
        "values": course.values.rules,
        # What the process had given up before the solution was loaded.
        "sandbox": list(confinement.applied) if confinement is not None else [],
    }
    if attempt.session.device != "cpu":
        facts["unaccounted_us"] = unaccounted_us(made, overhead)
    if len(ring) < ring.wanted:
        facts["slots"] = len(ring)
    if baseline.replayable:
        facts["replayable"] = True
    if course.loose:
        facts[LOOSE] = True
    if baseline.floor is not None:
        facts["floor_ms"] = float(f"{baseline.floor.ms:.4g}")
    return facts


def _with_host(call: TimedCall) -> TimedCall:
    """Return a call whose latency includes what it took to return to the host."""
    sample_ms = min(call.sample_ms + call.enqueued_ms, call.wall_ms)
    return replace(call, sample_ms=sample_ms, enqueued_ms=0.0)


def merged(runs: Sequence[TimedRun]) -> TimedRun:
    """Return what the runs of several processes say together."""
    if len(runs) == 1:
        return runs[0].compared_alone()
    taken = [run.measurement for run in runs]
    samples: list[float] = []
    dropped: list[tuple[int, int]] = []
    for one in taken:
        dropped += [(first + len(samples), end + len(samples)) for first, end in one.dropped]
        samples += one.samples_ms
    facts = dict(runs[0].facts)
    for name in ("timed_calls", "checked_calls"):
        facts[name] = sum(run.facts[name] for run in runs)
    if any(LOOSE in run.facts for run in runs):
        facts[LOOSE] = True
    alone = [run.alone_ms for run in runs if run.alone_ms is not None]
    found = [run.violation for run in runs if run.violation is not None]
    joined = replace(
        runs[0],
        measurement=replace(
            taken[-1],
            samples_ms=tuple(samples),
            notes=tuple(dict.fromkeys(note for one in taken for note in one.notes)),
            dropped=tuple(dropped),
            processes=tuple(len(one.samples_ms) for one in taken),
            least_ms=_least_ms(taken),
        ),
        facts=facts,
        violation=min(found, key=_leniency, default=None),
        watched={key: value for run in runs for key, value in run.watched.items()},
        looks=tuple(look for run in runs for look in run.looks),
        alone_ms=min(alone, default=None),
    )
    return joined.compared_alone()


def _leniency(violation: Violation) -> tuple[bool, float]:
    """Return what orders violations: certain ones first, then those that hide most."""
    return violation.disputable, -violation.unseen_ms


def _least_ms(taken: Sequence[calls.Measurement]) -> Optional[float]:
    """Return what the latency may be; None if no process was held up most of the time."""
    least = [one.latency_ms if one.least_ms is None else one.least_ms for one in taken]
    held_up = any(one.least_ms is not None for one in taken)
    return median(least) if held_up else None


def rows_of(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending numbers as rows: the first number of each, and the one after its last."""
    rows: list[tuple[int, int]] = []
    for number in numbers:
        if rows and rows[-1][1] == number:
            rows[-1] = (rows[-1][0], number + 1)
        else:
            rows.append((number, number + 1))
    return tuple(rows)


def compare_timed(
    baseline: DeviceBaseline, values: Values, check: TimedCheck, outputs: list[Any]
) -> Check:
    """Hold what a timed call has returned against what it must return.

    Raises
    ------
    EvaluatorFailed
        If the evaluator does.
    """
    if values.device != "cpu" and baseline.evaluator.any_device:
        # A quick look; of what does not pass, the whole story is told on the CPU.
        with suppress(EvaluatorFailed):
            found = _compared(baseline, values, check.number, check.expected, outputs)
            if found.passed:
                return found
    return _compared(baseline, values, check.number, _on_cpu(check.expected), _on_cpu(outputs))


def _compared(
    baseline: DeviceBaseline,
    values: Values,
    number: int,
    expected: list[Any],
    outputs: list[Any],
) -> Check:
    evaluator = baseline.evaluator
    problem = baseline.definition, baseline.workload, _DrawnTrial(number, values, expected)
    return ask(evaluator, evaluator.check_timed, *problem, outputs, baseline.config)


def _on_cpu(found: Sequence[Any]) -> list[Any]:
    return [one.cpu() if hasattr(one, "cpu") and not one.is_meta else one for one in found]


class _DrawnTrial(Trial):
    """Makes its inputs when they are asked for: few evaluators look at them, and it takes long."""

    def __init__(self, number: int, values: Values, expected: list[Any]) -> None:
        facts = {"index": 0, "seed": number, "expected": expected}
        self.__dict__.update(facts, _values=values)

    @property
    def inputs(self) -> list[Any]:
        """The inputs as the call saw them, on the CPU."""
        values: Values = self.__dict__["_values"]
        return _on_cpu(values.draw(self.seed))
