"""What solutions of a workload are held against: inputs, the reference's outputs and latency."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.executors.base import CandidateError, CandidateFailed
from flashinfer_bench.bench.judge.decidability import tightened
from flashinfer_bench.bench.judge.digests import definition_digest, inputs_crc32
from flashinfer_bench.bench.judge.floor import physics_floor
from flashinfer_bench.bench.judge.plain_calls import with_plain_calls
from flashinfer_bench.bench.judge.reference import ReferenceFailed, run_reference
from flashinfer_bench.bench.judge.seeds import fresh_seed, trial_seed
from flashinfer_bench.bench.judge.text import shortened
from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Evaluator, Trial
    from flashinfer_bench.bench.judge.checks import TimedCheck
    from flashinfer_bench.bench.judge.floor import Floor
    from flashinfer_bench.bench.judge.measure import Measurement
    from flashinfer_bench.bench.judge.normals import Normals
    from flashinfer_bench.bench.judge.reference import ReferenceRun
    from flashinfer_bench.bench.judge.session import Session
    from flashinfer_bench.data import Definition, Solution, Workload
    from flashinfer_bench.tensors.vary import Freedom

__all__ = ["BaselineHandle", "DeviceBaseline", "ReferenceFailed", "prepare_baseline"]

_MAX_REASON_CHARACTERS = 4096


class BaselineHandle(str):
    """Names a baseline: definition and workload."""

    __slots__ = ()

    @classmethod
    def of(cls, definition: Definition, workload: Workload) -> BaselineHandle:
        """Return the handle for a workload of a definition."""
        return cls(f"{definition.name}/{workload.uuid}")


@dataclass(frozen=True)
class DeviceBaseline:
    """Inputs and reference results of one workload, shared by all solutions on one device.

    Attributes
    ----------
    handle : BaselineHandle
        Its name.
    definition : Definition
        What is computed.
    workload : Workload
        On what.
    device : str
        Where the reference ran.
    seed : int
        Seed of the run; those of the trials follow from it.
    trials : tuple of Trial
        Input sets and what the reference made of them, on the CPU.
    measurement : Measurement, optional
        Latencies of the reference; None if it was not timed.
    config : ResolvedEvalConfig, optional
        The settings, with tolerances that solutions which compute nothing do not satisfy.
    reference : Solution, optional
        What was run.
    freedoms : tuple of Freedom
        For each input how it may vary from one timed call to the next.
    checks : tuple of TimedCheck
        Timed calls with the outputs that they must give; empty if candidates are trusted.
    normal : Normals, optional
        How long the reference's calls took beyond their latency; None if candidates are trusted.
    floor : Floor, optional
        What no latency can be below; None where the device has not been calibrated.
    reference_seed : int, optional
        What the inputs of the reference's timed calls, and so those of `checks`, follow from; a
        secret while a solution may still be evaluated against them. None if there are no checks.
    definition_hash, inputs_crc32 : str
        Digests of the definition and of the inputs of all trials.
    """

    handle: BaselineHandle
    definition: Definition
    workload: Workload
    device: str
    seed: int
    trials: tuple[Trial, ...]
    measurement: Optional[Measurement] = None
    config: Optional[ResolvedEvalConfig] = None
    reference: Optional[Solution] = None
    freedoms: tuple[Freedom, ...] = ()
    checks: tuple[TimedCheck, ...] = ()
    normal: Optional[Normals] = None
    floor: Optional[Floor] = None
    reference_seed: Optional[int] = None
    definition_hash: str = ""
    inputs_crc32: str = ""

    @property
    def latency_ms(self) -> float:
        """Latency of the reference in milliseconds; 0 if it was not timed."""
        return self.measurement.latency_ms if self.measurement is not None else 0.0

    @property
    def axes(self) -> dict[str, int]:
        """Value of every variable axis."""
        return {axis: self.workload.axes[axis] for axis in self.definition.var_axes}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, inputs and outputs."""
        values = [value for trial in self.trials for value in (*trial.inputs, *trial.expected)]
        return sum(getattr(value, "nbytes", 0) for value in values)


def prepare_baseline(
    session: Session,
    definition: Definition,
    workload: Workload,
    reference: Solution,
    config: ResolvedEvalConfig,
    root: Optional[Path],
    evaluator: Optional[Evaluator] = None,
) -> DeviceBaseline:
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
    return DeviceBaseline(
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


def _reference_seed(session: Session) -> int:
    """Return what the reference's timed calls follow from: the recorded seed, or a fresh one."""
    for given in (session.reference_seed, session.rotation_seed):
        if given is not None:
            return given
    return fresh_seed()


def _run(
    session: Session,
    definition: Definition,
    workload: Workload,
    reference: Solution,
    config: ResolvedEvalConfig,
    root: Optional[Path],
) -> ReferenceRun:
    inputs = [
        _make_inputs(definition, workload, session.seed, index, root)
        for index in range(config.num_trials)
    ]
    try:
        with session.pool.worker(("reference", definition.name)) as worker:
            worker.load(definition, reference, timeout_s=session.timeout_s)
            session.pool.settle()
            run = run_reference(session, worker, definition, workload, inputs, config)
            worker.new_output()
            return run
    except CandidateError as error:
        if session.pool.interrupted:
            raise RunInterrupted("the run ended while the reference ran") from error
        if isinstance(error, CandidateFailed) and error.is_no_fault:
            reason = f"the reference of {definition.name!r} cannot be built here: {error.reason}"
            raise CapabilityError(reason) from error
        raise ReferenceFailed(_explain(definition, error)) from error


def _floor(session: Session, definition: Definition, workload: Workload) -> Optional[Floor]:
    if session.ceilings is None or session.trust == "off":
        return None
    axes = {axis: workload.axes[axis] for axis in definition.var_axes}
    return physics_floor(definition, axes, session.ceilings)


def _make_inputs(
    definition: Definition, workload: Workload, seed: int, trial: int, root: Optional[Path]
) -> list[Any]:
    from flashinfer_bench.tensors import generate_inputs

    return generate_inputs(definition, workload, seed=trial_seed(seed, trial), root=root)


def _explain(definition: Definition, error: CandidateError) -> str:
    text = (
        f"the reference of definition {definition.name!r} failed ({error.stage}): {error.message}"
    )
    if isinstance(error, CandidateFailed) and error.traceback:
        text += f"\n{error.traceback.rstrip()}"
    return shortened(text, _MAX_REASON_CHARACTERS)
