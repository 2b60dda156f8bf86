"""One solution in its process, on one workload: built, checked, timed."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from flashinfer_bench.bench.calls import Deadline, measure, time_left
from flashinfer_bench.bench.executors.base import CandidateError, CandidateFailed
from flashinfer_bench.bench.pool import RunInterrupted, solution_key
from flashinfer_bench.bench.stopping import TimingPlan
from flashinfer_bench.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flashinfer_bench.bench.calls import Measurement
    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluation import Report
    from flashinfer_bench.bench.evaluators.base import Check, Evaluator, Trial
    from flashinfer_bench.bench.pool import Worker
    from flashinfer_bench.bench.reference import DeviceBaseline
    from flashinfer_bench.bench.session import Session
    from flashinfer_bench.data import Correctness, Evaluation, Solution

_Answer = TypeVar("_Answer")
_KEEP_BELOW_BYTES = 1 << 30  # a candidate that holds more than this is not kept for later


class NotEvaluated(RunnerError):
    """There is no verdict on a solution, because this machine lacks what its build needs."""


class EvaluatorFailed(RunnerError):
    """An evaluator raised; whether the outputs are right is not known."""


@dataclass(frozen=True)
class Attempt:
    """One solution on one workload, and the process that it runs in."""

    session: Session
    solution: Solution
    baseline: DeviceBaseline
    evaluator: Evaluator
    config: ResolvedEvalConfig
    worker: Worker
    deadline: Deadline

    @property
    def plan(self) -> TimingPlan:
        """How often it is to be called."""
        return TimingPlan.of(self.config)


def build(attempt: Attempt) -> float:
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


def check_all(attempt: Attempt) -> tuple[Check, Optional[Correctness]]:
    """Call the solution on one input set after the other, until one comes out wrong.

    Returns
    -------
    check : Check
        Of the last trial: the only one that can have failed.
    correctness : Correctness, optional
        Over all trials.
    """
    checks: list[Check] = []
    for trial in attempt.baseline.trials:
        checks.append(_check(attempt, trial))
        if not checks[-1].passed:
            break
    if checks[-1].correctness is None:
        return checks[-1], None
    return checks[-1], ask(attempt.evaluator, attempt.evaluator.combine, checks)


def _check(attempt: Attempt, trial: Trial) -> Check:
    candidate, deadline, baseline = attempt.worker.candidate, attempt.deadline, attempt.baseline
    evaluator, config = attempt.evaluator, attempt.config
    count = ask(evaluator, evaluator.calls_per_trial, config)
    left = time_left(deadline, candidate, "inputs")
    ways = [item.way for item in baseline.freedoms]
    candidate.put_inputs(trial.index, trial.inputs, baseline.axes, ways=ways, timeout_s=left)
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
    return ask(evaluator, evaluator.check, *problem, calls, config)


def ask(evaluator: Evaluator, question: Callable[..., _Answer], *arguments: Any) -> _Answer:
    """Ask an evaluator, and set the blame straight if it raises.

    Raises
    ------
    EvaluatorFailed
        If it does.
    """
    try:
        return question(*arguments)
    except Exception as error:  # noqa: BLE001 - a plugin, looking at what untrusted code made
        failure = error
    raise EvaluatorFailed(
        f"evaluator {evaluator.name!r} failed on these outputs: {type(failure).__name__}: {failure}"
    ) from failure


def time_trusting(
    attempt: Attempt, aside: Callable[[int], bool] = lambda place: False
) -> Measurement:
    """Time the solution, and believe what its process tells.

    Parameters
    ----------
    attempt : Attempt
        Its calls are right when they are looked at, and its process has all input sets.
    aside : callable
        Called after each timed call; returns whether that has disturbed the candidate.
    """
    baseline = attempt.baseline
    return measure(
        attempt.session,
        attempt.worker.candidate,
        baseline.freedoms,
        [trial.inputs for trial in baseline.trials],
        attempt.plan,
        attempt.deadline,
        aside,
    )


@contextmanager
def in_worker(report: Report) -> Iterator[Attempt]:
    """Lend a process in which the solution is loaded, for the body of a ``with`` statement.

    What it prints, and how long its build took, goes to `report`.
    """
    session = report.session
    with session.pool.worker(solution_key(report.solution)) as worker:
        worker.reusable = report.baseline.nbytes < _KEEP_BELOW_BYTES
        attempt = Attempt(
            session,
            report.solution,
            report.baseline,
            report.evaluator,
            report.config,
            worker,
            Deadline(session.timeout_s),
        )
        try:
            load_s = build(attempt)
            report.build_s = load_s + report.compile_s if load_s else 0.0
            # From here on the device's memory and time belong to this solution alone.
            session.pool.settle()
            yield attempt
        finally:
            report.output = worker.new_output()


def evaluate_by(method: Callable[[Report], Evaluation], report: Report) -> Evaluation:
    """Evaluate a solution by `method`; what ends it early becomes an evaluation, too.

    Parameters
    ----------
    method : callable
        Builds, checks and times the solution.
    report : Report
        Makes the evaluation.

    Raises
    ------
    NotEvaluated
        If there can be no verdict, because this machine lacks what its build needs.
    RunInterrupted
        If the run ends meanwhile.
    """
    session, solution = report.session, report.solution
    known: Optional[CandidateError] = session.failed_builds.get(solution_key(solution))
    if known is None and session.ahead is not None:
        done = session.ahead.outcome(solution)  # waits while it is being compiled
        if done is not None:
            report.compile_s, report.output = done.seconds, done.output
            report.builder, known = done.builder, done.error
    if known is not None:
        return _failed(report, known)
    try:
        return method(report)
    except EvaluatorFailed as error:
        return report.not_judged(error.message)
    except CandidateError as error:
        if session.pool.interrupted:
            raise RunInterrupted("the run ended during an evaluation") from error
        return _failed(report, error)


def _failed(report: Report, error: CandidateError) -> Evaluation:
    if isinstance(error, CandidateFailed) and error.is_no_fault:
        raise NotEvaluated(error.reason) from error
    return report.failed(error)
