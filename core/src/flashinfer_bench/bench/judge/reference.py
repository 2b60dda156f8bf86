"""Running a definition's reference: expected outputs, its latency, and what is normal for it."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.evaluators.base import Trial
from flashinfer_bench.bench.executors.base import CandidateError
from flashinfer_bench.bench.judge.checks import (
    TimedCheck,
    free_memory,
    number_of_checks,
    secret_places,
)
from flashinfer_bench.bench.judge.deadline import Deadline
from flashinfer_bench.bench.judge.measure import measure, measurement_of, refuse_impossible
from flashinfer_bench.bench.judge.normals import Normals
from flashinfer_bench.bench.judge.rounds import Variations, fixed_rounds, take_calls
from flashinfer_bench.bench.judge.seeds import secret_seed, trial_seed
from flashinfer_bench.bench.judge.shots import time_left
from flashinfer_bench.bench.judge.structure import as_tensors, find_problem, output_specs
from flashinfer_bench.bench.stopping.plan import TimingPlan
from flashinfer_bench.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.judge.baseline import DeviceBaseline
    from flashinfer_bench.bench.judge.measure import Measurement
    from flashinfer_bench.bench.judge.session import Session
    from flashinfer_bench.bench.pool import Worker
    from flashinfer_bench.data import Definition, Solution, Workload
    from flashinfer_bench.tensors.vary import Freedom, Variation

logger = logging.getLogger(__name__)

_TIMING_SHARE = 0.5  # of the time limit: a slow reference is timed less often, not given up
_FEW = fixed_rounds(count=1, warmup=4, iterations=24)  # to learn what is normal, and nothing else


class ReferenceFailed(RunnerError):
    """The reference of a definition did not give what it declares; no solution is to blame."""


@dataclass(frozen=True)
class ReferenceRun:
    """What running the reference has given; see `DeviceBaseline` for the attributes."""

    trials: tuple[Trial, ...]
    measurement: Optional[Measurement] = None
    freedoms: tuple[Freedom, ...] = ()
    checks: tuple[TimedCheck, ...] = ()
    normal: Optional[Normals] = None


@dataclass
class ReferenceProblem:
    """The reference, loaded in a process, and what it is to compute.

    Attributes
    ----------
    session : Session
        The run.
    worker : Worker
        The process.
    definition, workload
        What to compute on what.
    inputs : sequence
        The input sets.
    freedoms : tuple of Freedom
        How inputs may vary.
    deadline : Deadline
        Time for everything together.
    fastest_s : float
        Seconds of the quickest call so far.
    """

    session: Session
    worker: Worker
    definition: Definition
    workload: Workload
    inputs: Sequence[list[Any]]
    freedoms: tuple[Freedom, ...]
    deadline: Deadline
    fastest_s: float = field(default=float("inf"))

    @property
    def axes(self) -> dict[str, int]:
        """Value of every variable axis."""
        return {axis: self.workload.axes[axis] for axis in self.definition.var_axes}

    def left(self, stage: Any) -> float:
        """Return the seconds left for a request."""
        return time_left(self.deadline, self.worker.candidate, stage)

    def put(self) -> None:
        """Send all input sets."""
        ways = [item.way for item in self.freedoms]
        for slot, values in enumerate(self.inputs):
            self.worker.candidate.put_inputs(
                slot, values, self.axes, ways=ways, timeout_s=self.left("inputs")
            )

    def checked(self, outputs: list[Any]) -> list[Any]:
        """Return what the reference returned as tensors, if it is what the definition declares."""
        problem = find_problem(outputs, output_specs(self.definition, self.axes), exact_dtype=False)
        if problem is not None:
            raise ReferenceFailed(
                f"the reference of definition {self.definition.name!r} does not return what it "
                f"declares: {problem.message}",
                hint="correct the definition's outputs or its reference",
            )
        return as_tensors(outputs)


def run_reference(
    session: Session,
    worker: Worker,
    definition: Definition,
    workload: Workload,
    inputs: Sequence[list[Any]],
    config: ResolvedEvalConfig,
) -> ReferenceRun:
    """Compute expected outputs, and time the reference as solutions will be timed.

    Parameters
    ----------
    session : Session
        The run.
    worker : Worker
        Has loaded the reference.
    definition, workload
        What to compute on what.
    inputs : sequence
        The input sets.
    config : ResolvedEvalConfig
        Numbers of rounds and iterations.

    Raises
    ------
    CandidateError
        If the process fails.
    ReferenceFailed
        If it returns something else than declared.
    """
    free = _freedoms(definition, workload, inputs)
    deadline = Deadline(session.timeout_s)
    problem = ReferenceProblem(session, worker, definition, workload, inputs, free, deadline)
    problem.put()
    trials = tuple(_trial(problem, index) for index in range(len(inputs)))
    if session.trust == "full":
        return _run_checked(problem, trials, config)
    if not session.profile_baseline:
        return ReferenceRun(trials, freedoms=free)
    plan = _plan(problem, config)
    taken = measure(session, worker.candidate, free, inputs, plan, deadline)
    return ReferenceRun(trials, taken, free)


def _freedoms(
    definition: Definition, workload: Workload, inputs: Sequence[list[Any]]
) -> tuple[Freedom, ...]:
    from flashinfer_bench.tensors.vary import freedoms

    return freedoms(definition, workload, inputs[0])


def _trial(problem: ReferenceProblem, index: int) -> Trial:
    began = time.monotonic()
    outputs = problem.worker.candidate.call(index, timeout_s=problem.left("call"))
    problem.fastest_s = min(problem.fastest_s, time.monotonic() - began)
    seed = trial_seed(problem.session.seed, index)
    return Trial(index, seed, problem.inputs[index], problem.checked(outputs))


def _plan(problem: ReferenceProblem, config: ResolvedEvalConfig) -> TimingPlan:
    """Return how often it is called: as a solution; with a rule that adapts, a fixed number."""
    wanted = _FEW
    if problem.session.profile_baseline:
        wanted = TimingPlan.of(config)
        if not wanted.rounds:
            wanted = fixed_rounds(1, wanted.warmup, max(wanted.min_samples, _FEW.batch))
    budget_s = min(problem.session.timeout_s * _TIMING_SHARE, problem.deadline.remaining() * 0.9)
    if wanted.max_seconds is not None:
        budget_s = min(budget_s, wanted.max_seconds)
    # The number of calls has to be known: some of them become checks.
    plan = replace(wanted, max_seconds=None).within(budget_s, problem.fastest_s)
    if plan.max_samples != wanted.max_samples:
        logger.info(
            "the reference is slow (%.3g s a call): timed %d times instead of %d",
            problem.fastest_s,
            plan.max_samples,
            wanted.max_samples,
        )
    return plan


class _Course:
    """The timed calls of a reference, some of which become checks."""

    def __init__(
        self, problem: ReferenceProblem, trials: Sequence[Trial], plan: TimingPlan
    ) -> None:
        session = problem.session
        rng = random.Random(secret_seed(session.rotation_seed, "reference"))
        nbytes = sum(value.nbytes for value in trials[0].expected)
        count = number_of_checks(plan.max_samples, nbytes, free_memory())
        self._problem, self._trials = problem, trials
        self._variations = Variations(problem.freedoms, problem.inputs, rng, session.warm)
        self._places = frozenset(secret_places(plan.max_samples, count, rng))
        self._last: Optional[Variation] = None
        self.checks: list[TimedCheck] = []

    def variation_of(self, place: Optional[int]) -> Variation:
        del place
        self._last = self._variations.draw()
        return self._last

    def visit(self, place: int) -> bool:
        """Keep the outputs of the call that has just been timed, if it is to become a check."""
        if place not in self._places:
            return False
        problem, variation = self._problem, self._last
        assert variation is not None
        outputs = problem.worker.candidate.collect(timeout_s=problem.left("call"))
        expected = problem.checked(outputs)
        base = self._trials[variation.slot]
        self.checks.append(TimedCheck(variation, problem.freedoms, base, expected))
        return True


def _run_checked(
    problem: ReferenceProblem, trials: tuple[Trial, ...], config: ResolvedEvalConfig
) -> ReferenceRun:
    session, candidate = problem.session, problem.worker.candidate
    plan = _plan(problem, config)
    course = _Course(problem, trials, plan)
    taken = take_calls(
        session,
        candidate,
        plan,
        problem.deadline,
        variation_of=course.variation_of,
        visit=course.visit,
    )
    refuse_impossible(candidate, taken.calls)
    measurement = measurement_of(taken) if session.profile_baseline else None
    checks = tuple(course.checks)
    return ReferenceRun(trials, measurement, problem.freedoms, checks, Normals.of(taken.calls))


def renewed_normal(session: Session, baseline: DeviceBaseline, before: Normals) -> Normals:
    """Return what is normal on the machine as it is now, or was before.

    Of the two the slower counts: whoever is to be convicted must be slower than both. A reference
    that fails this time changes nothing.

    Parameters
    ----------
    session : Session
        The run.
    baseline : DeviceBaseline
        Prepared with trust ``full``.
    before : Normals
        What was normal before.
    """
    assert baseline.reference is not None
    inputs = [trial.inputs for trial in baseline.trials]
    problem = baseline.definition, baseline.workload, baseline.reference
    try:
        return before.or_slower(few_calls(session, *problem, inputs, baseline.freedoms))
    except CandidateError:
        logger.debug("the reference of %s did not answer again", baseline.definition.name)
        return before


def few_calls(
    session: Session,
    definition: Definition,
    workload: Workload,
    reference: Solution,
    inputs: Sequence[list[Any]],
    freedoms: tuple[Freedom, ...],
) -> Normals:
    """Make timed calls of a reference, in a process of its own, to learn what is normal.

    Parameters
    ----------
    session : Session
        The run.
    definition, workload, reference
        What computes what on what.
    inputs : sequence
        The input sets.
    freedoms : tuple of Freedom
        How these may vary.

    Raises
    ------
    CandidateError
        If the process fails.
    """
    with session.pool.worker(("reference", definition.name)) as worker:
        worker.load(definition, reference, timeout_s=session.timeout_s)
        session.pool.settle()
        deadline = Deadline(session.timeout_s)
        problem = ReferenceProblem(
            session, worker, definition, workload, inputs, freedoms, deadline
        )
        problem.put()
        rng = random.Random(secret_seed(session.rotation_seed, "again"))
        variations = Variations(freedoms, inputs, rng, session.warm)
        taken = take_calls(
            session,
            worker.candidate,
            _FEW,
            deadline,
            variation_of=lambda place: variations.draw(),
            visit=lambda place: False,
        )
        return Normals.of(taken.calls)
