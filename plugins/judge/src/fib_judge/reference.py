"""Running a reference whose timed calls become checks of solutions, and show what is normal."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from fib_judge.checks import (
    TimedCheck,
    free_memory,
    number_of_checks,
    secret_places,
)
from fib_judge.normals import Normals
from flashinfer_bench.bench.calls import (
    Deadline,
    Variations,
    measurement_of,
    refuse_impossible,
    take_calls,
)
from flashinfer_bench.bench.digests import secret_seed
from flashinfer_bench.bench.executors.base import CandidateError
from flashinfer_bench.bench.measurement import (
    FEW_CALLS,
    ReferenceProblem,
    reference_plan,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fib_judge.records import VerifiedBaseline
    from flashinfer_bench.bench.calls import Measurement
    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Trial
    from flashinfer_bench.bench.session import Session
    from flashinfer_bench.bench.stopping import TimingPlan
    from flashinfer_bench.data import Definition, Solution, Workload
    from flashinfer_bench.tensors.vary import Freedom, Variation

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReferenceRun:
    """What running the reference has given; see `DeviceBaseline` for the attributes."""

    trials: tuple[Trial, ...]
    measurement: Optional[Measurement] = None
    freedoms: tuple[Freedom, ...] = ()
    checks: tuple[TimedCheck, ...] = ()
    normal: Optional[Normals] = None


def run_reference(problem: ReferenceProblem, config: ResolvedEvalConfig) -> ReferenceRun:
    """Time the reference as solutions will be timed.

    Parameters
    ----------
    problem : ReferenceProblem
        The reference, which has computed the expected outputs.
    config : ResolvedEvalConfig
        Numbers of rounds and iterations.

    Raises
    ------
    CandidateError
        If the process fails.
    ReferenceFailed
        If it returns something else than declared.
    """
    if problem.session.trust == "full":
        return _run_checked(problem, problem.trials, config)
    taken = problem.measured(config) if problem.session.profile_baseline else None
    return ReferenceRun(problem.trials, taken, problem.freedoms)


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
    plan = reference_plan(problem, config)
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


def renewed_normal(session: Session, baseline: VerifiedBaseline, before: Normals) -> Normals:
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
            FEW_CALLS,
            deadline,
            variation_of=lambda place: variations.draw(),
            visit=lambda place: False,
        )
        return Normals.of(taken.calls)
