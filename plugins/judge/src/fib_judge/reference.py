"""Running a reference: its timed calls become checks of solutions, and show what is normal."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

from fib_judge.decidability import as_declared, tightened
from fib_judge.floor import physics_floor
from fib_judge.integrity import Mode, Overhead, longest
from fib_judge.records import KeyedRandom, VerifiedBaseline, VerifiedSession
from fib_judge.timed import (
    CALLS_ALONE,
    Course,
    TimedCheck,
    compare_timed,
    compared_plan,
    free_memory,
    fresh_number,
    number_of_checks,
    number_to_keep,
    rows_of,
)
from fib_judge.values import Values
from flashinfer_bench.bench import calls
from flashinfer_bench.bench.correctness import find_problem, output_specs
from flashinfer_bench.bench.digests import fresh_seed
from flashinfer_bench.bench.evaluation import EvaluatorFailed
from flashinfer_bench.bench.executors.base import CandidateError
from flashinfer_bench.bench.measurement import (
    ReferenceFailed,
    Task,
    checked_outputs,
    running_reference,
)
from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.data import RandomInput
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.tensors import derive_seed

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from flashinfer_bench.bench.executors.base import Confinement, TimedCall
    from flashinfer_bench.bench.stopping import TimingPlan

_EMPTY_CALLS, _FEWEST = 20, 5
_SHORT_MS = 10.0
_LOOKED_AT = 2  # calls, for inputs that a reference overwrites
_CHANNELS = ("landlock-files", "mount-namespace"), ("network-namespace", "system-calls")
"""Measures of a sandbox of which one each is enough: files, sockets."""
_COMPARED = 4  # checks, each with the outputs of the next one


def prepare_baseline(session: VerifiedSession, task: Task) -> VerifiedBaseline:
    """Run the reference; keep the outputs of some of its timed calls as checks.

    Raises
    ------
    DataError, ReferenceFailed, CapabilityError
        As of `MeasurementMethod.prepare`.
    UndecidableWorkload
        If a solution that computes nothing would pass.
    """
    given = (session.reference_seed, session.rotation_seed)
    drawn = next((one for one in given if one is not None), None)
    seed = fresh_seed() if drawn is None else drawn
    taken: Optional[calls.Measurement] = None
    found: dict[str, Any] = {}
    with running_reference(session, task) as (attempt, plan):
        if session.config.trust == "full":
            inputs = attempt.baseline.trials[0].inputs
            values = Values(
                *(task.definition, task.workload, task.root, inputs, seed, session.device)
            )
            taken, found = _timed_with_checks(session, attempt, plan, values)
            found |= {"values": values, "reference_seed": seed}
            found["apart"] = closes_channels(attempt.worker.confinement)
        elif session.config.profile_baseline:
            taken = calls.measure(attempt, plan)
    trials = attempt.baseline.trials
    config = tightened(task.definition, task.workload, trials, task.evaluator, task.config)
    if session.ceilings is not None and session.config.trust != "off":
        found["floor"] = physics_floor(
            task.definition, task.axes, session.ceilings, _recorded(task, trials[0].inputs)
        )
    baseline = VerifiedBaseline(
        **vars(replace(attempt.baseline, config=config, measurement=taken)), **found
    )
    return replace(baseline, replayable=_is_replayable(baseline))


def with_fresh_checks(
    session: VerifiedSession, baseline: VerifiedBaseline, purpose: str
) -> VerifiedBaseline:
    """Return a baseline whose checks have values that no process has seen.

    Their numbers follow from the seed of the others and from `purpose`, so that an evaluation can
    be repeated.

    Raises
    ------
    ReferenceFailed, RunInterrupted
        As of `more_checks`.
    """
    assert baseline.reference_seed is not None
    rng = KeyedRandom(derive_seed(baseline.reference_seed, purpose))
    count, alone = len(baseline.checks), len(baseline.checks_alone)
    made = more_checks(session, baseline, count + alone, rng)
    alone = min(alone, len(made) // 2)
    checks, others = made[alone:][:count], made[:alone]
    return replace(baseline, checks=tuple(checks), checks_alone=tuple(others))


def more_checks(
    session: VerifiedSession,
    baseline: VerifiedBaseline,
    count: int,
    rng: random.Random,
    *,
    holding: bool = False,
) -> list[TimedCheck]:
    """Have the reference compute the outputs of other draws.

    Parameters
    ----------
    session : VerifiedSession
        The run.
    baseline : VerifiedBaseline
        One that has checks.
    count : int
        How many, or an exchange more; fewer if memory or time is short.
    rng : random.Random
        Decides which draws; nobody else knows it.
    holding : bool
        Whether the caller keeps others off the device already.

    Raises
    ------
    ReferenceFailed
        If it does, or there is no memory for it.
    RunInterrupted
        If the run ends meanwhile.
    """
    definition, limit_s = baseline.definition, session.config.timeout_seconds
    assert baseline.values is not None
    made: list[TimedCheck] = []
    nbytes = sum(one.nbytes for one in baseline.checks[0].expected)
    count = number_of_checks(count, nbytes, free_memory(session.device), session.device)
    try:
        with ExitStack() as stack:
            worker = stack.enter_context(session.pool.worker(("reference", definition.name)))
            worker.load(definition, baseline.reference, timeout_s=limit_s)
            deadline = Deadline(limit_s)
            attempt = calls.Attempt(session, baseline.reference, baseline, worker, deadline)
            course = Course(attempt, baseline.values, rng)
            stack.callback(course.close)
            course.follow_mode(baseline.mode)
            if not holding:
                stack.enter_context(session.device_to_itself(deadline))
            while len(made) < count and (not made or deadline.remaining > limit_s / 2):
                numbers = [fresh_number(rng) for _ in range(course.at_once())]
                course.take(numbers)
                made += [_check(course, number) for number in numbers]
            # A process that was started from the judge's core may stay there.
            worker.reusable = worker.reusable and not holding
        session.pool.settle()
    except (CandidateError, CapabilityError) as error:
        if session.pool.interrupted:
            raise RunInterrupted("the run ended while the reference ran") from error
        text = f"the reference of {definition.name!r} could not compute more checks: {error}"
        raise ReferenceFailed(text) from error
    return made


def closes_channels(confinement: Optional[Confinement]) -> bool:
    """Return whether no process of a solution can tell one of another solution what it has seen."""
    applied = set(confinement.applied) if confinement is not None else set()
    return all(applied.intersection(either) for either in _CHANNELS)


def _check(course: Course, number: int) -> TimedCheck:
    """Return what the reference made of a draw in the last exchange."""
    course.select(number)
    expected = checked_outputs(course.attempt.baseline, course.outputs())
    return TimedCheck(number, [one.to(course.attempt.session.device) for one in expected])


def _recorded(task: Task, inputs: Sequence[Any]) -> dict[str, Any]:
    """Return the integers that no call gets others of."""
    given = zip(task.definition.inputs.items(), inputs, strict=True)
    return {
        name: value.cpu() if hasattr(value, "cpu") else value
        for (name, spec), value in given
        if spec.dtype.is_integer and not isinstance(task.workload.inputs[name], RandomInput)
    }


def _timed_with_checks(
    session: VerifiedSession, attempt: calls.Attempt, plan: TimingPlan, values: Values
) -> tuple[Optional[calls.Measurement], dict[str, Any]]:
    """Time the reference, and keep the outputs of some of its calls: they become checks."""
    rng = KeyedRandom(session.secret_seed("reference"))
    nbytes = sum(value.nbytes for value in attempt.baseline.trials[0].expected)
    device, free = session.device, free_memory(session.device)
    count = number_of_checks(plan.max_samples, nbytes, free, device)
    kept = 0
    # Only if all calls of a solution are compared: else a shorter pause would tell which are.
    wanted = compared_plan(attempt.plan, count, device)
    if wanted.rounds and count == plan.max_samples >= wanted.total:
        kept = number_to_keep(count, sum(getattr(one, "nbytes", 0) for one in values.given), free)
    checks: list[TimedCheck] = []
    alone: list[TimedCheck] = []
    rounds: dict[Mode, Overhead] = {}
    course = Course(attempt, values, rng)
    try:
        with session.device_to_itself(attempt.deadline):
            course.at_once()
            empty = _empty(course, None, _EMPTY_CALLS) if course.mode is None else {}

        def visit(place: int) -> bool:
            if place >= count:
                return False
            checks.append(_check(course, place))
            if place < kept:
                values.kept[place] = course.kept()
            if place < _LOOKED_AT and course.turn is not None:
                values.written.update(course.turn.overwritten())
            return device == "cpu"

        taken = calls.take_calls(attempt, plan, course.take, at_once=course.at_once, visit=visit)
        if course.mode is None:
            overhead = Overhead.of(empty, taken.calls)
        else:
            with session.device_to_itself(attempt.deadline):
                rounds = _of_rounds(course, course.mode, taken.calls)
                # With a single slot all calls are alone, and so large that no more may be kept.
                more = min(CALLS_ALONE, count) if len(course.ring) > 1 else 0
                for place in range(plan.max_samples, plan.max_samples + more):
                    course.take([place])
                    alone.append(_check(course, place))
            overhead = rounds[course.mode]
            if course.waits:
                taken = replace(taken, calls=tuple(overhead.timed_on_host(taken.calls)))
        if device == "cpu":
            timed = (overhead.timed(call, into=False) for call in taken.calls)
            taken = replace(taken, calls=tuple(timed))
    finally:
        course.close()
    calls.refuse_impossible(attempt, taken.calls)
    measurement: Optional[calls.Measurement] = None
    if session.config.profile_baseline:
        measurement = calls.measurement_of(taken)
        dropped = rows_of(overhead.disturbed(taken.calls))
        measurement = replace(measurement, dropped=dropped)
    found: dict[str, Any] = {"checks": tuple(checks), "checks_alone": tuple(alone)}
    found |= {"overhead": overhead, "of_rounds": rounds, "mode": course.mode}
    return measurement, found


def _of_rounds(course: Course, own: Mode, made: Sequence[TimedCall]) -> dict[Mode, Overhead]:
    """Return what exchanges take, for each way in which the calls of a solution may be made.

    Parameters
    ----------
    course : Course
        Of the reference.
    own : Mode
        How its calls are made.
    made : sequence of TimedCall
        These calls.
    """
    found = {}
    for mode in {Mode(False, 1), Mode(True, 1), Mode(True, len(course.ring)), own}:
        count = _EMPTY_CALLS // 2 if mode.calls == 1 else _FEWEST
        empty = _empty(course, mode, count)
        taken = empty[False]
        if mode == own:
            taken = longest(made)
            count = _EMPTY_CALLS if taken[-1].secured_ms < _SHORT_MS else count
        usable = mode.gated <= own.gated and mode.calls <= own.calls
        if usable and (mode != own or len(taken) < count):
            rounds = [course.round([None] * mode.calls, mode) for _ in range(1 + count)]
            taken = longest([call for one in rounds[1:] for call in one])
        found[mode] = Overhead.of(empty, taken)
    return found


def _empty(course: Course, mode: Optional[Mode], count: int) -> dict[bool, list[TimedCall]]:
    return {
        into: [course.empty(into=into, mode=mode) for _ in range(count)] for into in (False, True)
    }


def _is_replayable(baseline: VerifiedBaseline) -> bool:
    """Return whether outputs of other inputs would pass."""
    if baseline.values is None or not baseline.evaluator.one_answer:
        return False
    if baseline.values.is_replayable:
        return True
    pairs = list(zip(baseline.checks, baseline.checks[1:], strict=False))[:_COMPARED]
    return bool(pairs) and all(_passes(baseline, check, other.expected) for check, other in pairs)


def _passes(baseline: VerifiedBaseline, check: TimedCheck, outputs: Sequence[Any]) -> bool:
    assert baseline.values is not None
    specs = output_specs(baseline.definition, baseline.axes)
    declared = [as_declared(one, spec) for one, spec in zip(outputs, specs, strict=True)]
    if find_problem(declared, specs) is not None:
        return False
    try:
        return compare_timed(baseline, baseline.values, check, declared).passed
    except EvaluatorFailed:
        return False
