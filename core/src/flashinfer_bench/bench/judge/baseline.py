"""What solutions of a workload are held against: inputs, the reference's outputs and latency."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.evaluators.base import Trial
from flashinfer_bench.bench.executors.base import CandidateError, CandidateFailed
from flashinfer_bench.bench.judge.deadline import Deadline
from flashinfer_bench.bench.judge.measure import Rounds, measure, time_left
from flashinfer_bench.bench.judge.seeds import trial_seed
from flashinfer_bench.bench.judge.structure import as_tensors, find_problem, output_specs
from flashinfer_bench.bench.judge.text import shortened
from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.errors import CapabilityError, RunnerError

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.judge.measure import Measurement
    from flashinfer_bench.bench.judge.session import Session
    from flashinfer_bench.bench.pool import Worker
    from flashinfer_bench.data import Definition, Solution, Workload

logger = logging.getLogger(__name__)

_MAX_REASON_CHARACTERS = 4096
_TIMING_SHARE = 0.5  # of the time limit: a slow reference is timed less often, not given up


class ReferenceFailed(RunnerError):
    """The reference of a definition did not give what it declares; no solution is to blame."""


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
    """

    handle: BaselineHandle
    definition: Definition
    workload: Workload
    device: str
    seed: int
    trials: tuple[Trial, ...]
    measurement: Optional[Measurement] = None

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

    Raises
    ------
    DataError
        If the workload does not fit the definition, or a tensor file is missing or wrong.
    ReferenceFailed
        If the reference fails, or returns something else than its definition declares.
    CapabilityError
        If it cannot be built here, by no fault of its own.
    """
    inputs = [
        _make_inputs(definition, workload, session.seed, index, root)
        for index in range(config.num_trials)
    ]
    try:
        with session.pool.worker(("reference", definition.name)) as worker:
            worker.load(definition, reference, timeout_s=session.timeout_s)
            session.pool.settle()
            return _run_reference(session, worker, definition, workload, inputs, config)
    except CandidateError as error:
        if session.pool.interrupted:
            raise RunInterrupted("the run ended while the reference ran") from error
        if isinstance(error, CandidateFailed) and error.is_no_fault:
            reason = f"the reference of {definition.name!r} cannot be built here: {error.reason}"
            raise CapabilityError(reason) from error
        raise ReferenceFailed(_explain(definition, error)) from error


def _make_inputs(
    definition: Definition, workload: Workload, seed: int, trial: int, root: Optional[Path]
) -> list[Any]:
    from flashinfer_bench.tensors import generate_inputs

    return generate_inputs(definition, workload, seed=trial_seed(seed, trial), root=root)


def _run_reference(
    session: Session,
    worker: Worker,
    definition: Definition,
    workload: Workload,
    inputs: list[list[Any]],
    config: ResolvedEvalConfig,
) -> DeviceBaseline:
    deadline, candidate = Deadline(session.timeout_s), worker.candidate
    axes = {axis: workload.axes[axis] for axis in definition.var_axes}
    trials, fastest_s = [], float("inf")
    for index, values in enumerate(inputs):
        left = time_left(deadline, candidate, "inputs")
        candidate.put_inputs(index, values, axes, timeout_s=left)
        began = time.monotonic()
        outputs = candidate.call(index, timeout_s=time_left(deadline, candidate, "call"))
        fastest_s = min(fastest_s, time.monotonic() - began)
        expected = _checked(definition, axes, outputs)
        trials.append(Trial(index, trial_seed(session.seed, index), values, expected))
    measurement = None
    if session.profile_baseline:
        measurement = _time_reference(session, worker, config, deadline, fastest_s)
    worker.new_output()
    handle = BaselineHandle.of(definition, workload)
    return DeviceBaseline(
        handle, definition, workload, session.device, session.seed, tuple(trials), measurement
    )


def _checked(definition: Definition, axes: dict[str, int], outputs: list[Any]) -> list[Any]:
    problem = find_problem(outputs, output_specs(definition, axes), exact_dtype=False)
    if problem is not None:
        raise ReferenceFailed(
            f"the reference of definition {definition.name!r} does not return what it declares: "
            f"{problem.message}",
            hint="correct the definition's outputs or its reference",
        )
    return as_tensors(outputs)


def _time_reference(
    session: Session,
    worker: Worker,
    config: ResolvedEvalConfig,
    deadline: Deadline,
    call_s: float,
) -> Measurement:
    wanted = Rounds(config.num_trials, config.warmup_runs, config.iterations)
    budget_s = min(session.timeout_s * _TIMING_SHARE, deadline.remaining() * 0.9)
    rounds = wanted.within(budget_s, call_s)
    if rounds != wanted:
        logger.info(
            "the reference is slow (%.3g s a call): timed %d times a round instead of %d",
            call_s,
            rounds.iterations,
            wanted.iterations,
        )
    return measure(session, worker.candidate, config.num_trials, rounds, deadline)


def _explain(definition: Definition, error: CandidateError) -> str:
    text = (
        f"the reference of definition {definition.name!r} failed ({error.stage}): {error.message}"
    )
    if isinstance(error, CandidateFailed) and error.traceback:
        text += f"\n{error.traceback.rstrip()}"
    return shortened(text, _MAX_REASON_CHARACTERS)
