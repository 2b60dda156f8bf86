"""How solutions are measured, and what they are compared with: the reference of a workload.

The seam between the benchmark loop and what checks and times is `MeasurementMethod`.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from flashinfer_bench._lazy import OldAttributes
from flashinfer_bench._providers import install_hint
from flashinfer_bench.bench import evaluation
from flashinfer_bench.bench.calls import Attempt, Measurement, measure
from flashinfer_bench.bench.correctness import as_tensors, find_problem, output_specs
from flashinfer_bench.bench.digests import definition_digest, inputs_crc32, trial_seed
from flashinfer_bench.bench.evaluators.base import Evaluator, Trial
from flashinfer_bench.bench.executors.base import CandidateError
from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.bench.stopping import TimingPlan
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.bench.transport.messages import clip
from flashinfer_bench.errors import CapabilityError, RunnerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
    from flashinfer_bench.bench.session import Session
    from flashinfer_bench.data import Definition, Evaluation, Solution, Workload

_logger = logging.getLogger(__name__)

_MAX_REASON_CHARACTERS = 4096
_TIMING_SHARE = 0.5  # of the time limit: a slow reference is timed less often, not given up
FEW_CALLS = TimingPlan.fixed(count=1, warmup=4, iterations=24)
"""Enough to learn what is normal, and nothing else."""


class ReferenceFailed(RunnerError):
    """The reference of a definition did not give what it declares; no solution is to blame."""


class BaselineHandle(str):
    """Names a baseline: definition and workload."""

    __slots__ = ()


@dataclass(frozen=True)
class Task(OldAttributes):
    """A workload of a definition, and how solutions of it are judged.

    Attributes
    ----------
    definition : Definition
        What is computed.
    workload : Workload
        On what.
    reference : Solution
        The definition's reference as a value-returning solution.
    evaluator : Evaluator
        Judges outputs.
    config : ResolvedEvalConfig
        Tolerances and numbers of calls.
    root : Path, optional
        Folder of the dataset, for tensors in files.
    """

    definition: Definition
    workload: Workload
    reference: Solution
    evaluator: Evaluator
    config: ResolvedEvalConfig
    root: Optional[Path]

    @property
    def axes(self) -> dict[str, int]:
        """Value of every variable axis."""
        return {axis: self.workload.axes[axis] for axis in self.definition.var_axes}


@dataclass(frozen=True)
class DeviceBaseline(Task):
    """Inputs and reference results of one workload, shared by all solutions on one device.

    Attributes
    ----------
    device : str
        Where the reference ran.
    seed : int
        Seed of the run; those of the trials follow from it.
    trials : tuple of Trial
        Input sets and what the reference made of them, on the CPU.
    measurement : Measurement, optional
        Latencies of the reference; None if it was not timed.
    """

    device: str
    seed: int
    trials: tuple[Trial, ...]
    measurement: Optional[Measurement] = None

    @property
    def handle(self) -> BaselineHandle:
        """Its name."""
        return BaselineHandle(f"{self.definition.name}/{self.workload.uuid}")

    @cached_property
    def definition_hash(self) -> str:
        """Digest of the definition."""
        return definition_digest(self.definition)

    @cached_property
    def inputs_crc32(self) -> str:
        """Digest of the inputs of all trials."""
        return inputs_crc32([trial.inputs for trial in self.trials])

    @property
    def latency_ms(self) -> float:
        """Latency of the reference in milliseconds; 0 if it was not timed."""
        return self.measurement.latency_ms if self.measurement is not None else 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, inputs and outputs."""
        values = [value for trial in self.trials for value in (*trial.inputs, *trial.expected)]
        return sum(getattr(value, "nbytes", 0) for value in values)


@contextmanager
def running_reference(session: Session, task: Task) -> Iterator[tuple[Attempt, TimingPlan]]:
    """Make the inputs of a task, and lend a process whose reference has been called on them.

    Yields
    ------
    attempt : Attempt
        The reference; its baseline has all but latencies.
    plan : TimingPlan
        How often it is to be timed.

    Raises
    ------
    DataError
        If the workload does not fit the definition, or a tensor file is missing or wrong.
    ReferenceFailed
        If it cannot be loaded, fails, or returns something else than its definition declares.
    CapabilityError
        If this machine lacks what it needs.
    RunInterrupted
        If the run ends meanwhile.
    """
    from flashinfer_bench.tensors import generate_inputs

    definition, workload, limit_s = task.definition, task.workload, session.config.timeout_seconds
    trials = []
    for index in range(task.config.num_trials):
        seed = trial_seed(session.seed, index)
        inputs = generate_inputs(definition, workload, seed=seed, root=task.root)
        trials.append(Trial(index, seed, inputs, []))
    baseline = DeviceBaseline(
        **vars(task),
        device=session.device,
        seed=session.seed,
        trials=tuple(trials),
    )
    try:
        with session.pool.worker(("reference", definition.name)) as worker:
            worker.load(definition, task.reference, timeout_s=limit_s)
            session.pool.settle()
            attempt = Attempt(session, task.reference, baseline, worker, Deadline(limit_s))
            for trial in trials:
                attempt.put(trial)
            fastest_s = float("inf")
            for number, trial in enumerate(trials):
                began = time.monotonic()
                outputs = attempt.candidate.call(number, timeout_s=attempt.left("call"))
                fastest_s = min(fastest_s, time.monotonic() - began)
                trials[number] = replace(trial, expected=checked_outputs(task, outputs))
            whole = replace(attempt, baseline=replace(baseline, trials=tuple(trials)))
            yield whole, _reference_plan(whole, fastest_s)
            worker.new_output()
            worker.reusable = whole.baseline.nbytes < evaluation.KEEP_BELOW_BYTES
    except CandidateError as error:
        if session.pool.interrupted:
            raise RunInterrupted("the run ended while the reference ran") from error
        if error.is_no_fault:
            reason = f"the reference of {definition.name!r} cannot be built here: {error.reason}"
            raise CapabilityError(reason) from error
        text = (
            f"the reference of definition {definition.name!r} failed ({error.stage}): "
            f"{error.message}"
        )
        if error.traceback:
            text += f"\n{error.traceback.rstrip()}"
        raise ReferenceFailed(clip(text, _MAX_REASON_CHARACTERS)) from error


