"""Turning what happened into the record that goes into a trace."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench._version import __version__
from flashinfer_bench.bench.executors.base import (
    CandidateCrashed,
    CandidateError,
    CandidateFailed,
    CandidateTimeout,
)
from flashinfer_bench.bench.stopping import TimingPlan
from flashinfer_bench.data import (
    Correctness,
    Evaluation,
    EvaluationStatus,
    Performance,
    Provenance,
)
from flashinfer_bench.data.samples import rounded
from flashinfer_bench.plugins import default_catalog
from flashinfer_bench.stats.intervals import Interval, median_interval, ratio_interval
from flashinfer_bench.stats.samples import count_outliers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.bench.calls import Measurement
    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Check, Evaluator
    from flashinfer_bench.bench.reference import DeviceBaseline
    from flashinfer_bench.bench.session import Session
    from flashinfer_bench.data import Solution

CONFIDENCE = 0.95
MAX_LOG_CHARACTERS = 16_384
_TICKS = 5
"""Of fewer different samples than this share of all, the clock's steps are to be seen."""


@dataclass(frozen=True)
class Speeds:
    """How fast a solution is, in itself and against the reference.

    Attributes
    ----------
    performance : Performance
        What is recorded.
    reference : str
        When the reference was timed: ``beside`` the solution, ``before`` it, or ``not``.
    notes : tuple of str
        What a reader should know.
    """

    performance: Performance
    reference: str
    notes: tuple[str, ...] = ()


def speeds_of(taken: Measurement, alone: Optional[Measurement]) -> Speeds:
    """Return what the samples of a solution say, beside those of the reference, taken before.

    Parameters
    ----------
    taken, alone : Measurement
        Of the solution, and of the reference if it was timed.
    """
    if alone is None:
        return Speeds(performance_of(taken, None, None), "not")
    ratio = ratio_interval(alone.counted_ms, taken.counted_ms, confidence=CONFIDENCE)
    return Speeds(performance_of(taken, alone.counted_ms, ratio), "before")


def performance_of(
    taken: Measurement, reference_ms: Optional[Sequence[float]], ratio: Optional[Interval]
) -> Performance:
    """Return samples, their median with its interval, and the speed-up over the reference."""
    latency = taken.latency_ms
    reference = median(reference_ms) if reference_ms else 0.0
    counted = taken.counted_ms
    own = median_interval(
        counted, confidence=CONFIDENCE, resolution=resolution_of(taken.samples_ms)
    )
    speedup = reference / latency
    return Performance(
        latency_ms=latency,
        reference_latency_ms=reference,
        speedup_factor=speedup,
        samples_ms=list(taken.samples_ms),
        interval_ms=_around(latency, own),
        reference_samples_ms=list(reference_ms) if reference_ms else None,
        speedup_interval=_around(speedup, ratio) if ratio is not None else None,
        outliers=count_outliers(counted),
        dropped=list(taken.dropped) or None,
    )


def _around(value: float, interval: Interval) -> tuple[float, float]:
    """Return the ends of an interval, which hold `value`, in single precision like samples."""
    low, high = rounded((min(interval.low, value), max(interval.high, value)))
    return min(low, value), max(high, value)


def resolution_of(samples_ms: Sequence[float]) -> float:
    """Return the step of the clock in milliseconds, as far as it is to be seen in `samples_ms`.

    The smallest difference between samples, if there are so few different ones that a finer clock
    would have told more of them apart; otherwise 0.
    """
    steps = sorted(set(samples_ms))
    if len(steps) < 2 or len(steps) * _TICKS > len(samples_ms):
        return 0.0
    return min(after - before for before, after in pairwise(steps))


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


