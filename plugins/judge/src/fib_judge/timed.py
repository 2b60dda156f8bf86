"""Timing a solution that is not trusted: fresh inputs, unannounced checks, the judge's clock."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Optional

from fib_judge.integrity import Claim, Inquiry, Normals, Violation, inquire
from fib_judge.records import KeyedRandom
from flashinfer_bench.bench import calls
from flashinfer_bench.bench.evaluation import EvaluatorFailed, ask
from flashinfer_bench.bench.evaluators.base import Check, Trial
from flashinfer_bench.bench.executors.threads import waited_here
from flashinfer_bench.data import EvaluationStatus

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    import torch

    from fib_judge.beside import Beside
    from fib_judge.records import VerifiedAttempt
    from flashinfer_bench.tensors.vary import Freedom, Variation


MOST_CHECKS = 8
FEWEST_CHECKS = 2
_TIME_SHARE = 0.25  # of the reference's calls: their outputs are fetched, which also takes time
_MEMORY_SHARE = 0.25  # of what is free
_MOST_BYTES = 256 * 2**20  # that are fetched and compared: half a second, or more
_LAST_SHARE = 0.1
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class TimedCheck:
    """A variation, and what the reference made of it.

    Attributes
    ----------
    variation : Variation
        What the call sees.
    freedoms : tuple of Freedom
        How the inputs vary.
    base : Trial
        The input set that it varies.
    expected : list of torch.Tensor
        The reference's outputs.
    """

    variation: Variation
    freedoms: tuple[Freedom, ...]
    base: Trial
    expected: list[torch.Tensor]

    @property
    def trial(self) -> Trial:
        """The inputs as the call saw them, and the expected outputs."""
        return _VariedTrial(self)


class _VariedTrial(Trial):
    """Makes its inputs when they are asked for: few evaluators look at them, and it takes long."""

    def __init__(self, check: TimedCheck) -> None:
        facts = {"index": check.base.index, "seed": check.base.seed, "expected": check.expected}
        self.__dict__.update(facts, _check=check)

    @cached_property
    def inputs(self) -> list[Any]:
        from flashinfer_bench.tensors.vary import varied

        check: TimedCheck = self.__dict__["_check"]
        return varied(check.freedoms, check.base.inputs, check.variation)


def number_of_checks(timed_calls: int, output_bytes: int, free_bytes: int) -> int:
    """Return how many variations to prepare.

    Parameters
    ----------
    timed_calls : int
        Of the reference. The variations are among them, so nothing is computed twice; at most a
        quarter of them, because to fetch outputs takes time, too.
    output_bytes : int
        Size of all outputs of one call: at most a quarter of `free_bytes` is held, and 256 MiB.
    free_bytes : int
        Memory that is free.

    Returns
    -------
    int
        2 to 8, or 1 if there is one timed call only.
    """
    by_time = int(timed_calls * _TIME_SHARE)
    most = min(free_bytes * _MEMORY_SHARE, _MOST_BYTES)
    by_memory = int(most / max(1, output_bytes))
    wanted = max(FEWEST_CHECKS, min(MOST_CHECKS, by_time, by_memory))
    return min(wanted, timed_calls)


def free_memory() -> int:
    """Return the bytes of memory that nothing uses; 0 where the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def secret_places(timed_calls: int, count: int, rng: random.Random) -> list[int]:
    """Return `count` different numbers of timed calls, in order.

    One lies in the last tenth of the run, as no end of it is safe for work that is left undone; the
    others anywhere, independently. A process can notice that it is looked at. If there were, say,
    one look in each of as many parts, the rest of a part would be free after it; like this a look
    says nothing about when the next one comes.
    """
    tail = max(1, int(timed_calls * _LAST_SHARE))
    late = rng.randrange(timed_calls - tail, timed_calls)
    others = [place for place in range(timed_calls) if place != late]
    return sorted([late, *rng.sample(others, count - 1)])


def secret_schedule(
    timed_calls: int, checks: Sequence[TimedCheck], rng: random.Random
) -> dict[int, Optional[TimedCheck]]:
    """Return at which timed calls the judge looks, and what it compares there.

    Each check comes once, in random order. Beside them there are none to as many decoys, which are
    None: looks like the others, after which nothing is compared. So whoever counts looks does not
    know either how many are still to come.
    """
    count = min(len(checks), timed_calls)
    if not count:
        return {}
    chosen = rng.sample(list(checks), count)
    places = secret_places(timed_calls, count, rng)
    free = sorted(set(range(timed_calls)).difference(places))
    decoys = rng.sample(free, min(rng.randint(0, count), len(free)))
    return {**dict.fromkeys(decoys), **dict(zip(places, chosen, strict=True))}


