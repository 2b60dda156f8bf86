"""Running the reference of a workload, and all that solutions are held against."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Optional

from fib_judge.decidability import tightened
from fib_judge.floor import physics_floor
from fib_judge.plain_calls import with_plain_calls
from fib_judge.records import VerifiedBaseline
from fib_judge.reference import run_reference
from flashinfer_bench.bench.digests import fresh_seed
from flashinfer_bench.bench.measurement import Task, running_reference

if TYPE_CHECKING:
    from fib_judge.floor import Floor
    from fib_judge.records import VerifiedSession


def prepare_baseline(session: VerifiedSession, task: Task) -> VerifiedBaseline:
    """Make the inputs of a workload and run the reference on them, in a process of its own.

    Parameters
    ----------
    session : Session
        The run.
    task : Task
        The workload, and how solutions are judged on it.

    Raises
    ------
    DataError
        If the workload does not fit the definition, or a tensor file is missing or wrong.
    ReferenceFailed
        If the reference fails, or returns something else than its definition declares.
    CapabilityError
        If it cannot be built here, by no fault of its own.
    UndecidableWorkload
        If a solution that computes nothing would pass.
    """
    seed = _reference_seed(session)
    timed = replace(session, rotation_seed=seed)
    with running_reference(timed, task) as problem:
        run = run_reference(problem, task.config)
    if run.normal is not None:
        run = replace(run, normal=with_plain_calls(session, run.normal))
    config = tightened(task.definition, task.workload, run.trials, task.evaluator, task.config)
    return VerifiedBaseline(
        **vars(replace(task, config=config)),
        device=session.device,
        seed=session.seed,
        floor=_floor(session, task),
        reference_seed=seed if run.checks else None,
        **vars(run),
    )


def _reference_seed(session: VerifiedSession) -> int:
    """Return what the reference's timed calls follow from: the recorded seed, or a fresh one."""
    for given in (session.reference_seed, session.rotation_seed):
        if given is not None:
            return given
    return fresh_seed()


def _floor(session: VerifiedSession, task: Task) -> Optional[Floor]:
    if session.ceilings is None or session.trust == "off":
        return None
    return physics_floor(task.definition, task.axes, session.ceilings)
