"""Evaluating one solution on one workload: build, check, time, verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from flashinfer_bench.bench.builds import solution_key
from flashinfer_bench.bench.executors.base import CandidateError, CandidateFailed
from flashinfer_bench.bench.judge.deadline import Deadline
from flashinfer_bench.bench.judge.measure import Rounds, measure, time_left
from flashinfer_bench.bench.judge.report import Report
from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Check, Evaluator, Trial
    from flashinfer_bench.bench.judge.baseline import DeviceBaseline
    from flashinfer_bench.bench.judge.measure import Measurement
    from flashinfer_bench.bench.judge.session import Session
    from flashinfer_bench.bench.pool import Worker
    from flashinfer_bench.data import Correctness, Evaluation, Solution

_Answer = TypeVar("_Answer")

_KEEP_BELOW_BYTES = 1 << 30  # a candidate that holds more than this is not kept for later


class NotEvaluated(RunnerError):
    """There is no verdict on a solution, because this machine lacks what its build needs."""


class EvaluatorFailed(RunnerError):
    """An evaluator raised; whether the outputs are right is not known."""


@dataclass(frozen=True)
class _Outcome:
    """What came of a solution that returned from every call."""

    check: Check  # of the last trial: the only one that can have failed
    correctness: Optional[Correctness]  # over all trials
    measurement: Optional[Measurement]


@dataclass(frozen=True)
class _Attempt:
    """One solution on one workload, and the process that it runs in."""

    session: Session
    solution: Solution
    baseline: DeviceBaseline
    evaluator: Evaluator
    config: ResolvedEvalConfig
    worker: Worker
    deadline: Deadline


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
    return _verdict(report, outcome)


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
    report.compile_s, report.output = done.seconds, done.output
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
    with session.pool.worker(solution_key(solution)) as worker:
        worker.reusable = baseline.nbytes < _KEEP_BELOW_BYTES
        deadline = Deadline(session.timeout_s)
        attempt = _Attempt(session, solution, baseline, evaluator, config, worker, deadline)
        try:
            load_s = _build(attempt)
            report.build_s = load_s + report.compile_s if load_s else 0.0
            # From here on the device's memory and time belong to this solution alone.
            session.pool.settle()
            check, correctness = _check_all(attempt)
            return _Outcome(check, correctness, _measure(attempt) if check.passed else None)
        finally:
            report.output = worker.new_output()


def _build(attempt: _Attempt) -> float:
    """Build the solution; return the seconds it took, 0 if an earlier evaluation did it."""
    worker, baseline = attempt.worker, attempt.baseline
    if worker.loaded is not None:
        return 0.0
    left = time_left(attempt.deadline, worker.candidate, "load")
    try:
        loaded = worker.load(baseline.definition, attempt.solution, timeout_s=left)
    except CandidateFailed as error:
        if error.about != "storage":  # there may be room again for the next workload
            attempt.session.failed_builds[solution_key(attempt.solution)] = error
        raise
    return loaded.seconds


def _check_all(attempt: _Attempt) -> tuple[Check, Optional[Correctness]]:
    """Call the solution on one input set after the other, until one comes out wrong."""
    checks: list[Check] = []
    for trial in attempt.baseline.trials:
        checks.append(_check(attempt, trial))
        if not checks[-1].passed:
            break
    if checks[-1].correctness is None:
        return checks[-1], None
    return checks[-1], _ask(attempt.evaluator, attempt.evaluator.combine, checks)


def _check(attempt: _Attempt, trial: Trial) -> Check:
    candidate, deadline, baseline = attempt.worker.candidate, attempt.deadline, attempt.baseline
    evaluator, config = attempt.evaluator, attempt.config
    count = _ask(evaluator, evaluator.calls_per_trial, config)
    left = time_left(deadline, candidate, "inputs")
    candidate.put_inputs(trial.index, trial.inputs, baseline.axes, timeout_s=left)
    calls: list[list[Any]] = []
    try:
        for _ in range(count):
            left = time_left(deadline, candidate, "call")
            calls.append(candidate.call(trial.index, timeout_s=left))
    except CandidateFailed as error:
        # After a call that returned it is the solution itself that says what this machine lacks.
        error.building = not calls and trial is baseline.trials[0]
        raise
    problem = baseline.definition, baseline.workload, trial
    return _ask(evaluator, evaluator.check, *problem, calls, config)


def _ask(evaluator: Evaluator, question: Callable[..., _Answer], *arguments: Any) -> _Answer:
    """Ask an evaluator, and set the blame straight if it raises."""
    try:
        return question(*arguments)
    except Exception as error:  # noqa: BLE001 - a plugin, looking at what untrusted code made
        failure = error
    raise EvaluatorFailed(
        f"evaluator {evaluator.name!r} failed on these outputs: {type(failure).__name__}: {failure}"
    ) from failure


def _measure(attempt: _Attempt) -> Measurement:
    config = attempt.config
    rounds = Rounds(config.num_trials, config.warmup_runs, config.iterations)
    candidate, slots = attempt.worker.candidate, len(attempt.baseline.trials)
    return measure(attempt.session, candidate, slots, rounds, attempt.deadline)


def _verdict(report: Report, outcome: _Outcome) -> Evaluation:
    if outcome.correctness is None or outcome.measurement is None:
        return report.wrong(outcome.check, outcome.correctness)
    return report.passed(outcome.correctness, outcome.measurement)
