"""One solution on one workload: built, checked, timed, and the record that goes into a trace."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from flashinfer_bench._version import __version__
from flashinfer_bench.bench.calls import Attempt, Measurement
from flashinfer_bench.bench.evaluators.default import LOOSE
from flashinfer_bench.bench.executors import base
from flashinfer_bench.bench.pool import RunInterrupted, solution_key
from flashinfer_bench.bench.stopping import TimingPlan
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.bench.transport.messages import clip as clip
from flashinfer_bench.data import Evaluation, EvaluationStatus, Performance, Provenance
from flashinfer_bench.data.trace import rounded
from flashinfer_bench.errors import RunnerError
from flashinfer_bench.plugins import default_catalog
from flashinfer_bench.stats.intervals import Interval, median_interval, over_groups, ratio_interval
from flashinfer_bench.stats.samples import count_outliers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flashinfer_bench.bench.evaluators.base import Check, Evaluator, Trial
    from flashinfer_bench.bench.measurement import DeviceBaseline
    from flashinfer_bench.bench.session import Session
    from flashinfer_bench.data import Correctness, Solution

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")
KEEP_BELOW_BYTES = 1 << 30  # a candidate that holds more than this is not kept for later
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


def speeds_of(taken: Measurement, alone: Optional[Measurement], *, drift: float = 1.0) -> Speeds:
    """Return what the samples of a solution say, beside those of the reference, taken before.

    Parameters
    ----------
    taken, alone : Measurement
        Of the solution, and of the reference if it was timed.
    drift : float
        As of `performance_of`.
    """
    if alone is None:
        return Speeds(performance_of(taken, None, None), "not")
    ratio = ratio_interval(alone.counted_ms, taken.counted_ms, confidence=CONFIDENCE)
    return Speeds(performance_of(taken, alone.counted_ms, ratio, drift=drift), "before")


def performance_of(
    taken: Measurement,
    reference_ms: Optional[Sequence[float]],
    ratio: Optional[Interval],
    *,
    drift: float = 1.0,
) -> Performance:
    """Return samples, their median with its interval, and the speed-up over the reference.

    `drift` is how much slower the machine was than at another time, as far as that is known: the
    interval reaches to what the latency would have been then.
    """
    latency = taken.latency_ms
    reference = median(reference_ms) if reference_ms else 0.0
    counted = taken.counted_ms
    own = median_interval(
        counted, confidence=CONFIDENCE, resolution=resolution_of(taken.samples_ms)
    )
    if len(taken.by_process_ms) > 1:
        own = over_groups(own, taken.by_process_ms)
    if taken.least_ms is not None:
        own = replace(own, low=min(own.low, taken.least_ms))
    then = own.estimate / drift
    own = replace(own, low=min(own.low, then), high=max(own.high, then))
    speedup = reference / latency
    return Performance(
        latency_ms=latency,
        reference_latency_ms=reference,
        speedup_factor=speedup,
        samples_ms=list(taken.samples_ms),
        interval_ms=_around(latency, replace(own, high=own.high + taken.unseen_ms)),
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


def status_of(error: base.CandidateError) -> EvaluationStatus:
    """Return the verdict on a solution whose process answered with `error`."""
    if isinstance(error, base.CandidateTimeout):
        return EvaluationStatus.TIMEOUT
    # Some languages compile when they are first called.
    if error.stage in ("compile", "load") or error.about == "build":
        return EvaluationStatus.COMPILE_ERROR
    return EvaluationStatus.RUNTIME_ERROR


def is_transient(error: base.CandidateError) -> bool:
    """Return whether another try may end differently: after time-outs, crashes, lack of memory."""
    outside_the_solution = error.stage in ("start", "inputs")
    return isinstance(error, (base.CandidateTimeout, base.CandidateCrashed)) or outside_the_solution


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
    output: str = ""
    build_s: Optional[float] = None
    compile_s: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)
    builder: str = ""
    _began: float = field(default_factory=time.monotonic)

    def failed(self, error: base.CandidateError) -> Evaluation:
        """Return the evaluation of a solution that did not come to an end."""
        message = f"{error.stage}: {error.message}"
        if isinstance(error, base.CandidateTimeout):
            message += f" (an evaluation may take {self.session.config.timeout_seconds:g} s)"
        if error.traceback:
            message += f"\n{error.traceback.rstrip()}"
        return self._evaluation(status_of(error), message, transient=is_transient(error))

    def wrong(self, check: Check, correctness: Optional[Correctness]) -> Evaluation:
        """Return the evaluation of a solution whose outputs are not right."""
        return self._evaluation(check.status, check.message, correctness=correctness)

    def refused(self, reason: str, *, transient: bool = False) -> Evaluation:
        """Return the evaluation of a solution that is rejected, or could not be judged."""
        return self._evaluation(EvaluationStatus.RUNTIME_ERROR, reason, transient=transient)

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
        session = self.session
        vetoes = session.catalog.hook.fib_veto(run=session, measurement=measurement)
        if vetoes:  # each text names its plugin
            return self.refused("\n".join(map(str, vetoes)))
        told = [*measurement.notes, *speeds.notes, *session.timer_notes]
        config = self.baseline.config
        rule = TimingPlan.of(config).rule
        taken: dict[str, Any] = {
            "ended_by": measurement.ending,
            "cache": config.cache,
            "reference": speeds.reference,
        }
        if rule.values:
            taken["parameters"] = rule.values
            taken["outcome"] = rule.outcome(measurement.counted_ms)
        return self._evaluation(
            EvaluationStatus.PASSED,
            "\n".join([*told, *notes]),
            correctness=_marked(correctness),
            performance=speeds.performance,
            timer=measurement.timer,
            timer_version=measurement.timer_version,
            timing={**taken, **(timing or {})},
            transient=measurement.unseen_ms > 0.0,
        )

    def _evaluation(
        self,
        status: EvaluationStatus,
        message: str,
        *,
        correctness: Optional[Correctness] = None,
        performance: Optional[Performance] = None,
        **provenance: Any,
    ) -> Evaluation:
        session, baseline = self.session, self.baseline
        config, evaluator = baseline.config, baseline.evaluator
        extra: dict[str, Any] = {
            "solution_hash": self.solution.hash(),
            "measurement": session.measurement,
            "tolerance": config.tolerance,
        }
        if session.device == "cpu":
            from flashinfer_bench.tensors import cpu_threads

            extra["cpu_threads"] = cpu_threads()
        family = default_catalog().family_of(baseline.definition.op_type)
        if family is not None:
            extra["op_family"] = f"{family.name} of {family.origin}"
        if baseline.measurement is not None:
            extra["reference_calls"] = len(baseline.measurement.samples_ms)
        own = Provenance(
            seed=session.seed,
            evaluator=f"{evaluator.name} {evaluator.version}",
            harness_version=__version__,
            warmup_runs=config.warmup_runs,
            iterations=config.iterations,
            num_trials=config.num_trials,
            wall_s=round(time.monotonic() - self._began, 6),
            build_s=self.build_s,
            device=session.device,
            stop_rule=config.stop_rule,
            definition_hash=baseline.definition_hash,
            inputs_crc32=baseline.inputs_crc32,
            extra={**extra, **self.extra},
            **provenance,
        )
        return Evaluation(
            status=status,
            environment=session.environment,
            timestamp=datetime.now(timezone.utc).isoformat(),
            log=make_log(message, self.output),
            correctness=correctness,
            performance=performance,
            provenance=self._with_told(own),
        )

    def _with_told(self, own: Provenance) -> Provenance:
        """Return `own` with what plugins add to it."""
        known = {name: getattr(own, name) for name in own.model_fields_set}
        for told in self.session.catalog.hook.fib_provenance(
            run=self.session, baseline=self.baseline, solution=self.solution, builder=self.builder
        ):
            try:
                own = Provenance(**{**dict(own), **told, **known})
            except (ValueError, TypeError) as error:  # names no field of the right type
                logger.warning("a plugin's notes on an evaluation were not recorded: %s", error)
        return own


def _marked(correctness: Correctness) -> Correctness:
    """Return `correctness` with a note for reports if it would not have passed by dtype."""
    extra = correctness.extra or {}
    if LOOSE not in extra:
        return correctness
    note = extra.get("integrity")
    noted = {**(note if isinstance(note, dict) else {}), LOOSE: True}
    return correctness.model_copy(update={"extra": {**extra, "integrity": noted}})


def make_log(message: str, output: str) -> str:
    """Join the judge's message and what the solution printed, cut to 16,384 characters.

    The text comes from untrusted code: what UTF-8 cannot hold is replaced.
    """
    parts = [message.strip(), f"--- output ---\n{output.strip()}" if output.strip() else ""]
    text = "\n".join(part for part in parts if part)
    return clip(text, MAX_LOG_CHARACTERS)


class NotEvaluated(RunnerError):
    """A solution has no status, because this machine lacks what its build needs."""


class EvaluatorFailed(RunnerError):
    """An evaluator raised; whether the outputs are right is not known."""


def build(attempt: Attempt) -> float:
    """Build the solution; return the seconds it took, 0 if an earlier evaluation did it."""
    worker, solution = attempt.worker, attempt.solution
    if worker.loaded is not None:
        return 0.0
    left = attempt.left("load")
    try:
        return worker.load(attempt.baseline.definition, solution, timeout_s=left).seconds
    except base.CandidateFailed as error:
        if error.about != "storage":  # there may be room again for the next workload
            attempt.session.failed_builds[solution_key(solution)] = error
        raise


def check_all(attempt: Attempt) -> tuple[Check, Optional[Correctness], float]:
    """Call the solution on one input set after the other, until one comes out wrong.

    Returns
    -------
    check : Check
        Of the last trial: the only one that can have failed.
    correctness : Correctness, optional
        Over all trials.
    call_s : float
        Seconds that the fastest call took, with the transfer of its outputs; 0 if there was only
        one, as the first call may compile something.
    """
    checks: list[Check] = []
    took_s: list[float] = []
    for trial in attempt.baseline.trials:
        checks.append(_check(attempt, trial, took_s))
        if not checks[-1].passed:
            break
    if checks[-1].correctness is None:
        return checks[-1], None, 0.0
    evaluator = attempt.baseline.evaluator
    call_s = min(took_s) if len(took_s) > 1 else 0.0
    return checks[-1], ask(evaluator, evaluator.combine, checks), call_s


def _check(attempt: Attempt, trial: Trial, took_s: list[float]) -> Check:
    baseline = attempt.baseline
    evaluator, config = baseline.evaluator, baseline.config
    count = ask(evaluator, evaluator.calls_per_trial, config)
    attempt.put(trial)
    calls: list[list[Any]] = []
    try:
        for _ in range(count):
            began = time.monotonic()
            calls.append(attempt.candidate.call(trial.index, timeout_s=attempt.left("call")))
            took_s.append(time.monotonic() - began)
    except base.CandidateFailed as error:
        # After a call that returned it is the solution itself that says what this machine lacks.
        error.building = not calls and trial is baseline.trials[0]
        raise
    problem = baseline.definition, baseline.workload, trial
    return ask(evaluator, evaluator.check, *problem, calls, config)


def ask(evaluator: Evaluator, question: Callable[..., _Answer], *arguments: Any) -> _Answer:
    """Ask an evaluator, and set the blame straight if it raises.

    Raises
    ------
    EvaluatorFailed
        If it does.
    """
    try:
        return question(*arguments)
    except Exception as error:  # a plugin, looking at what untrusted code made
        reason = f"{type(error).__name__}: {error}"
        message = f"evaluator {evaluator.name!r} failed on these outputs: {reason}"
        raise EvaluatorFailed(message) from error


@contextmanager
def in_worker(report: Report) -> Iterator[Attempt]:
    """Lend a process in which the solution is loaded, for the body of a ``with`` statement.

    What it prints, and how long its build took, goes to `report`.
    """
    session, baseline = report.session, report.baseline
    with session.pool.worker(solution_key(report.solution)) as worker:
        worker.reusable = baseline.nbytes < KEEP_BELOW_BYTES
        deadline = Deadline(session.config.timeout_seconds)
        attempt = Attempt(session, report.solution, baseline, worker, deadline)
        try:
            load_s = build(attempt)
            report.build_s = load_s + report.compile_s if load_s else 0.0
            # From here on the device's memory and time belong to this solution alone.
            session.pool.settle()
            yield attempt
        finally:
            report.output = worker.new_output()


def evaluate_by(method: Callable[[Report], Evaluation], report: Report) -> Evaluation:
    """Evaluate a solution by `method`; what ends it early becomes an evaluation, too.

    Parameters
    ----------
    method : callable
        Builds, checks and times the solution.
    report : Report
        Makes the evaluation.

    Raises
    ------
    NotEvaluated
        If there can be no verdict, because this machine lacks what its build needs.
    RunInterrupted
        If the run ends meanwhile.
    """
    session, solution = report.session, report.solution
    known: Optional[base.CandidateError] = session.failed_builds.get(solution_key(solution))
    if known is None and session.ahead is not None:
        done = session.ahead.outcome(solution)  # waits while it is being compiled
        if done is not None:
            report.compile_s, report.output = done.seconds, done.output
            report.builder, known = done.builder, done.error
    if known is not None:
        return _failed(report, known)
    try:
        return method(report)
    except EvaluatorFailed as error:
        return report.refused(error.message, transient=True)
    except base.CandidateError as error:
        if session.pool.interrupted:
            raise RunInterrupted("the run ended during an evaluation") from error
        return _failed(report, error)


def _failed(report: Report, error: base.CandidateError) -> Evaluation:
    if error.is_no_fault:
        raise NotEvaluated(error.reason) from error
    return report.failed(error)
