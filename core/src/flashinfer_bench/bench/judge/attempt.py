"""One solution in its process, on one workload: built, checked, timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from flashinfer_bench.bench.builds import solution_key
from flashinfer_bench.bench.executors.base import CandidateFailed
from flashinfer_bench.bench.judge.measure import measure
from flashinfer_bench.bench.judge.shots import time_left
from flashinfer_bench.bench.stopping.plan import TimingPlan
from flashinfer_bench.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Check, Evaluator, Trial
    from flashinfer_bench.bench.judge.baseline import DeviceBaseline
    from flashinfer_bench.bench.judge.checks import TimedCheck
    from flashinfer_bench.bench.judge.deadline import Deadline
    from flashinfer_bench.bench.judge.measure import Measurement
    from flashinfer_bench.bench.judge.session import Session
    from flashinfer_bench.bench.pool import Worker
    from flashinfer_bench.data import Correctness, Solution

_Answer = TypeVar("_Answer")


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


def compare_timed(attempt: Attempt, check: TimedCheck, outputs: list[Any]) -> Check:
    """Hold what a timed call has returned against what it must return.

    Raises
    ------
    EvaluatorFailed
        If the evaluator does.
    """
    evaluator, baseline = attempt.evaluator, attempt.baseline
    problem = baseline.definition, baseline.workload, check.trial
    return ask(evaluator, evaluator.check_timed, *problem, outputs, attempt.config)


def poisoned_bytes(attempt: Attempt) -> int:
    """Return the size of outputs that are made for this candidate, but not for the reference."""
    loaded = attempt.worker.loaded
    if loaded is None or not loaded.destination_passing_style:
        return 0
    return sum(value.nbytes for value in attempt.baseline.trials[0].expected)
