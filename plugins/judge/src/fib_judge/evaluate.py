"""Evaluating one solution on one workload: build, check, time, verdict."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Optional

from fib_judge.beside import Turns, reference_beside, speeds_beside
from fib_judge.records import (
    VerifiedAttempt,
    VerifiedBaseline,
    VerifiedSession,
    seed_commitment,
)
from fib_judge.reference import renewed_normal
from fib_judge.timed import TimedRun, WrongTimedCall, time_distrusting
from fib_judge.watch.environment import EnvironmentWatch, keep, watchers_for
from flashinfer_bench.bench.calls import measure
from flashinfer_bench.bench.evaluation import Report, check_all, evaluate_by, in_worker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fib_judge.integrity import Normals, Violation
    from flashinfer_bench.bench.evaluators.base import Check
    from flashinfer_bench.data import Correctness, Evaluation, Solution


_LOOK_EVERY = 5
"""Timed calls from one look at the machine to the next: what is dropped is dropped in such rows."""


class Aside:
    """Begins to watch when it is made.

    Parameters
    ----------
    attempt : Attempt
        Whose timed calls are to be made.
    turns : Turns, optional
        Of the reference; None if it is not called in between.
    """

    def __init__(self, attempt: VerifiedAttempt, turns: Optional[Turns]) -> None:
        self._turns = turns
        self._deadline = attempt.deadline
        device, lock = attempt.session.device, attempt.session.clock_lock
        # A clock that is held low on purpose is not throttled.
        held = lock.request.sm_mhz if lock is not None and lock.request is not None else None
        watchers = watchers_for(device, attempt.baseline.config.watch, nominal_mhz=held)
        self._watch = EnvironmentWatch(device, watchers)
        self._watch.before()

    def visit(self, place: int) -> bool:
        """Do what is due after a timed call; see `take_calls`."""
        waited_s = 0.0
        if (place + 1) % _LOOK_EVERY == 0:
            with self._deadline.stopped():  # it may wait for a device that is too hot
                waited_s = self._watch.mark(place + 1)
        turned = self._turns.visit(place) if self._turns is not None else False
        return turned or waited_s > 0.0

    def completed(self, run: TimedRun) -> TimedRun:
        """Return `run` with what has been seen, and without what does not count."""
        taken = run.measurement
        self._watch.mark(len(taken.samples_ms))
        report = self._watch.after()
        dropped = rows_of(keep(taken.samples_ms, report)[1])
        watched: dict[str, Any] = dict(report.facts)
        if report.waited_s:
            watched["waited_s"] = report.waited_s
        measurement = replace(taken, dropped=dropped, notes=(*taken.notes, *report.notes))
        beside = self._turns.beside if self._turns is not None else None
        return replace(run, measurement=measurement, beside=beside, watched=watched)


def rows_of(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending numbers as rows: the first number of each, and the one after its last."""
    rows: list[tuple[int, int]] = []
    for number in numbers:
        if rows and rows[-1][1] == number:
            rows[-1] = (rows[-1][0], number + 1)
        else:
            rows.append((number, number + 1))
    return tuple(rows)


logger = logging.getLogger(__name__)

_MORE_ATTEMPTS = 2
_MORE_ON_DEVICES = 1  # where nobody is convicted by the clock, see `_verdict`


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

    @property
    def is_disputable(self) -> bool:
        """Whether it is not believed, but for a reason that noise can cause."""
        return self.violation is not None and self.violation.disputable

    def against(self, normal: Normals) -> _Outcome:
        """Return the same calls, held against another normal."""
        assert self.timed is not None
        return replace(self, timed=self.timed.against(normal))


