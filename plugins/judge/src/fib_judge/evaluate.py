"""Evaluating one solution on one workload: build, check, time, verdict."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

from fib_judge.paired_reference import (
    PairedReference,
    as_of_any_process,
    paired_speeds,
    reference_in_turns,
)
from fib_judge.records import (
    KeyedRandom,
    VerifiedAttempt,
    VerifiedBaseline,
    VerifiedSession,
    seed_commitment,
)
from fib_judge.reference import more_checks, with_fresh_checks
from fib_judge.timed import (
    MOST_CHECKS,
    TimedRun,
    WrongTimedCall,
    compared_plan,
    is_counted,
    merged,
    rows_of,
    secret_schedule,
    time_distrusting,
)
from fib_judge.watch.environment import EnvironmentWatch, keep, watchers_for
from flashinfer_bench.bench.calls import measure
from flashinfer_bench.bench.evaluation import Report, ask, check_all, evaluate_by, in_worker
from flashinfer_bench.bench.evaluators.base import Check
from flashinfer_bench.bench.measurement import ReferenceFailed
from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.tensors import derive_seed

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from fib_judge.integrity import Violation
    from fib_judge.timed import TimedCheck
    from flashinfer_bench.bench.stopping import TimingPlan
    from flashinfer_bench.data import Correctness, Evaluation, Solution


_READY_S = 1.0  # for the checked calls, beyond which one process does all

_PROCESSES_A_TRIAL, _LEAST_CALLS = 2, 5  # of which a process has at least so many timed ones

_LOOK_EVERY = 5
"""Timed calls from one look at the machine to the next: what is dropped is dropped in such rows."""


class CallMonitor:
    """Begins to watch when it is made.

    Parameters
    ----------
    attempt : Attempt
        Whose timed calls are to be made.
    turns : PairedReference, optional
        Of the reference; None if it is not called in between.
    first : int
        How many calls other processes have made.
    """

    def __init__(
        self, attempt: VerifiedAttempt, turns: Optional[PairedReference], first: int
    ) -> None:
        self._attempt, self._turns, self._first = attempt, turns, first
        self._deadline = attempt.deadline
        device, lock = attempt.session.device, attempt.session.clock_lock
        # A clock that is held low on purpose is not throttled.
        held = lock.request.sm_mhz if lock is not None else None
        watchers = watchers_for(device, attempt.baseline.config.watch, nominal_mhz=held)
        self._watch = EnvironmentWatch(device, watchers)
        self._watch.before()

    def visit(self, place: int) -> bool:
        """Do what is due after a timed call; see `take_calls`."""
        waited_s = 0.0
        if (place + 1) % _LOOK_EVERY == 0:
            with self._deadline.stopped():  # it may wait for a device that is too hot
                waited_s = self._watch.mark(place + 1)
        turned = False
        if self._turns is not None:
            turned = self._turns.visit(self._attempt, self._first + place)
        return turned or waited_s > 0.0

    def grown_ms(self) -> float:
        """Return how much longer an exchange takes by now than when nothing else ran."""
        return 0.0 if self._turns is None else self._turns.growth_ms()

    def completed(self, run: TimedRun) -> TimedRun:
        """Return `run` with what has been seen, and without what does not count."""
        taken = run.measurement
        self._watch.mark(len(taken.samples_ms))
        report = self._watch.after()
        slowed = keep(taken.samples_ms, report)[1]
        dropped = rows_of(sorted(taken.dropped_numbers.union(slowed)))
        watched: dict[str, Any] = dict(report.facts)
        if report.waited_s:
            watched["waited_s"] = report.waited_s
        measurement = replace(taken, dropped=dropped, notes=(*taken.notes, *report.notes))
        return replace(run, measurement=measurement, watched=watched)


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Outcome:
    """What came of a solution that returned from every call."""

    check: Check  # of the last trial, or timed call: the only one that can have failed
    correctness: Optional[Correctness]  # over all trials
    timed: Optional[TimedRun] = None
    earlier: Optional[Violation] = None  # of an attempt that was repeated

    @property
    def violation(self) -> Optional[Violation]:
        """Why its latency is not believed, if it is not."""
        return self.timed.violation if self.timed is not None else None


def evaluate_solution(
    session: VerifiedSession, solution: Solution, baseline: VerifiedBaseline
) -> Evaluation:
    """Evaluate `solution` against `baseline`.

    Whatever the solution does ends in a verdict: a build that raises or dies in ``COMPILE_ERROR``,
    also where it is the first call that compiles; a call that does in ``RUNTIME_ERROR``; exceeding
    the time limit in ``TIMEOUT``; outputs that are not as declared in ``INCORRECT_SHAPE`` or
    ``INCORRECT_DTYPE``, wrong ones in ``INCORRECT_NUMERICAL``.

    With trust ``full`` the same goes for timed calls, and a latency that cannot be true ends in
    ``RUNTIME_ERROR``. One that a busy machine may have disturbed is measured again, in a fresh
    process and with other checks, with as much time again; if it is no better then, it is disputed.

    Parameters
    ----------
    session : Session
        The run.
    solution : Solution
        What to evaluate.
    baseline : DeviceBaseline
        Inputs and reference results.

    Raises
    ------
    RunnerFatalError
        If no process can be started.
    RunInterrupted
        If the run was broken off meanwhile.
    NotEvaluated
        If it cannot be built here for a reason that is not its fault. That counts until a call of
        it has returned: where it is the first call that compiles, only then is it built.
    """

    def judged(report: Report) -> Evaluation:
        try:
            outcome = _run(session, solution, baseline, report)
        except ReferenceFailed as error:
            return report.refused(f"no checks could be made for it: {error}", transient=True)
        return _verdict(report, outcome, session, baseline)

    report = Report(session, solution, baseline)
    report.extra["trust"] = session.config.trust
    if baseline.reference_seed is not None:
        # The seed itself has to wait: see `VerifiedMeasurement.completed`.
        report.extra["checks_id"] = seed_commitment(baseline.reference_seed)
    return evaluate_by(judged, report)


def _run(
    session: VerifiedSession, solution: Solution, baseline: VerifiedBaseline, report: Report
) -> _Outcome:
    """Evaluate once; and once more if the latency is not believed, but that could be chance."""
    parts = session, solution, report
    if baseline.checks and not baseline.apart:
        report.baseline = baseline = with_fresh_checks(session, baseline, solution.hash())
        report.extra["checks_anew"] = True
    outcome = _run_once(*parts, baseline)
    first = outcome.violation
    if first is None or not first.disputable:
        return outcome
    logger.info(
        "%s: %s, probably load on this machine; measuring again", solution.name, first.message
    )
    try:
        report.baseline = anew = with_fresh_checks(session, baseline, f"{solution.hash()} again")
        return replace(_run_once(*parts, anew), earlier=first)
    except ReferenceFailed as error:
        logger.warning("%s is not measured again: %s", solution.name, error)
        return outcome


def _run_once(
    session: VerifiedSession, solution: Solution, report: Report, baseline: VerifiedBaseline
) -> _Outcome:
    seed = session.timed_seed
    if seed is None:
        seed = session.secret_seed(f"{baseline.handle}/{solution.hash()}")
    if baseline.values is not None:
        report.extra["rotation_seed"] = seed
        report.extra["timed_checks"] = len(baseline.checks)
    runs: list[TimedRun] = []
    schedule: dict[int, TimedCheck] = {}
    rng = KeyedRandom(derive_seed(seed, "checks"))
    others = _supply(session, baseline, rng)
    with ExitStack() as stack:
        turns: Optional[PairedReference] = None
        parts: list[TimingPlan] = []
        while not runs or len(runs) < len(parts):
            with in_worker(report) as attempt:
                began = time.monotonic()
                verified = VerifiedAttempt(**vars(attempt))
                if not runs:
                    check, correctness, call_s = check_all(verified)
                    if not check.passed:
                        return _Outcome(check, correctness)
                    usual, plan = verified.plan, _whole_plan(verified, call_s)
                    whole = replace(verified, part=plan)
                    called_s = time.monotonic() - began
                    parts = _parts(whole, called_s)
                    waiting = _parts(whole, called_s, waits=True)
                    if is_counted(plan):
                        more = partial(more_checks, session, baseline, rng=rng)
                        schedule = secret_schedule(plan.total, baseline.checks, rng, more)
                    turns = stack.enter_context(reference_in_turns(whole))
                number = len(runs)
                verified = replace(verified, part=parts[number])
                made = sum(len(run.measurement.samples_ms) for run in runs)
                due = {place - made: check for place, check in schedule.items() if place >= made}
                alone = baseline.checks_alone[number :: len(parts)]
                try:
                    further = waiting if len(waiting) > len(parts) else []
                    own = KeyedRandom(derive_seed(seed, number)).getrandbits(53)
                    checks = own, due, others
                    runs.append(_time(verified, checks, alone, turns, made, further))
                except WrongTimedCall as wrong:
                    return _Outcome(wrong.check, with_note(wrong.check.correctness, wrong.note))
                if runs[0].spread:
                    parts = waiting
                timed = merged(runs)
                # The next process, and the next attempt, are to know nothing of this one.
                if number + 1 < len(parts) or timed.violation is not None:
                    attempt.worker.reusable = False
        if plan != usual:
            note = (
                f"fewer than {usual.total} timed calls, as a call, or one of the reference, is long"
            )
            noted = replace(timed.measurement, notes=(*timed.measurement.notes, note))
            timed = replace(timed, measurement=noted)
        beside = turns.beside if turns is not None else None
    if timed.looks:
        evaluator = baseline.evaluator
        told = ask(
            evaluator,
            evaluator.find_pattern,
            *(baseline.definition, timed.looks, baseline.config),
        )
        if told is not None:
            text = f"integrity: outputs: {told}"
            found = Check(EvaluationStatus.INCORRECT_NUMERICAL, correctness, text)
            return _Outcome(found, with_note(correctness, {**timed.facts, "rule": "outputs"}))
    return _Outcome(check, correctness, replace(timed, beside=beside))


def _supply(
    session: VerifiedSession, baseline: VerifiedBaseline, rng: random.Random
) -> Iterator[TimedCheck]:
    """Yield checks, and then others that the reference makes when they are wanted."""
    yield from baseline.checks
    count = min(MOST_CHECKS, max(1, len(baseline.checks)))
    while True:
        yield from more_checks(session, baseline, count, rng, holding=True)


def _whole_plan(attempt: VerifiedAttempt, call_s: float) -> TimingPlan:
    """Return what all processes together have to do, if a call takes so many seconds."""
    plan, baseline, device = attempt.plan, attempt.baseline, attempt.session.device
    if device == "cpu" or not baseline.evaluator.finds_patterns:  # else fewer would show less
        plan = plan.shortened(call_s)
    if baseline.values is None or not attempt.session.config.profile_baseline:
        return plan
    return compared_plan(plan, len(baseline.checks), device)


def _parts(attempt: VerifiedAttempt, called_s: float, *, waits: bool = False) -> list[TimingPlan]:
    """Return what each process has to do; on a GPU there are several if calls wait for it.

    Where a process takes long until it can be timed, as with code that is compiled when it is first
    called, one does all of it.
    """
    plan, baseline = attempt.plan, attempt.baseline
    config = baseline.config
    if not plan.rounds or baseline.values is None:
        return [plan]
    a_trial, usual = _PROCESSES_A_TRIAL if attempt.session.device == "cpu" else int(waits), 1
    if called_s < _READY_S:
        usual = min(a_trial * config.num_trials, plan.total // _LEAST_CALLS)
    count = min(config.processes or usual, plan.total, len(baseline.checks))
    return plan.split(count) if count > 1 else [plan]


def _time(
    attempt: VerifiedAttempt,
    checks: tuple[int, dict[int, TimedCheck], Iterator[TimedCheck]],
    alone: Sequence[TimedCheck],
    turns: Optional[PairedReference],
    made: int,
    waiting: Sequence[TimingPlan],
) -> TimedRun:
    """Time the solution, with the reference called in between and the machine watched."""
    monitor = CallMonitor(attempt, turns, made)
    if attempt.baseline.values is None:
        run = TimedRun(measure(attempt, attempt.plan, monitor.visit), {"trust": "off"})
    else:
        watched = monitor.visit, monitor.grown_ms
        run = time_distrusting(attempt, *checks, *watched, alone=alone, waiting=waiting)
    return monitor.completed(run)


def _verdict(
    report: Report, outcome: _Outcome, session: VerifiedSession, baseline: VerifiedBaseline
) -> Evaluation:
    timed, earlier, violation = outcome.timed, outcome.earlier, outcome.violation
    if outcome.correctness is None or timed is None:
        return report.wrong(outcome.check, outcome.correctness)
    if violation is not None and violation.disputable:
        timed = timed.as_disputed()
    elif violation is not None:
        return report.refused(str(violation))
    correctness = with_note(outcome.correctness, timed.facts)
    assert correctness is not None
    notes = [f"measured twice; the first time: {earlier.message}"] if earlier else []
    timing: dict[str, Any] = {}
    if session.clock_lock is not None:
        timing["clock_lock"] = session.clock_lock.facts()
    if timed.watched:
        timing["watched"] = timed.watched
    speeds = paired_speeds(timed.measurement, baseline.measurement, timed.beside)
    if session.ceilings is not None and len(timed.measurement.processes) < 2:
        speeds = as_of_any_process(speeds, session.ceilings)
    return report.passed(correctness, timed.measurement, speeds, notes=notes, timing=timing)


def with_note(correctness: Optional[Correctness], note: dict[str, Any]) -> Optional[Correctness]:
    """Return `correctness` with what was done to make sure that it is what was timed."""
    if correctness is None:
        return None
    extra = {**(correctness.extra or {}), "integrity": note}
    return correctness.model_copy(update={"extra": extra})