def checked_outputs(task: Task, outputs: list[Any]) -> list[Any]:
    """Return what a reference returned as tensors, if it is what the definition declares."""
    problem = find_problem(outputs, output_specs(task.definition, task.axes), exact_dtype=False)
    if problem is not None:
        raise ReferenceFailed(
            f"the reference of definition {task.definition.name!r} does not return what it "
            f"declares: {problem.message}",
            hint="correct the definition's outputs or its reference",
        )
    return as_tensors(outputs)


def _reference_plan(attempt: Attempt, fastest_s: float) -> TimingPlan:
    """Return how often it is called: as a solution; with a rule that adapts, a fixed number."""
    wanted = FEW_CALLS
    if attempt.session.config.profile_baseline:
        wanted = attempt.plan
        if not wanted.rounds:
            wanted = TimingPlan.fixed(1, wanted.warmup, max(wanted.min_samples, FEW_CALLS.batch))
    limit_s = attempt.session.config.timeout_seconds
    budget_s = min(limit_s * _TIMING_SHARE, attempt.deadline.remaining * 0.9)
    if wanted.max_seconds is not None:
        budget_s = min(budget_s, wanted.max_seconds)
    plan = wanted
    if len(attempt.baseline.trials) > 1 and not attempt.baseline.evaluator.finds_patterns:
        plan = plan.shortened(fastest_s)  # of a single call it is not known whether it is slow
    # The number of calls has to be known: some of them become checks.
    plan = replace(plan, max_seconds=None).within(budget_s, fastest_s)
    if plan.max_samples != wanted.max_samples:
        _logger.info(
            "the reference is slow (%.3g s a call): timed %d times instead of %d",
            fastest_s,
            plan.max_samples,
            wanted.max_samples,
        )
    return plan


class MeasurementMethod(ABC):
    """Prepares workloads and evaluates solutions on them; one object for each device of a run.

    A plugin registers a subclass by a `flashinfer_bench.plugins.MeasurementSpec`.

    Parameters
    ----------
    device : str
        ``cpu`` or ``cuda:N``.
    """

    name: ClassVar[str]
    """That of the record. It goes into every trace, as ``provenance.extra["measurement"]``."""

    def __init__(self, device: str) -> None:
        self.device = device

    def running(self, config: BenchmarkConfig) -> AbstractContextManager[object]:
        """Return a context manager that is entered around a run on this device."""
        return nullcontext()

    @abstractmethod
    def prepare(self, session: Session, task: Task) -> DeviceBaseline:
        """Make the inputs of a workload and run the reference on them, in a separate process.

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
        """

    @abstractmethod
    def evaluate(
        self, session: Session, solution: Solution, baseline: DeviceBaseline
    ) -> Evaluation:
        """Evaluate a solution against what `prepare` returned.

        Raises
        ------
        NotEvaluated
            If there can be no verdict, because this machine lacks what its build needs.
        RunInterrupted
            If the run ends meanwhile.
        """

    def completed(self, evaluation: Evaluation, baseline: DeviceBaseline) -> Evaluation:
        """Return the evaluation of a workload's last solution, as it is to be recorded."""
        return evaluation


class BasicMeasurement(MeasurementMethod):
    """Checks a solution's outputs, then times it, and trusts the clock of its process.

    Its numbers are meaningful only for trusted solutions. Reports and apply say of
    them that they were not verified.
    """

    name = "basic"

    def running(self, config: BenchmarkConfig) -> AbstractContextManager[object]:
        """Refuse what only the verified measurement can do."""
        if config.lock_clocks_mhz is not None:
            raise CapabilityError(
                "lock_clocks_mhz: the basic measurement does not lock clocks",
                hint=f"leave it out, or {install_hint('fib-judge')}",
            )
        return super().running(config)

    def prepare(self, session: Session, task: Task) -> DeviceBaseline:
        """Compute expected outputs, and time the reference as solutions will be timed."""
        with running_reference(session, task) as (attempt, plan):
            timed = session.config.profile_baseline
            taken = measure(attempt, plan) if timed else None
        return replace(attempt.baseline, measurement=taken)

    def evaluate(
        self, session: Session, solution: Solution, baseline: DeviceBaseline
    ) -> Evaluation:
        """Build, check, time: the verdict is that of the checks."""

        def once(report: evaluation.Report) -> Evaluation:
            with evaluation.in_worker(report) as attempt:
                check, correctness, call_s = evaluation.check_all(attempt)
                plan = attempt.plan.shortened(call_s)
                taken = measure(attempt, plan) if check.passed else None
            if taken is None or correctness is None:
                return report.wrong(check, correctness)
            speeds = evaluation.speeds_of(taken, baseline.measurement)
            return report.passed(correctness, taken, speeds)

        return evaluation.evaluate_by(once, evaluation.Report(session, solution, baseline))
