"""Turning what happened into the record that goes into a trace."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench._version import __version__
from flashinfer_bench.bench.executors.base import (
    CandidateCrashed,
    CandidateError,
    CandidateFailed,
    CandidateTimeout,
)
from flashinfer_bench.bench.judge.digests import seed_commitment
from flashinfer_bench.bench.judge.speeds import speeds_of
from flashinfer_bench.bench.judge.text import shortened
from flashinfer_bench.bench.stopping.plan import TimingPlan
from flashinfer_bench.data import (
    Correctness,
    Evaluation,
    EvaluationStatus,
    Provenance,
)

if TYPE_CHECKING:
    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Check, Evaluator
    from flashinfer_bench.bench.judge.baseline import DeviceBaseline
    from flashinfer_bench.bench.judge.integrity import Violation
    from flashinfer_bench.bench.judge.session import Session
    from flashinfer_bench.bench.judge.speeds import Speeds
    from flashinfer_bench.bench.judge.timed import TimedRun
    from flashinfer_bench.data import Performance, Solution

MAX_LOG_CHARACTERS = 16_384


def status_of(error: CandidateError) -> EvaluationStatus:
    """Return the verdict on a solution whose process answered with `error`."""
    if isinstance(error, CandidateTimeout):
        return EvaluationStatus.TIMEOUT
    # Some languages compile when they are first called.
    compiling = isinstance(error, CandidateFailed) and error.about == "build"
    if error.stage in ("compile", "load") or compiling:
        return EvaluationStatus.COMPILE_ERROR
    return EvaluationStatus.RUNTIME_ERROR


def is_transient(error: CandidateError) -> bool:
    """Return whether another try may end differently: after time-outs, crashes, lack of memory."""
    outside_the_solution = error.stage in ("start", "inputs")
    return isinstance(error, (CandidateTimeout, CandidateCrashed)) or outside_the_solution


class Report:
    """Collects what belongs into an evaluation, and makes it.

    Parameters
    ----------
    session : Session
        The run.
    solution : Solution
        What is evaluated.
    baseline : DeviceBaseline
        What it is held against.
    evaluator : Evaluator
        Who judges its outputs.
    config : ResolvedEvalConfig
        The settings.

    Attributes
    ----------
    output : str
        What the solution printed.
    build_s : float, optional
        Seconds that building took.
    compile_s : float
        Seconds of that which were spent ahead of the evaluation.
    rotation_seed : int, optional
        What the inputs of timed calls followed from.
    builder : str
        Name of the builder, if it is known.
    """

    def __init__(
        self,
        session: Session,
        solution: Solution,
        baseline: DeviceBaseline,
        evaluator: Evaluator,
        config: ResolvedEvalConfig,
    ) -> None:
        self._session = session
        self._solution = solution
        self._baseline = baseline
        self._evaluator = evaluator
        self._config = config
        self._began = time.monotonic()
        self.output = ""
        self.build_s: Optional[float] = None
        self.compile_s = 0.0
        self.rotation_seed: Optional[int] = None
        self.builder = ""

    def failed(self, error: CandidateError) -> Evaluation:
        """Return the evaluation of a solution that did not come to an end."""
        message = f"{error.stage}: {error.message}"
        if isinstance(error, CandidateTimeout):
            message += f" (an evaluation may take {self._session.timeout_s:g} s)"
        if isinstance(error, CandidateFailed) and error.traceback:
            message += f"\n{error.traceback.rstrip()}"
        return self._evaluation(status_of(error), message, transient=is_transient(error))

    def not_judged(self, reason: str) -> Evaluation:
        """Return the evaluation of a solution about which nothing could be decided."""
        return self._evaluation(EvaluationStatus.RUNTIME_ERROR, reason, transient=True)

    def wrong(self, check: Check, correctness: Optional[Correctness]) -> Evaluation:
        """Return the evaluation of a solution whose outputs are not right."""
        return self._evaluation(check.status, check.message, correctness=correctness)

    def violated(self, violation: Violation, earlier: Optional[Violation] = None) -> Evaluation:
        """Return the evaluation of a solution whose latency is not believed.

        Parameters
        ----------
        violation : Violation
            Why.
        earlier : Violation, optional
            What the first attempt came to, if there were more.
        """
        message = str(violation)
        if earlier is not None:
            message += f"\n(in a first attempt: {earlier.rule}: {earlier.message})"
        return self._evaluation(EvaluationStatus.RUNTIME_ERROR, message)

    def passed(
        self, correctness: Correctness, run: TimedRun, earlier: Optional[Violation] = None
    ) -> Evaluation:
        """Return the evaluation of a solution that is correct and has been timed."""
        speeds = speeds_of(run, self._baseline)
        notes = [*run.measurement.notes, *speeds.notes]
        if self._session.timer_note is not None:
            notes.append(self._session.timer_note)
        if earlier is not None:
            notes.append(f"measured twice; at first: {earlier.rule}: {earlier.message}")
        return self._evaluation(
            EvaluationStatus.PASSED,
            "\n".join(notes),
            correctness=correctness,
            performance=speeds.performance,
            timer=run.measurement.timer,
            timer_version=run.measurement.timer_version,
            timing=self._timing(run, speeds),
        )

    def _timing(self, run: TimedRun, speeds: Speeds) -> dict[str, Any]:
        """Return how the samples were taken."""
        plan = TimingPlan.of(self._config)
        timing: dict[str, Any] = {
            "ended_by": run.measurement.ending,
            "cache": self._config.cache,
            "reference": speeds.reference,
        }
        if plan.rule.values:
            timing["parameters"] = plan.rule.values
            timing["outcome"] = plan.rule.outcome(run.measurement.counted_ms)
        if self._session.clock_lock is not None:
            timing["clock_lock"] = self._session.clock_lock.facts()
        if run.watched:
            timing["watched"] = run.watched
        return timing

    def _evaluation(
        self,
        status: EvaluationStatus,
        message: str,
        *,
        correctness: Optional[Correctness] = None,
        performance: Optional[Performance] = None,
        **provenance: Any,
    ) -> Evaluation:
        return Evaluation(
            status=status,
            environment=self._session.environment,
            timestamp=datetime.now(timezone.utc).isoformat(),
            log=make_log(message, self.output),
            correctness=correctness,
            performance=performance,
            provenance=self._provenance(**provenance),
        )

    def _provenance(self, **details: Any) -> Provenance:
        return Provenance(
            seed=self._session.seed,
            evaluator=f"{self._evaluator.name} {self._evaluator.version}",
            harness_version=__version__,
            warmup_runs=self._config.warmup_runs,
            iterations=self._config.iterations,
            num_trials=self._config.num_trials,
            wall_s=round(time.monotonic() - self._began, 6),
            build_s=self.build_s,
            device=self._session.device,
            stop_rule=self._config.stop_rule,
            definition_hash=self._baseline.definition_hash or None,
            inputs_crc32=self._baseline.inputs_crc32 or None,
            extra=self._extra(),
            **self._origin(),
            **details,
        )

    def _origin(self) -> dict[str, Any]:
        origin = self._session.origin
        if origin is None:
            return {}
        return origin.fields(self._baseline.definition, self._solution, self.builder)

    def _extra(self) -> dict[str, Any]:
        extra: dict[str, Any] = {"solution_hash": self._solution.hash()}
        if self._session.device == "cpu":
            from flashinfer_bench.tensors import cpu_threads

            extra["cpu_threads"] = cpu_threads()
        reference = self._baseline.measurement
        if reference is not None:
            extra["reference_calls"] = len(reference.samples_ms)
        extra["trust"] = self._session.trust
        if self.rotation_seed is not None:
            extra["rotation_seed"] = self.rotation_seed
            extra["timed_checks"] = len(self._baseline.checks)
        if self._baseline.reference_seed is not None:
            # The seed itself has to wait: see `with_reference_seed`.
            extra["checks_id"] = seed_commitment(self._baseline.reference_seed)
        return extra


def with_note(correctness: Optional[Correctness], note: dict[str, Any]) -> Optional[Correctness]:
    """Return `correctness` with what was done to make sure that it is what was timed."""
    if correctness is None:
        return None
    extra = {**(correctness.extra or {}), "integrity": note}
    return correctness.model_copy(update={"extra": extra})


def with_reference_seed(evaluation: Evaluation, baseline: DeviceBaseline) -> Evaluation:
    """Return `evaluation` with the seed of the checks that all solutions of a workload share.

    Only the record of the last one may tell it: a solution that knew it beforehand could give right
    outputs to the checks alone. The other records name it by ``checks_id``.

    Parameters
    ----------
    evaluation : Evaluation
        Of the last solution.
    baseline : DeviceBaseline
        What all of them were held against.
    """
    provenance = evaluation.provenance
    if provenance is None or baseline.reference_seed is None:
        return evaluation
    extra = {**provenance.extra, "reference_seed": baseline.reference_seed}
    told = provenance.model_copy(update={"extra": extra})
    return evaluation.model_copy(update={"provenance": told})


def make_log(message: str, output: str) -> str:
    """Join the judge's message and what the solution printed, cut to 16,384 characters.

    The text comes from untrusted code: what UTF-8 cannot hold is replaced.
    """
    parts = [message.strip(), f"--- output ---\n{output.strip()}" if output.strip() else ""]
    text = "\n".join(part for part in parts if part)
    return shortened(text.encode("utf-8", "replace").decode("utf-8"), MAX_LOG_CHARACTERS)