def evaluate_solution(
    session: VerifiedSession, solution: Solution, baseline: VerifiedBaseline
) -> Evaluation:
    """Evaluate `solution` against `baseline`.

    Whatever the solution does ends in a verdict: a build that raises or dies in ``COMPILE_ERROR``,
    also where it is the first call that compiles; a call that does in ``RUNTIME_ERROR``; exceeding
    the time limit in ``TIMEOUT``; outputs that are not as declared in ``INCORRECT_SHAPE`` or
    ``INCORRECT_DTYPE``, wrong ones in ``INCORRECT_NUMERICAL``.

    With trust ``full`` the same goes for timed calls, and a latency that is not believed ends in
    ``RUNTIME_ERROR``: where noise could be the reason, only if it is not believed in a fresh
    process either, which has as much time again. Where even the reference's times vary as much, or
    calls are few, and on devices other than the CPU, where time that the timer has not seen may be
    the host's, that is no proof: the latency is disputed, and reaches from what was claimed to what
    that time makes of it.

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
    parts = session, solution, baseline

    def judged(report: Report) -> Evaluation:
        return _verdict(report, _run(*parts, report), session, baseline)

    report = Report(*parts)
    report.extra["trust"] = session.config.trust
    if baseline.reference_seed is not None:
        # The seed itself has to wait: see `VerifiedMeasurement.completed`.
        report.extra["checks_id"] = seed_commitment(baseline.reference_seed)
    return evaluate_by(judged, report)


def _run(
    session: VerifiedSession, solution: Solution, baseline: VerifiedBaseline, report: Report
) -> _Outcome:
    """Evaluate once; and up to twice more if the claims look false, but could be a disturbance.

    For that the reference is timed again before, and after if there is still something. Noise that
    only the candidate has met, each time, is rare.
    """
    parts = session, solution, baseline, report
    outcome, normal = _run_once(*parts, normal=baseline.normal), baseline.normal
    first = outcome.violation
    for _ in range(_MORE_ATTEMPTS if session.device == "cpu" else _MORE_ON_DEVICES):
        if not outcome.is_disputable or normal is None:
            break
        logger.info("%s: %s; evaluated once more", solution.name, outcome.violation)
        normal = renewed_normal(session, baseline, normal)
        outcome = replace(_run_once(*parts, normal=normal), earlier=first)
        if outcome.is_disputable:
            normal = renewed_normal(session, baseline, normal)
            outcome = outcome.against(normal)
    return outcome


def _run_once(
    session: VerifiedSession,
    solution: Solution,
    baseline: VerifiedBaseline,
    report: Report,
    *,
    normal: Optional[Normals],
) -> _Outcome:
    seed = session.timed_seed
    if seed is None:
        seed = session.secret_seed(f"{baseline.handle}/{solution.hash()}")
    if normal is not None:
        report.extra["rotation_seed"] = seed
        report.extra["timed_checks"] = len(baseline.checks)
    with in_worker(report) as attempt:
        verified = VerifiedAttempt(**vars(attempt))
        check, correctness = check_all(verified)
        outcome = _Outcome(check, correctness)
        if check.passed:
            try:
                outcome = replace(outcome, timed=_time(verified, normal, seed))
            except WrongTimedCall as wrong:
                noted = with_note(wrong.check.correctness, wrong.note)
                outcome = _Outcome(wrong.check, noted)
        if outcome.violation is not None:
            attempt.worker.reusable = False  # the next attempt is to know nothing of this one
    return outcome


def _time(attempt: VerifiedAttempt, normal: Optional[Normals], seed: int) -> TimedRun:
    """Time the solution, with the reference called in between and the machine watched."""
    with reference_beside(attempt) as turns:
        aside = Aside(attempt, turns)
        if normal is None:
            run = TimedRun(measure(attempt, attempt.plan, aside.visit), {"trust": "off"})
        else:
            run = time_distrusting(attempt, normal, seed, aside.visit)
        run = aside.completed(run)
    in_turn = run.beside is not None and attempt.session.device != "cpu"
    if normal is not None and run.violation is not None and in_turn:
        assert run.beside is not None
        run = run.against(run.beside.normals_beside(normal))
    return run


def _verdict(
    report: Report, outcome: _Outcome, session: VerifiedSession, baseline: VerifiedBaseline
) -> Evaluation:
    timed, earlier, violation = outcome.timed, outcome.earlier, outcome.violation
    if outcome.correctness is None or timed is None:
        return report.wrong(outcome.check, outcome.correctness)
    # The host may have been slow, and not the device; or the whole machine.
    if (
        violation is not None
        and violation.disputable
        and (session.device != "cpu" or violation.undecided)
    ):
        timed = timed.as_disputed()
    elif violation is not None:
        reason = str(violation)
        if earlier is not None:
            reason += f"\n(in a first attempt: {earlier.rule}: {earlier.message})"
        return report.refused(reason)
    correctness = with_note(outcome.correctness, timed.note)
    assert correctness is not None
    notes = [f"measured twice; at first: {earlier.rule}: {earlier.message}"] if earlier else []
    timing: dict[str, Any] = {}
    if session.clock_lock is not None:
        timing["clock_lock"] = session.clock_lock.facts()
    if timed.watched:
        timing["watched"] = timed.watched
    speeds = speeds_beside(timed.measurement, baseline.measurement, timed.beside)
    return report.passed(correctness, timed.measurement, speeds, notes=notes, timing=timing)


def with_note(correctness: Optional[Correctness], note: dict[str, Any]) -> Optional[Correctness]:
    """Return `correctness` with what was done to make sure that it is what was timed."""
    if correctness is None:
        return None
    extra = {**(correctness.extra or {}), "integrity": note}
    return correctness.model_copy(update={"extra": extra})