def secret_batch(
    first: int, count: int, checks: Sequence[TimedCheck], rng: random.Random
) -> dict[int, Optional[TimedCheck]]:
    """Return at which calls of a batch the judge looks, if nobody knows how many batches come.

    One or two checks, and up to as many decoys, wherever in the batch. Where checks have run out
    there are decoys alone: who counts looks learns nothing from it.

    Parameters
    ----------
    first, count : int
        Number of the batch's first timed call, and how many there are.
    checks : sequence of TimedCheck
        Those that have not been made.
    rng : random.Random
        Decides; nobody else knows it.
    """
    wanted = min(rng.randint(1, 2), count)
    chosen = rng.sample(list(checks), min(wanted, len(checks)))
    decoys = wanted - len(chosen) + rng.randint(0, wanted)
    places = rng.sample(range(first, first + count), min(len(chosen) + decoys, count))
    return {**dict.fromkeys(places), **dict(zip(places, chosen, strict=False))}


_DIGITS = 4
_NOTHING_FRESH = "recorded inputs only"


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
    claim : Claim, optional
        What the judge has to weigh; None if the candidate is believed.
    inquiry : Inquiry, optional
        What has come out of it.
    beside : Beside, optional
        The reference's latencies in between; None if it was not called.
    watched : dict
        What was seen of the machine meanwhile.
    """

    measurement: calls.Measurement
    facts: dict[str, Any]
    claim: Optional[Claim] = None
    inquiry: Optional[Inquiry] = None
    beside: Optional[Beside] = None
    watched: dict[str, Any] = field(default_factory=dict)

    @property
    def violation(self) -> Optional[Violation]:
        """Why the latency is not believed, if it is not."""
        return self.inquiry.violation if self.inquiry is not None else None

    def against(self, normal: Normals) -> TimedRun:
        """Return the same calls, held against another normal."""
        assert self.claim is not None
        return replace(self, inquiry=inquire(self.claim, normal))

    def as_disputed(self) -> TimedRun:
        """Return it with a latency that reaches to what a typical call took with all around it."""
        violation = self.violation
        assert self.inquiry is not None
        assert violation is not None
        unseen, taken = _short(self.inquiry.unseen_ms), self.measurement
        note = (
            f"disputed: {violation.rule}: {violation.message}, probably for load on this machine: "
            f"the latency is between {taken.latency_ms:.4g} and "
            f"{taken.latency_ms + unseen:.4g} ms"
        )
        return replace(
            self,
            measurement=replace(taken, unseen_ms=unseen, notes=(*taken.notes, note)),
            facts={**self.facts, "disputed": violation.rule, "unseen_ms": unseen},
        )

    @property
    def note(self) -> dict[str, Any]:
        """What goes into ``correctness.extra["integrity"]``."""
        if self.claim is None or self.inquiry is None:
            return self.facts
        floor, inquiry = self.claim.floor, self.inquiry
        return {
            **self.facts,
            "hidden_ms": _short(inquiry.overhead.ms),
            "allowed_ms": _short(inquiry.overhead.allowed_ms),
            "exchange_ms": _short(inquiry.exchange.ms),
            "exchange_allowed_ms": _short(inquiry.exchange.allowed_ms),
            "floor_ms": _short(floor.ms) if floor is not None else None,
        }


class _Course:
    """The timed calls of a candidate, some of which are checked."""

    def __init__(self, attempt: VerifiedAttempt, rng: random.Random) -> None:
        self._attempt = attempt
        self._rng = rng
        self._variations = calls.Variations(attempt.baseline, rng)
        self._plan = attempt.plan
        self._made = 0
        self._waited_before: Optional[tuple[dict[int, int], int]] = None
        self._looked: list[int] = []
        self._schedule: dict[int, Optional[TimedCheck]] = {}
        if self._plan.rounds:
            total = self._plan.max_samples
            self._schedule = secret_schedule(total, attempt.baseline.checks, rng)

    def begin(self, first: int, count: int, closing: bool) -> None:
        """Decide where to look in a batch; see `take_calls`."""
        if self._waited_before is None:
            self._waited_before = self._attempt.candidate.waiting_times(), waited_here()
        if closing:
            # Have the judge look at this call, unless it has made a check already.
            if not self.checked:
                left = self._unused() or list(self._attempt.baseline.checks)
                self._schedule[first] = self._rng.choice(left)
        elif not self._plan.rounds:
            self._schedule.update(secret_batch(first, count, self._unused(), self._rng))

    def _unused(self) -> list[TimedCheck]:
        used = {id(self._schedule[place]) for place in self._looked}
        used.update(id(check) for check in self._schedule.values())
        return [check for check in self._attempt.baseline.checks if id(check) not in used]

    @property
    def checked(self) -> int:
        """How many calls have been compared."""
        return sum(self._schedule[place] is not None for place in self._looked)

    @property
    def decoys(self) -> int:
        """How many calls have been looked at for nothing."""
        return len(self._looked) - self.checked

    def waited_ms(self) -> float:
        """Return how long an exchange was held up since others had the cores, in the mean."""
        after, here = self._attempt.candidate.waiting_times(), waited_here()
        assert self._waited_before is not None
        before, before_here = self._waited_before
        # The candidate's slowest thread, and this one.
        longest = max((after[each] - before.get(each, 0) for each in after), default=0)
        return (longest + here - before_here) / self._made / _NS_PER_MS if longest else 0.0

    def variation_of(self, place: Optional[int]) -> Variation:
        self._made += 1
        check = self._schedule.get(place) if place is not None else None
        return check.variation if check is not None else self._variations.draw()

    def visit(self, place: int) -> bool:
        """Look at what the call has left behind, if its turn has come."""
        if place not in self._schedule:
            return False
        self._looked.append(place)
        attempt, check = self._attempt, self._schedule[place]
        outputs = attempt.candidate.collect(timeout_s=attempt.left("call"))
        found = None
        with attempt.deadline.stopped():
            if check is not None:
                found = compare_timed(attempt, check, outputs)
            else:
                # Take as long as a comparison does: the process may notice how long it was stopped.
                with suppress(EvaluatorFailed):  # these outputs are those of other inputs
                    compare_timed(attempt, attempt.baseline.checks[0], outputs)
        numbers = attempt.candidate.changed_inputs(timeout_s=attempt.left("call"))
        # What the candidate tells may be any numbers.
        names = enumerate(attempt.baseline.definition.inputs)
        changed = [name for number, name in names if number in numbers]
        if found is not None:
            self._weigh(place, found, changed)
        return True

    def _weigh(self, place: int, found: Check, changed: list[str]) -> None:
        planned = self._plan.max_samples
        note = {"trust": "full", "timed_call": place, "timed_calls": planned}
        where = f"timed call {place} of {planned}"
        if changed:
            inputs = ", ".join(map(repr, changed))
            message = f"integrity: inputs: {where} changed its input {inputs}"
            if found.passed:
                found = Check(EvaluationStatus.INCORRECT_NUMERICAL, found.correctness, message)
            else:
                found = replace(found, message=f"{message}; {found.message}")
            raise WrongTimedCall(found, {**note, "rule": "inputs", "changed_inputs": changed})
        if not found.passed:
            message = (
                f"integrity: outputs: {where} gave other outputs than an untimed one: "
                f"{found.message}"
            )
            raise WrongTimedCall(replace(found, message=message), {**note, "rule": "outputs"})


def time_distrusting(
    attempt: VerifiedAttempt,
    normal: Normals,
    seed: int,
    aside: Callable[[int], bool] = lambda place: False,
) -> TimedRun:
    """Time the solution with fresh inputs for each call, check some calls, and weigh its claims.

    Parameters
    ----------
    attempt : Attempt
        Its calls are right when they are looked at, and its process has all input sets.
    normal : Normals
        What the calls of the reference are like.
    seed : int
        Decides the inputs of all calls, and which of them are checked; nobody else knows it.
    aside : callable
        Called after each timed call; returns whether that has disturbed the candidate.

    Raises
    ------
    WrongTimedCall
        If a timed call gives wrong outputs, or changes an input.
    CandidateError
        If the candidate fails.
    """
    session = attempt.session
    course = _Course(attempt, KeyedRandom(seed))
    taken = calls.take_calls(
        attempt,
        attempt.plan,
        course.variation_of,
        visit=lambda place: course.visit(place) | aside(place),
        begin=course.begin,
    )
    claim = Claim(
        calls=taken.calls,
        timer=session.timer,
        timer_version=session.timer_version,
        floor=attempt.baseline.floor,
        poisoned_bytes=poisoned_bytes(attempt),
        device=session.device,
        waited_ms=course.waited_ms(),
    )
    # Those that have other values in each timed call, not only another address.
    pairs = zip(attempt.baseline.definition.inputs, attempt.baseline.freedoms, strict=True)
    fresh = [name for name, free in pairs if free.patched or free.is_mixed or free.way == "rotate"]
    confinement = attempt.worker.confinement
    facts = {
        "trust": "full",
        "timed_calls": len(taken.calls),
        "checked_calls": course.checked,
        "decoys": course.decoys,
        "fresh": fresh or _NOTHING_FRESH,
        # What the process had given up before the solution was loaded.
        "sandbox": list(confinement.applied) if confinement is not None else [],
    }
    return TimedRun(calls.measurement_of(taken), facts, claim).against(normal)


def _short(milliseconds: float) -> float:
    return float(f"{milliseconds:.{_DIGITS}g}")


def compare_timed(attempt: VerifiedAttempt, check: TimedCheck, outputs: list[Any]) -> Check:
    """Hold what a timed call has returned against what it must return.

    Raises
    ------
    EvaluatorFailed
        If the evaluator does.
    """
    baseline, evaluator = attempt.baseline, attempt.baseline.evaluator
    problem = baseline.definition, baseline.workload, check.trial
    return ask(evaluator, evaluator.check_timed, *problem, outputs, baseline.config)


def poisoned_bytes(attempt: VerifiedAttempt) -> int:
    """Return the size of outputs that are made for this candidate, but not for the reference."""
    loaded = attempt.worker.loaded
    if loaded is None or not loaded.destination_passing_style:
        return 0
    return sum(value.nbytes for value in attempt.baseline.trials[0].expected)
