"""What solutions are held against: inputs, what the reference makes of them, and its latency."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.calls import Deadline, time_left
from flashinfer_bench.bench.correctness import as_tensors, find_problem, output_specs
from flashinfer_bench.bench.digests import trial_seed
from flashinfer_bench.bench.evaluation import shortened
from flashinfer_bench.bench.evaluators.base import Trial
from flashinfer_bench.bench.executors.base import CandidateError, CandidateFailed
from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.bench.stopping import TimingPlan
from flashinfer_bench.errors import CapabilityError, RunnerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from flashinfer_bench.bench.calls import Measurement
    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.pool import Worker
    from flashinfer_bench.bench.session import Session
    from flashinfer_bench.data import Definition, Solution, Workload
    from flashinfer_bench.tensors.vary import Freedom

logger = logging.getLogger(__name__)

_MAX_REASON_CHARACTERS = 4096
_TIMING_SHARE = 0.5  # of the time limit: a slow reference is timed less often, not given up
FEW_CALLS = TimingPlan.fixed(count=1, warmup=4, iterations=24)
"""Enough to learn what is normal, and nothing else."""


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
    config : ResolvedEvalConfig, optional
        The settings, with tolerances that solutions which compute nothing do not satisfy.
    reference : Solution, optional
        What was run.
    freedoms : tuple of Freedom
        For each input how it may vary from one timed call to the next.
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
    fastest_s: float = float("inf")

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


@contextmanager
def reference_worker(
    session: Session, definition: Definition, reference: Solution
) -> Iterator[Worker]:
    """Lend a process in which the reference is loaded, for the body of a ``with`` statement.

    Raises
    ------
    ReferenceFailed
        If it cannot be loaded, or fails in the body.
    CapabilityError
        If this machine lacks what it needs.
    RunInterrupted
        If the run ends meanwhile.
    """
    try:
        with session.pool.worker(("reference", definition.name)) as worker:
            worker.load(definition, reference, timeout_s=session.timeout_s)
            session.pool.settle()
            yield worker
            worker.new_output()
    except CandidateError as error:
        if session.pool.interrupted:
            raise RunInterrupted("the run ended while the reference ran") from error
        if isinstance(error, CandidateFailed) and error.is_no_fault:
            reason = f"the reference of {definition.name!r} cannot be built here: {error.reason}"
            raise CapabilityError(reason) from error
        text = (
            f"the reference of definition {definition.name!r} failed ({error.stage}): "
            f"{error.message}"
        )
        if isinstance(error, CandidateFailed) and error.traceback:
            text += f"\n{error.traceback.rstrip()}"
        raise ReferenceFailed(shortened(text, _MAX_REASON_CHARACTERS)) from error


def make_inputs(
    definition: Definition, workload: Workload, seed: int, trials: int, root: Optional[Path]
) -> list[list[Any]]:
    """Return the input sets of a workload, one for each trial."""
    from flashinfer_bench.tensors import generate_inputs

    return [
        generate_inputs(definition, workload, seed=trial_seed(seed, index), root=root)
        for index in range(trials)
    ]


def freedoms_of(
    definition: Definition, workload: Workload, inputs: Sequence[list[Any]]
) -> tuple[Freedom, ...]:
    """Return how each input may vary from one timed call to the next."""
    from flashinfer_bench.tensors.vary import freedoms

    return freedoms(definition, workload, inputs[0])


def run_trial(problem: ReferenceProblem, index: int) -> Trial:
    """Call the reference on one input set."""
    began = time.monotonic()
    outputs = problem.worker.candidate.call(index, timeout_s=problem.left("call"))
    problem.fastest_s = min(problem.fastest_s, time.monotonic() - began)
    seed = trial_seed(problem.session.seed, index)
    return Trial(index, seed, problem.inputs[index], problem.checked(outputs))


def reference_plan(problem: ReferenceProblem, config: ResolvedEvalConfig) -> TimingPlan:
    """Return how often it is called: as a solution; with a rule that adapts, a fixed number."""
    wanted = FEW_CALLS
    if problem.session.profile_baseline:
        wanted = TimingPlan.of(config)
        if not wanted.rounds:
            wanted = TimingPlan.fixed(1, wanted.warmup, max(wanted.min_samples, FEW_CALLS.batch))
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
