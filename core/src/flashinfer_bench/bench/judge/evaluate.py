"""Evaluating one solution on one workload: build, check, time, verdict."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.builds import solution_key
from flashinfer_bench.bench.executors.base import CandidateError, CandidateFailed
from flashinfer_bench.bench.judge.aside import Aside
from flashinfer_bench.bench.judge.attempt import (
    Attempt,
    EvaluatorFailed,
    build,
    check_all,
    time_trusting,
)
from flashinfer_bench.bench.judge.beside import reference_beside
from flashinfer_bench.bench.judge.deadline import Deadline
from flashinfer_bench.bench.judge.reference import renewed_normal
from flashinfer_bench.bench.judge.report import Report, with_note
from flashinfer_bench.bench.judge.seeds import secret_seed
from flashinfer_bench.bench.judge.timed import TimedRun, WrongTimedCall, time_distrusting
from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.errors import RunnerError

if TYPE_CHECKING:
    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Check, Evaluator
    from flashinfer_bench.bench.judge.baseline import DeviceBaseline
    from flashinfer_bench.bench.judge.integrity import Violation
    from flashinfer_bench.bench.judge.normals import Normals
    from flashinfer_bench.bench.judge.session import Session
    from flashinfer_bench.data import Correctness, Evaluation, Solution

logger = logging.getLogger(__name__)

_MORE_ATTEMPTS = 2
_MORE_ON_DEVICES = 1  # where nobody is convicted by the clock, see `_verdict`
_KEEP_BELOW_BYTES = 1 << 30  # a candidate that holds more than this is not kept for later


class NotEvaluated(RunnerError):
    """There is no verdict on a solution, because this machine lacks what its build needs."""


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

    @property
    def is_undecided(self) -> bool:
        """Whether even the reference's times vary so much that nobody can be blamed."""
        return self.violation is not None and self.violation.undecided

    def against(self, normal: Normals) -> _Outcome:
        """Return the same calls, held against another normal."""
        assert self.timed is not None
        return replace(self, timed=self.timed.against(normal))


def evaluate_solution(
    session: Session,
    solution: Solution,
    baseline: DeviceBaseline,
    evaluator: Evaluator,
    config: ResolvedEvalConfig,
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
    the host's, that is no proof: that time is added to the latency. What is reported is the latency
    of calls which have passed.

    Parameters
    ----------
    session : Session
        The run.
    solution : Solution
        What to evaluate.
    baseline : DeviceBaseline
        Inputs and reference results.
    evaluator : Evaluator
        Judges the outputs.
    config : ResolvedEvalConfig
        Tolerances and numbers of calls.

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
    report = Report(session, solution, baseline, evaluator, config)
    known_failure = _known_failure(session, solution, report)
    if known_failure is not None:
        return _failed(report, known_failure)
    try:
        outcome = _run(session, solution, baseline, evaluator, config, report)
    except EvaluatorFailed as error:
        return report.not_judged(error.message)
    except CandidateError as error:
        if session.pool.interrupted:
            raise RunInterrupted("the run ended during an evaluation") from error
        return _failed(report, error)
    return _verdict(report, outcome, session.device)


def _known_failure(
    session: Session, solution: Solution, report: Report
) -> Optional[CandidateError]:
    """Return why the solution is known not to build; wait if it is being compiled ahead."""
    known = session.failed_builds.get(solution_key(solution))
    if known is not None or session.ahead is None:
        return known
    done = session.ahead.outcome(solution)
    if done is None:
        return None
    report.compile_s, report.output, report.builder = done.seconds, done.output, done.builder
    return done.error


def _failed(report: Report, error: CandidateError) -> Evaluation:
    if isinstance(error, CandidateFailed) and error.is_no_fault:
        raise NotEvaluated(error.reason) from error
    return report.failed(error)


def _run(
    session: Session,
    solution: Solution,
    baseline: DeviceBaseline,
    evaluator: Evaluator,
    config: ResolvedEvalConfig,
    report: Report,
) -> _Outcome:
    """Evaluate once; and up to twice more if the claims look false, but could be a disturbance.

    For that the reference is timed again before, and after if there is still something. Noise that
    only the candidate has met, each time, is rare.
    """
    parts = session, solution, baseline, evaluator, config, report
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
    session: Session,
    solution: Solution,
    baseline: DeviceBaseline,
    evaluator: Evaluator,
    config: ResolvedEvalConfig,
    report: Report,
    *,
    normal: Optional[Normals],
) -> _Outcome:
    with session.pool.worker(solution_key(solution)) as worker:
        worker.reusable = baseline.nbytes < _KEEP_BELOW_BYTES
        deadline = Deadline(session.timeout_s)
        attempt = Attempt(session, solution, baseline, evaluator, config, worker, deadline)
        seed = session.timed_seed
        if seed is None:
            seed = secret_seed(session.rotation_seed, f"{baseline.handle}/{solution.hash()}")
        report.rotation_seed = seed if normal is not None else None
        try:
            load_s = build(attempt)
            report.build_s = load_s + report.compile_s if load_s else 0.0
            # From here on the device's memory and time belong to this solution alone.
            session.pool.settle()
            outcome = _judge(attempt, normal, seed)
        finally:
            report.output = worker.new_output()
        if outcome.violation is not None:
            worker.reusable = False  # the next attempt is to know nothing of this one
    return outcome


def _judge(attempt: Attempt, normal: Optional[Normals], seed: int) -> _Outcome:
    check, correctness = check_all(attempt)
    if not check.passed:
        return _Outcome(check, correctness)
    try:
        return _Outcome(check, correctness, _time(attempt, normal, seed))
    except WrongTimedCall as wrong:
        return _Outcome(wrong.check, with_note(wrong.check.correctness, wrong.note))


def _time(attempt: Attempt, normal: Optional[Normals], seed: int) -> TimedRun:
    """Time the solution, with the reference called in between and the machine watched."""
    with reference_beside(attempt) as turns:
        aside = Aside(attempt, turns)
        if normal is None:
            run = TimedRun(time_trusting(attempt, aside.visit), {"trust": "off"})
        else:
            run = time_distrusting(attempt, normal, seed, aside.visit)
        run = aside.completed(run)
    in_turn = run.beside is not None and attempt.session.device != "cpu"
    if normal is not None and run.violation is not None and in_turn:
        assert run.beside is not None
        run = run.against(run.beside.normals_beside(normal))
    return run


def _verdict(report: Report, outcome: _Outcome, device: str) -> Evaluation:
    timed = outcome.timed
    if outcome.correctness is None or timed is None:
        return report.wrong(outcome.check, outcome.correctness)
    # The host may have been slow, and not the device; or the whole machine.
    if outcome.is_disputable and (device != "cpu" or outcome.is_undecided):
        timed = timed.with_unseen()
    elif outcome.violation is not None:
        return report.violated(outcome.violation, outcome.earlier)
    correctness = with_note(outcome.correctness, timed.note)
    assert correctness is not None
    return report.passed(correctness, timed, outcome.earlier)