@dataclass
class Report:
    """Collects what belongs into an evaluation, and makes it.

    Attributes
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
    output : str
        What the solution printed.
    build_s : float, optional
        Seconds that building took.
    compile_s : float
        Seconds of that which were spent ahead of the evaluation.
    extra : dict
        What the measurement adds to `Provenance.extra`.
    builder : str
        Name of the builder, if it is known.
    """

    session: Session
    solution: Solution
    baseline: DeviceBaseline
    evaluator: Evaluator
    config: ResolvedEvalConfig
    output: str = ""
    build_s: Optional[float] = None
    compile_s: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)
    builder: str = ""
    _began: float = field(default_factory=time.monotonic)

    def failed(self, error: CandidateError) -> Evaluation:
        """Return the evaluation of a solution that did not come to an end."""
        message = f"{error.stage}: {error.message}"
        if isinstance(error, CandidateTimeout):
            message += f" (an evaluation may take {self.session.timeout_s:g} s)"
        if isinstance(error, CandidateFailed) and error.traceback:
            message += f"\n{error.traceback.rstrip()}"
        return self._evaluation(status_of(error), message, transient=is_transient(error))

    def not_judged(self, reason: str) -> Evaluation:
        """Return the evaluation of a solution about which nothing could be decided."""
        return self._evaluation(EvaluationStatus.RUNTIME_ERROR, reason, transient=True)

    def wrong(self, check: Check, correctness: Optional[Correctness]) -> Evaluation:
        """Return the evaluation of a solution whose outputs are not right."""
        return self._evaluation(check.status, check.message, correctness=correctness)

    def refused(self, reason: str) -> Evaluation:
        """Return the evaluation of a solution whose latency is not believed."""
        return self._evaluation(EvaluationStatus.RUNTIME_ERROR, reason)

    def passed(
        self,
        correctness: Correctness,
        measurement: Measurement,
        speeds: Speeds,
        *,
        notes: Sequence[str] = (),
        timing: Optional[Mapping[str, Any]] = None,
    ) -> Evaluation:
        """Return the evaluation of a solution that is correct and has been timed.

        Parameters
        ----------
        correctness : Correctness
            Its errors over all trials.
        measurement : Measurement
            Its samples.
        speeds : Speeds
            What follows from these.
        notes : sequence of str
            More lines for the log.
        timing : mapping, optional
            More that is to be recorded about how the samples were taken.
        """
        if (hook := self.session.hook) is not None:  # each text names its plugin
            vetoes = hook.fib_veto(run=self.session, measurement=measurement)
            if vetoes:
                return self.refused("\n".join(map(str, vetoes)))
        told = [*measurement.notes, *speeds.notes]
        if self.session.timer_note is not None:
            told.append(self.session.timer_note)
        return self._evaluation(
            EvaluationStatus.PASSED,
            "\n".join([*told, *notes]),
            correctness=correctness,
            performance=speeds.performance,
            timer=measurement.timer,
            timer_version=measurement.timer_version,
            timing={**self._timing(measurement, speeds), **(timing or {})},
        )

    def _timing(self, measurement: Measurement, speeds: Speeds) -> dict[str, Any]:
        """Return how the samples were taken."""
        plan = TimingPlan.of(self.config)
        timing: dict[str, Any] = {
            "ended_by": measurement.ending,
            "cache": self.config.cache,
            "reference": speeds.reference,
        }
        if plan.rule.values:
            timing["parameters"] = plan.rule.values
            timing["outcome"] = plan.rule.outcome(measurement.counted_ms)
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
        origin, config = self.session.origin, self.config
        return Evaluation(
            status=status,
            environment=self.session.environment,
            timestamp=datetime.now(timezone.utc).isoformat(),
            log=make_log(message, self.output),
            correctness=correctness,
            performance=performance,
            provenance=Provenance(
                seed=self.session.seed,
                evaluator=f"{self.evaluator.name} {self.evaluator.version}",
                harness_version=__version__,
                warmup_runs=config.warmup_runs,
                iterations=config.iterations,
                num_trials=config.num_trials,
                wall_s=round(time.monotonic() - self._began, 6),
                build_s=self.build_s,
                device=self.session.device,
                stop_rule=config.stop_rule,
                definition_hash=self.baseline.definition_hash or None,
                inputs_crc32=self.baseline.inputs_crc32 or None,
                extra=self._extra(),
                **(origin.fields(self.solution, self.builder) if origin is not None else {}),
                **provenance,
            ),
        )

    def _extra(self) -> dict[str, Any]:
        extra: dict[str, Any] = {
            "solution_hash": self.solution.hash(),
            "measurement": self.session.measurement,
        }
        if self.session.device == "cpu":
            from flashinfer_bench.tensors import cpu_threads

            extra["cpu_threads"] = cpu_threads()
        family = default_catalog().family_of(self.baseline.definition.op_type)
        if family is not None:
            extra["op_family"] = f"{family.name} of {family.origin}"
        if self.baseline.measurement is not None:
            extra["reference_calls"] = len(self.baseline.measurement.samples_ms)
        return {**extra, **self.extra}


def make_log(message: str, output: str) -> str:
    """Join the judge's message and what the solution printed, cut to 16,384 characters.

    The text comes from untrusted code: what UTF-8 cannot hold is replaced.
    """
    parts = [message.strip(), f"--- output ---\n{output.strip()}" if output.strip() else ""]
    text = "\n".join(part for part in parts if part)
    return shortened(text.encode("utf-8", "replace").decode("utf-8"), MAX_LOG_CHARACTERS)


def shortened(text: str, limit: int) -> str:
    """Return `text`, with its middle left out if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    mark = f"\n… {len(text) - limit} characters left out …\n"
    kept = max(0, limit - len(mark))
    head = kept * 2 // 3
    return text[:head] + mark + text[len(text) - (kept - head) :]
