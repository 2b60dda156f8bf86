"""Running the reference of a workload, and all that solutions are held against."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Optional

from fib_judge.decidability import tightened
from fib_judge.floor import physics_floor
from fib_judge.plain_calls import with_plain_calls
from fib_judge.records import VerifiedBaseline
from fib_judge.reference import run_reference
from flashinfer_bench.bench.digests import definition_digest, fresh_seed, inputs_crc32
from flashinfer_bench.bench.reference import BaselineHandle, make_inputs, reference_worker

if TYPE_CHECKING:
    from pathlib import Path

    from fib_judge.floor import Floor
    from fib_judge.records import VerifiedSession
    from fib_judge.reference import ReferenceRun
    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Evaluator
    from flashinfer_bench.data import Definition, Solution, Workload


def prepare_baseline(
    session: VerifiedSession,
    definition: Definition,
    workload: Workload,
    reference: Solution,
    config: ResolvedEvalConfig,
    root: Optional[Path],
    evaluator: Optional[Evaluator] = None,
) -> VerifiedBaseline:
    """Make the inputs of a workload and run the reference on them, in a process of its own.

    Parameters
    ----------
    session : Session
        The run.
    definition, workload
        What to compute on what.
    reference : Solution
        The definition's reference as a value-returning solution.
    config : ResolvedEvalConfig
        Numbers of trials and iterations.
    root : Path, optional
        Folder of the dataset, for tensors in files.
    evaluator : Evaluator, optional
        Who will judge outputs; without one tolerances stay as they are.

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
    run = _run(timed, definition, workload, reference, config, root)
    if run.normal is not None:
        run = replace(run, normal=with_plain_calls(session, run.normal))
    if evaluator is not None:
        config = tightened(definition, workload, run.trials, evaluator, config)
    return VerifiedBaseline(
        BaselineHandle.of(definition, workload),
        definition,
        workload,
        session.device,
        session.seed,
        config=config,
        reference=reference,
        floor=_floor(session, definition, workload),
        reference_seed=seed if run.checks else None,
        definition_hash=definition_digest(definition),
        inputs_crc32=inputs_crc32([trial.inputs for trial in run.trials]),
        **vars(run),
    )


def _reference_seed(session: VerifiedSession) -> int:
    """Return what the reference's timed calls follow from: the recorded seed, or a fresh one."""
    for given in (session.reference_seed, session.rotation_seed):
        if given is not None:
            return given
    return fresh_seed()


def _run(
    session: VerifiedSession,
    definition: Definition,
    workload: Workload,
    reference: Solution,
    config: ResolvedEvalConfig,
    root: Optional[Path],
) -> ReferenceRun:
    inputs = make_inputs(definition, workload, session.seed, config.num_trials, root)
    with reference_worker(session, definition, reference) as worker:
        return run_reference(session, worker, definition, workload, inputs, config)


def _floor(session: VerifiedSession, definition: Definition, workload: Workload) -> Optional[Floor]:
    if session.ceilings is None or session.trust == "off":
        return None
    axes = {axis: workload.axes[axis] for axis in definition.var_axes}
    return physics_floor(definition, axes, session.ceilings)
