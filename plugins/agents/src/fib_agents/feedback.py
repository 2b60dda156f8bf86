"""What an agent can act on: a small record for each evaluation, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable  # noqa: TC003 - an alias below names it
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Optional

import msgspec

from fib_agents import history
from fib_agents.diagnosis import (
    MOST_OUTPUTS,
    Diagnosis,
    OutputFeedback,
    details_of,
    output_of,
    provenance_of,
)
from fib_agents.known_causes import Cause, causes_of_error
from fib_report.causes import reason_of, shorten, without_colours
from fib_report.results import latest_results
from fib_report.roofline import Rooflines
from fib_report.scores import latency_of, ratio_of
from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
from flashinfer_bench.bench.evaluation import clip
from flashinfer_bench.bench.evaluators.default import plain_number
from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.data.tolerance import Tolerance
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fib_report.results import Result
    from flashinfer_bench.data import Definition, Evaluation, Trace, TraceSet

VERSION = 1
MOST_BYTES = 16 << 10

_NAMES = ("definition", "workload", "solution", "author", "hardware", "timestamp", "status")
_LONGEST_TEXT = 400
_LONGEST = {
    **dict.fromkeys((*_NAMES, "name"), 200),
    "log_excerpt": 2_000,
    "diff": history.MOST_DIFF_CHARACTERS,
}
_MOST_AXES = 16


@dataclass(frozen=True)
class Latency:
    """The latency of a solution that passed.

    Attributes
    ----------
    latency_ms : float
        The median, in milliseconds.
    interval_ms : (float, float), optional
        Its 95 % interval.
    timer, cache : str
        How it was taken; empty if that is not recorded.
    reference_latency_ms : float, optional
        Latency of the definition's reference.
    speedup : float, optional
        Latency of the reference over this one.
    speedup_interval : (float, float), optional
        Its 95 % interval.
    """

    latency_ms: float
    interval_ms: Optional[tuple[float, float]] = None
    timer: str = ""
    cache: str = ""
    reference_latency_ms: Optional[float] = None
    speedup: Optional[float] = None
    speedup_interval: Optional[tuple[float, float]] = None


@dataclass(frozen=True)
class BestKnown:
    """The fastest other solution that passed on the same workload and device.

    Disputed latencies do not count; nor do those by another timer or cache mode, if the solution
    itself passed.

    Attributes
    ----------
    solution, author : str
        Which one it is.
    latency_ms : float
        Its latency in milliseconds.
    interval_ms : (float, float), optional
        Its 95 % interval.
    ratio : float, optional
        Its latency over that of this solution: above 1 this solution is faster.
    verdict : str
        This solution is ``faster`` or ``slower``, or ``not distinguishable`` if the intervals
        overlap; ``unknown`` without intervals, or if it did not pass.
    """

    solution: str
    author: str
    latency_ms: float
    interval_ms: Optional[tuple[float, float]] = None
    ratio: Optional[float] = None
    verdict: str = "unknown"


@dataclass(frozen=True)
class Limit:
    """The limit that the device sets, by the roofline model (see `fib_report.roofline`).

    Attributes
    ----------
    nbytes, operations : int
        The minimum of bytes and operations of a call; 0 operations if they are not known.
    limit_ms : float, optional
        The shortest time in which the device can do them; None if it was not calibrated.
    limited_by : str
        ``bytes``, ``operations`` or ``call``; empty without a limit.
    share : float, optional
        The limit over the latency: 1 is as fast as the device allows.
    """

    nbytes: int
    operations: int
    limit_ms: Optional[float] = None
    limited_by: str = ""
    share: Optional[float] = None


@dataclass(frozen=True)
class Feedback:
    """What is known of one evaluation, for whoever improves the solution.

    As JSON it has at most 16 KiB: names are cut to 200 characters, other texts to 400, the excerpt
    of the log to 2,000 and the diff to 4,000; if that is not enough, the log, the diff, maps and
    lists are shortened in this order.

    Attributes
    ----------
    definition, workload, solution, author : str
        What was evaluated; `workload` is the uuid.
    axes : dict of str to int
        Axes of the workload, at most 16.
    hardware, timestamp : str
        Where and when, as in the trace.
    status : str
        One of `EvaluationStatus`.
    decisive_line : str
        Why it failed (see `fib_report.causes.reason_of`); empty if it passed.
    log_excerpt : str
        Beginning and end of the log.
    outputs : tuple of OutputFeedback
        The outputs, at most 8.
    likely_causes : tuple of Cause
        The best first, at most 5; empty if no rule fits.
    diagnosis_note : str
        What limits the diagnosis, or why there is none.
    latency : Latency, optional
        If it passed.
    best_known : BestKnown, optional
        What to beat.
    limit : Limit, optional
        What the device allows, if the work is known.
    marks : tuple of str
        ``disputed``: the latency is in doubt; ``replayable``: it may come from memory;
        ``loose_tolerance``: it would fail with ``--tolerance dtype``.
    since_last_try : history.SinceLastTry, optional
        What changed since the author's last solution of this definition.
    version : int
        1.
    """

    definition: str
    workload: str
    solution: str
    author: str
    axes: dict[str, int]
    hardware: str
    timestamp: str
    status: str
    decisive_line: str = ""
    log_excerpt: str = ""
    outputs: tuple[OutputFeedback, ...] = ()
    likely_causes: tuple[Cause, ...] = ()
    diagnosis_note: str = ""
    latency: Optional[Latency] = None
    best_known: Optional[BestKnown] = None
    limit: Optional[Limit] = None
    marks: tuple[str, ...] = ()
    since_last_try: Optional[history.SinceLastTry] = None
    version: int = VERSION

    def to_json(self) -> str:
        """Return the record as one line of JSON of at most 16 KiB.

        Values that are None are left out; NaN and ±inf are ``"NaN"``, ``"Infinity"`` and
        ``"-Infinity"``, as in traces.
        """
        record = self._cut()
        for shorter in _SHORTER:
            text = _as_json(record)
            if len(text.encode("utf-8", "replace")) <= MOST_BYTES:
                break
            record = shorter(record)
        return _as_json(record)

    @classmethod
    def from_json(cls, text: str) -> Feedback:
        """Return the record of a line by `to_json`.

        Raises
        ------
        DataError
            If it is not such a line, or of another version.
        """
        try:
            data = json.loads(text)
            told = data.get("version") if isinstance(data, dict) else None
            if told != VERSION:
                raise DataError(
                    f"feedback is of version {told!r}; this release reads version {VERSION}",
                    field="version",
                )
            # Lax, because NaN and ±inf are words.
            return msgspec.convert(data, cls, strict=False)
        except (ValueError, msgspec.ValidationError) as error:
            raise DataError(f"not a feedback record: {error}") from error

    def _cut(self) -> Feedback:
        return replace(
            self,
            axes=dict(list(self.axes.items())[:_MOST_AXES]),
            log_excerpt=clip(self.log_excerpt, _LONGEST["log_excerpt"]),
            outputs=self.outputs[:MOST_OUTPUTS],
            likely_causes=self.likely_causes[:5],
        )


def _as_json(record: Feedback) -> str:
    data = asdict(record)
    return json.dumps(_plain({"version": data.pop("version"), **data}), ensure_ascii=False)


def _plain(value: Any, longest: int = 0) -> Any:
    """Return JSON values without those that are None, with texts cut by the key they are under."""
    if isinstance(value, dict):
        return {
            _plain(key, 60): _plain(one, _LONGEST.get(key, _LONGEST_TEXT))
            for key, one in value.items()
            if one is not None
        }
    if isinstance(value, (list, tuple)):
        return [_plain(one, longest) for one in value]
    if isinstance(value, str):  # what UTF-8 cannot hold is replaced
        return shorten(value, longest).encode("utf-8", "replace").decode("utf-8")
    return plain_number(value) if isinstance(value, float) else value


def _short_diff(record: Feedback, limit: int) -> Feedback:
    since = record.since_last_try
    if since is None or since.diff is None:
        return record
    lines = since.diff[:limit].splitlines()
    left_out = since.lines_left_out + since.diff.count("\n") + 1 - len(lines)
    return replace(
        record, since_last_try=replace(since, diff="\n".join(lines), lines_left_out=left_out)
    )


def _short_names(record: Feedback) -> Feedback:
    """Return what is always below the limit, even if each character takes six bytes."""
    names: dict[str, Any] = {name: shorten(getattr(record, name), 60) for name in _NAMES}
    return replace(
        record,
        **names,
        axes={},
        outputs=(),
        likely_causes=(),
        decisive_line=shorten(record.decisive_line, 200),
        best_known=None,
        since_last_try=None,
    )


_SHORTER: tuple[Callable[[Feedback], Feedback], ...] = (
    lambda one: replace(one, log_excerpt=clip(one.log_excerpt, 500)),
    lambda one: _short_diff(one, 1_000),
    lambda one: replace(
        one, outputs=(*one.outputs[:1], *(replace(o, mismatch=None) for o in one.outputs[1:]))
    ),
    lambda one: replace(one, outputs=one.outputs[:2], likely_causes=one.likely_causes[:2]),
    lambda one: replace(_short_diff(one, 0), log_excerpt="", diagnosis_note=""),
    _short_names,
)


# ------------------------------------------------------------------------------- making it


def feedback_of(
    trace: Trace, trace_set: TraceSet, diagnosis: Optional[Diagnosis] = None
) -> Feedback:
    """Return the feedback on an evaluation.

    Parameters
    ----------
    trace : Trace
        The run. It need not be in `trace_set`.
    trace_set : TraceSet
        The dataset: definition, solutions, and the runs that it is compared with.
    diagnosis : Diagnosis, optional
        What was found out about wrong outputs.

    Raises
    ------
    DataError
        If `trace` is a workload without a run.
    """
    return feedback_among(trace, trace_set, [trace], diagnosis)


def feedback_among(
    trace: Trace,
    trace_set: TraceSet,
    more: Sequence[Trace],
    diagnosis: Optional[Diagnosis] = None,
    note: str = "",
    config: Optional[ResolvedEvalConfig] = None,
) -> Feedback:
    """Return the feedback on an evaluation of a run that is going on.

    Parameters
    ----------
    trace, trace_set, diagnosis
        As of `feedback_of`.
    more : sequence of Trace
        Traces of the definition that the dataset may lack, `trace` last.
    note : str
        Why there is no diagnosis.
    config : ResolvedEvalConfig, optional
        Settings of the run; by default what the trace tells.
    """
    run = trace.evaluation
    if run is None or trace.solution is None:
        raise DataError("a workload trace has no evaluation", hint="give a trace of a run")
    results = history.results_of(trace_set, trace.definition, more)
    own = results[-1]
    definition = trace_set.definitions.get(trace.definition)
    solutions = trace_set.solutions.get(trace.definition, ())
    reason = "" if trace.is_successful() else reason_of(run)
    causes = list(diagnosis.causes) if diagnosis is not None else causes_of_error(run, reason)
    marks = {"disputed": own.disputed, "replayable": own.replayable, "loose_tolerance": own.loose}
    return Feedback(
        definition=trace.definition,
        workload=trace.workload.uuid,
        solution=trace.solution,
        author=own.author,
        axes=dict(trace.workload.axes),
        hardware=run.environment.hardware,
        timestamp=run.timestamp,
        status=run.status.value,
        decisive_line=without_colours(reason),
        log_excerpt=clip(without_colours(run.log), _LONGEST["log_excerpt"]),
        outputs=_outputs(trace, definition, diagnosis, config) if definition is not None else (),
        likely_causes=tuple(causes),
        diagnosis_note=diagnosis.note if diagnosis is not None else note,
        latency=_latency(own, run),
        best_known=_best_known(own, results),
        limit=_limit(own, trace_set),
        marks=tuple(name for name, holds in marks.items() if holds),
        since_last_try=history.since_last_try(own, results, solutions),
    )


def settings_of(trace: Trace, definition: Definition) -> ResolvedEvalConfig:
    """Return the tolerances of a run, as far as its trace tells which differ from the defaults.

    Parameters
    ----------
    trace : Trace
        The run.
    definition : Definition
        Its definition.
    """
    config = BenchmarkConfig.default().resolve_eval_config(definition, trace.workload)
    told = provenance_of(trace).settings or {}
    with suppress(ValueError, TypeError, DataError):
        names = ("atol", "rtol", "required_matched_ratio")
        found: dict[str, Any] = {name: told[name] for name in names if name in told}
        if own := told.get("tolerances"):
            known = {name: Tolerance(**one) for name, one in own.items()}
            found["tolerances"] = {**config.tolerances, **known}
        return config.model_copy(update=found)
    return config


def _outputs(
    trace: Trace,
    definition: Definition,
    diagnosis: Optional[Diagnosis],
    config: Optional[ResolvedEvalConfig],
) -> tuple[OutputFeedback, ...]:
    config = config or settings_of(trace, definition)
    correctness = trace.evaluation.correctness if trace.evaluation is not None else None
    first, matched = (details_of(trace).get(key) for key in ("first_failing", "matched_ratio"))
    worst = first.get("output") if isinstance(first, dict) else None
    known = {one.name: one for one in diagnosis.outputs} if diagnosis is not None else {}
    found, is_only = [], len(definition.outputs) == 1
    for name in list(definition.outputs)[:MOST_OUTPUTS]:
        try:
            one = output_of(definition, name, trace.workload.axes, config)
        except DataError:  # a workload of another definition
            break
        if isinstance(matched, (int, float)) and (is_only or name == worst):
            one = replace(one, wrong_share=1.0 - matched)
        if correctness is not None and is_only:
            one = replace(
                one,
                max_absolute_error=correctness.max_absolute_error,
                max_relative_error=correctness.max_relative_error,
            )
        found.append(known.get(name, one))
    return tuple(found)


def _latency(own: Result, run: Evaluation) -> Optional[Latency]:
    if run.status is not EvaluationStatus.PASSED or not own.latency_ms:
        return None
    beside = (own.reference_latency_ms, own.speedup, own.speedup_interval)
    has_reference = own.speedup is not None
    return Latency(
        own.latency_ms, own.interval_ms, *own.conditions, *(beside if has_reference else ())
    )


def _best_known(own: Result, results: Sequence[Result]) -> Optional[BestKnown]:
    others = [
        one
        for one in latest_results(results)
        if one.passed
        and not one.disputed
        and one.latency_ms
        and math.isfinite(one.latency_ms)
        and one.solution != own.solution
        and (one.workload, one.hardware) == (own.workload, own.hardware)
        and (not own.passed or one.conditions == own.conditions)
    ]
    if not others:
        return None
    best = min(others, key=lambda one: one.latency_ms or math.inf)
    theirs, mine = latency_of(best), latency_of(own)
    assert theirs is not None
    found = BestKnown(best.solution, best.author, theirs.value, theirs.ends)
    if mine is None:
        return found
    overlap, verdict = history.intervals_overlap(mine, theirs), "unknown"
    if overlap is not None:
        apart = "faster" if mine.value < theirs.value else "slower"
        verdict = "not distinguishable" if overlap else apart
    return replace(found, ratio=ratio_of(theirs, mine).value, verdict=verdict)


def _limit(own: Result, trace_set: TraceSet) -> Optional[Limit]:
    found = Rooflines(trace_set.definitions, trace_set.root).of(own)
    if found is None:
        return None
    work = found.work
    return Limit(work.nbytes, work.operations, found.limit_ms, found.limited_by, found.share)
