"""Repetition of recorded evaluations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from statistics import quantiles
from typing import TYPE_CHECKING, Any, Optional

from pydantic import PrivateAttr

from fib_compare.origin import SETTINGS_BY_KEY, SETTINGS_OF_DEFINITIONS, SETTINGS_OF_RUNS
from fib_judge.method import VerifiedMeasurement
from fib_judge.records import seed_commitment
from flashinfer_bench.bench.backends import choose_devices
from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
from flashinfer_bench.bench.digests import definition_digest
from flashinfer_bench.bench.session import IsolatedRunner, PersistentRunner, Runner
from flashinfer_bench.errors import ConfigError, FibError, RunnerError, RunnerFatalError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fib_compare.targets import Target
    from flashinfer_bench.bench.evaluation import NotEvaluated
    from flashinfer_bench.data import (
        Correctness,
        Definition,
        Evaluation,
        Performance,
        Provenance,
        Solution,
        Trace,
        TraceSet,
        Workload,
    )
    from flashinfer_bench.plugins import Catalog


_ERRORS_MAY_DIFFER = 0.1  # relative, because the order of sums may vary
_FEWEST_SAMPLES = 4  # needed for quartiles
_MOST_EXCUSED = 2.0  # neither scattered samples nor a slower machine excuse a larger factor
_SPEEDUP_MAY_DIFFER = 0.01  # relative difference of the recorded speed-up and latencies
_NOTHING = "nothing"

_ABOUT_HOST = {
    "host": "host",
    "driver": "driver",
    "harness_version": "flashinfer-bench",
    "timer": "timer",
    "timer_version": "version of the timer",
    "evaluator": "evaluator",
    "sm_clock_mhz": "SM clock (MHz)",
    "memory_clock_mhz": "memory clock (MHz)",
    "device": "device",
}
_TABLES = ("plugins", "toolchain")
_COUNTS = {
    "cpu_threads": "CPU threads",
    "reference_calls": "timed calls of the reference alone",
    "timed_checks": "checked variations",
}


@dataclass(frozen=True)
class Comparison:
    """Comparison of two evaluations of the same solution and workload.

    Attributes
    ----------
    drift : tuple of str
        Contradictions.
    differences : tuple of str
        Other differences, which may explain them.
    """

    drift: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()


def compare(before: Evaluation, now: Evaluation, tolerance: float) -> Comparison:
    """Compare two evaluations of the same solution, inputs and settings.

    Parameters
    ----------
    before, now : Evaluation
        The recorded one, and that of a replay.
    tolerance : float
        Largest difference of latencies, relative to the recorded one.

    Returns
    -------
    Comparison
        Statuses must be equal, errors must agree to 10 %. Latencies drift if they differ by more
        than `tolerance` *and* the interquartile ranges of their samples do not overlap. Recorded
        samples and reference latencies may have been edited, so they excuse at most a factor of
        two.
    """
    differences = tuple(_environment(before, now))
    if before.status != now.status:
        return Comparison((f"status {before.status} -> {now.status}",), differences)
    found = [
        *_errors(before.correctness, now.correctness),
        *_performances(before.performance, now.performance, tolerance),
    ]
    notes = (text for drifted, text in found if not drifted)
    return Comparison(tuple(text for drifted, text in found if drifted), (*notes, *differences))


_Findings = Iterator[tuple[bool, str]]
"""Differences, each with whether it contradicts what was recorded."""


def _errors(before: Optional[Correctness], now: Optional[Correctness]) -> _Findings:
    if before is None or now is None:
        return
    for name in ("max_absolute_error", "max_relative_error"):
        then, today = getattr(before, name), getattr(now, name)
        if then != today and not (math.isnan(then) and math.isnan(today)):
            is_close = (
                abs(then - today) <= _ERRORS_MAY_DIFFER * max(abs(then), abs(today)) < math.inf
            )
            text = f"{name} {then:.4g} -> {today:.4g} (differs by {abs(today - then):.3g})"
            yield not is_close, text


def _performances(
    before: Optional[Performance], now: Optional[Performance], tolerance: float
) -> _Findings:
    if before is None:
        return
    if now is not None and (text := _latency(before, now, tolerance)):
        yield True, text
    if before.latency_ms > 0:
        told, made = before.speedup_factor, before.reference_latency_ms / before.latency_ms
        if not math.isclose(told, made, rel_tol=_SPEEDUP_MAY_DIFFER):
            text = f"the recorded speed-up {told:.4g} does not match the recorded latencies: "
            yield True, f"{text}{made:.4g}"
    then = before.reference_latency_ms
    today = now.reference_latency_ms if now is not None else 0.0
    # A changed reference latency suggests that the machine has changed.
    if then and today and abs(today - then) > tolerance * then:
        far = max(then, today) > max(_MOST_EXCUSED, 1 + tolerance) * min(then, today)
        yield far, f"the reference's latency {then:.4g} -> {today:.4g} ms"


def _latency(before: Performance, now: Performance, tolerance: float) -> str:
    """Return how a latency drifted; empty if it did not."""
    then, today = before.latency_ms, now.latency_ms
    if abs(today - then) <= tolerance * then:
        return ""
    text = f"latency {then:.4g} -> {today:.4g} ms, outside {tolerance:.3g} of the recorded one"
    first, second = _interquartile(before.samples_ms), _interquartile(now.samples_ms)
    if first is None or second is None:
        return f"{text} (too few samples to compare their ranges)"
    if first[0] > second[1] or second[0] > first[1]:
        return f"{text}, and the interquartile ranges of the samples do not overlap"
    if max(then, today) > _MOST_EXCUSED * min(then, today):
        return f"{text}, by more than the scatter of samples explains"
    return ""


def _interquartile(samples: Optional[Sequence[float]]) -> Optional[tuple[float, float]]:
    if samples is None or len(samples) < _FEWEST_SAMPLES:
        return None
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return low, high


def _environment(before: Evaluation, now: Evaluation) -> Iterator[str]:
    yield from _changed("hardware", before.environment.hardware, now.environment.hardware)
    yield from _tables(before.environment.libs, now.environment.libs)
    first, second = before.provenance, now.provenance
    if first is None or second is None:
        return
    for field, name in _ABOUT_HOST.items():
        yield from _changed(name, getattr(first, field), getattr(second, field))
    for table in _TABLES:
        tables = getattr(first, table) or {}, getattr(second, table) or {}
        yield from _tables(*tables, fresh=False)
    for key, name in _COUNTS.items():
        yield from _changed(name, first.extra.get(key), second.extra.get(key))


def _changed(name: str, before: Any, now: Any) -> Iterator[str]:
    """Yield a line if both values are known and different."""
    if before is not None and now is not None and before != now:
        yield f"{name}: {before} -> {now}"


def _tables(
    before: Mapping[str, Any], now: Mapping[str, Any], *, fresh: bool = True
) -> Iterator[str]:
    """Yield the differences of two mappings; with `fresh` also keys that only one has."""
    for key in dict.fromkeys((*before, *now)):
        one, other = before.get(key), now.get(key)
        if one != other and (fresh or (one and other)):
            yield f"{key}: {one or _NOTHING} -> {other or _NOTHING}"


_LARGEST_SEED = 2**63


class NotReproducible(RunnerError):
    """A trace cannot be replayed; the message says why."""


@dataclass(frozen=True)
class Recipe:
    """Everything needed to repeat an evaluation.

    Attributes
    ----------
    definition, solution
        As in the dataset, unchanged since the evaluation.
    provenance : Provenance
        The provenance of the trace.
    config : RecordedConfig
        The recorded settings, except those that would disable the sandbox.
    timed_seed, reference_seed : int, optional
        Seeds of the timed calls of the solution and of the reference.
    notes : tuple of str
        What is not recorded and was replaced by a default, and the recorded settings, which may
        have been edited.
    """

    definition: Definition
    solution: Solution
    provenance: Provenance
    config: RecordedConfig
    timed_seed: Optional[int] = None
    reference_seed: Optional[int] = None
    notes: tuple[str, ...] = ()


def recipe_of(trace: Trace, trace_set: TraceSet) -> Recipe:
    """Return what is needed to repeat the evaluation of a trace.

    Parameters
    ----------
    trace : Trace
        The trace of a run.
    trace_set : TraceSet
        Its dataset. Another trace in it may have the seed that all solutions of a workload shared.

    Raises
    ------
    NotReproducible
        If the trace lacks something, or if solution, definition or workload have changed.
    """
    evaluation = trace.evaluation
    told = evaluation.provenance if evaluation is not None else None
    if told is None or told.seed is None or not _is_seed(told.seed):
        raise NotReproducible("the seed was not recorded")
    definition = trace_set.definitions.get(trace.definition)
    if definition is None:
        raise NotReproducible(f"definition {trace.definition!r} is not in the dataset")
    if told.definition_hash not in (None, definition_digest(definition)):
        raise NotReproducible(f"definition {trace.definition!r} has changed since")
    # The dataset's workload of the same uuid may differ.
    uuid = trace.workload.uuid
    named = [
        _content(one)
        for one in trace_set.workloads.get(trace.definition, ())
        if one.workload.uuid == uuid
    ]
    if named and _content(trace) not in named:
        raise NotReproducible(f"workload {uuid!r} has changed since")
    trust, timed = told.extra.get("trust", "full"), told.extra.get("rotation_seed")
    if trust not in ("full", "off"):
        raise NotReproducible(f"the recorded trust {trust!r} is invalid; allowed: full, off")
    timed = timed if _is_seed(timed) else None
    reference = _reference_seed(told, trace_set, trace.definition)
    name = trace.solution or ""
    solution = trace_set.get_solution(name)
    if solution is None:
        raise NotReproducible(f"solution {name!r} is not in the dataset")
    if solution.definition != trace.definition:
        raise NotReproducible(
            f"solution {name!r} now belongs to definition {solution.definition!r}"
        )
    if told.extra.get("solution_hash") not in (None, solution.hash()):
        raise NotReproducible(f"solution {name!r} has changed since")
    notes = []
    if told.definition_hash is None:
        notes.append("not recorded: settings other than today's defaults, hash of the definition")
    if "solution_hash" not in told.extra:
        notes.append("not recorded: hash of the solution")
    if trust == "full" and timed is not None and reference is None:
        notes.append("not recorded: seed of the reference's timed calls; a new one was used")
    settings = dict(told.settings or {})
    sandbox = settings.get("sandbox", "strict")
    if sandbox != "strict":
        del settings["sandbox"]
    notes += [f"as recorded: {name} {value}" for name, value in settings.items()]
    if sandbox != "strict":
        notes.append(f"recorded sandbox: {sandbox}; the replay used the default")
    if trust == "off":
        notes.append("as recorded: trust off, so the solution was not checked for cheating")
    config = RecordedConfig.restored(
        settings,
        warmup_runs=told.warmup_runs,
        iterations=told.iterations,
        num_trials=told.num_trials,
        seed=told.seed,
        trust=trust,
        timer=told.timer,
    )
    return Recipe(definition, solution, told, config, timed, reference, tuple(notes))


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_SEED


def _content(trace: Trace) -> str:
    """Return a workload as text, in which the scalars 1, 1.0 and true differ."""
    content = trace.workload.model_dump(mode="json")
    return json.dumps(content, sort_keys=True)


def _reference_seed(told: Provenance, trace_set: TraceSet, definition: str) -> Optional[int]:
    """Return the seed that the last solution of a workload records for all its solutions."""
    wanted = told.extra.get("checks_id")
    if wanted is None:
        return None
    beside = (one.evaluation for one in trace_set.traces.get(definition, ()))
    others = (one.provenance for one in beside if one is not None and one.provenance is not None)
    for one in chain([told], others):
        seed = one.extra.get("reference_seed")
        if isinstance(seed, int) and _is_seed(seed) and seed_commitment(seed) == wanted:
            return seed
    return None


class RecordedConfig(BenchmarkConfig):
    """Settings that a trace recorded, for all definitions."""

    _changed: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def restored(cls, changed: Mapping[str, Any], **fields: Any) -> RecordedConfig:
        """Return the settings of a trace.

        Parameters
        ----------
        changed : mapping
            As `recorded_settings` returns them.
        **fields
            Further fields of `BenchmarkConfig`; None stands for the default.

        Raises
        ------
        ConfigError
            If a value is invalid.
        """
        for name in SETTINGS_BY_KEY:
            if not isinstance(changed.get(name, {}), dict):
                raise ConfigError(f"recorded setting {name!r} is not a mapping: {changed[name]!r}")
        config = cls.default(**{name: changed.get(name) for name in SETTINGS_OF_RUNS}, **fields)
        assert isinstance(config, RecordedConfig)
        config._changed = dict(changed)
        return config

    def resolve_eval_config(
        self, definition: Definition, workload: Optional[Workload] = None
    ) -> ResolvedEvalConfig:
        """Return the defaults for a definition, updated by the recorded settings.

        Raises
        ------
        ConfigError
            If a recorded setting is invalid.
        """
        settings = super().resolve_eval_config(definition, workload).model_dump()
        changed = self._changed
        settings.update(
            (name, changed[name]) for name in SETTINGS_OF_DEFINITIONS if name in changed
        )
        for name in SETTINGS_BY_KEY:
            settings[name].update(changed.get(name, {}))
        return ResolvedEvalConfig(**settings)


_FRESH_TRIES = 2


class Verdict(str, Enum):
    """Whether the result of a trace still holds.

    ``reproduced``: the same evaluation has the same result. ``drifted``: the result is different.
    ``not reproducible``: the evaluation could not be repeated.
    """

    REPRODUCED = "reproduced"
    DRIFTED = "drifted"
    NOT_REPRODUCIBLE = "not reproducible"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Replay:
    """The result of replaying one trace.

    Attributes
    ----------
    target : Target
        The recorded run.
    verdict : Verdict
        Whether it still holds.
    reasons : tuple of str
        Why not; empty if it was reproduced.
    differences : tuple of str
        Differences from the recorded run, such as hardware, driver and libraries, and what was not
        recorded.
    inputs : str
        ``same``: identical; ``different``; ``not recorded``; empty if none were generated.
    evaluation : Evaluation, optional
        The new evaluation.
    """

    target: Target
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    inputs: str = ""
    evaluation: Optional[Evaluation] = None

    @property
    def recorded(self) -> Optional[Evaluation]:
        """The recorded evaluation."""
        return self.target.trace.evaluation if self.target.trace is not None else None


class Replayer(AbstractContextManager["Replayer"]):
    """Repeats recorded evaluations with the same inputs, seeds and settings.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    device : str, optional
        The device; by default that of each trace.
    latency_tolerance : float
        Largest difference of latencies, relative to the recorded one.
    fresh_variations : bool
        Draw new seeds for the timed calls instead of the recorded ones. Recorded seeds are public,
        so only evaluations with new ones are as trustworthy as those of ``fib run``.
    catalog : Catalog, optional
        The plugins; by default all installed ones.

    Notes
    -----
    Processes are reused from one trace to the next; `close` ends them.
    """

    def __init__(
        self,
        trace_set: TraceSet,
        *,
        device: Optional[str] = None,
        latency_tolerance: float = 0.1,
        fresh_variations: bool = False,
        catalog: Optional[Catalog] = None,
    ) -> None:
        self._trace_set = trace_set
        self._device = device
        self._tolerance = latency_tolerance
        self._fresh = fresh_variations
        self._catalog = catalog
        self._runners: dict[tuple[Any, ...], Runner] = {}

    def replay(self, target: Target) -> Replay:
        """Repeat one evaluation, and compare it with the recorded one.

        Parameters
        ----------
        target : Target
            The recorded run.

        Returns
        -------
        Replay
            The result; if something is missing, it is not reproducible, with the reason.

        Raises
        ------
        RunnerFatalError
            If no process can be started on the device.
        """
        trace = target.trace
        if trace is None or trace.evaluation is None:
            why = target.problem or "this line has no run"
            return Replay(target, Verdict.NOT_REPRODUCIBLE, (why,))
        try:
            recipe = recipe_of(trace, self._trace_set)
            now = self._evaluate(trace, recipe, fresh=self._fresh)
            found = _judged(target, trace.evaluation, now, recipe, self._tolerance)
            # It may have passed only because the recorded seeds are public.
            passed = found.evaluation is not None and found.evaluation.performance is not None
            known = passed and recipe.timed_seed is not None
            if self._fresh or not known or found.verdict is not Verdict.REPRODUCED:
                return found
            return self._held_against_fresh(found, trace, recipe)
        except RunnerFatalError:
            self.close()
            raise
        except FibError as error:
            return Replay(target, Verdict.NOT_REPRODUCIBLE, (error.message,))

    def _held_against_fresh(self, found: Replay, trace: Trace, recipe: Recipe) -> Replay:
        """Repeat a run that agrees, with timed calls from fresh seeds.

        Solutions that cheat fail each time; a machine that is briefly busy does not.
        """
        held = found
        for _ in range(_FRESH_TRIES):
            again = self._evaluate(trace, recipe, fresh=True)
            held = _with_fresh(found, again, self._tolerance)
            if held.verdict is Verdict.REPRODUCED:
                break
        return held

    def _evaluate(self, trace: Trace, recipe: Recipe, *, fresh: bool) -> Evaluation:
        config = recipe.config
        runner = self._runner(self._device or recipe.provenance.device, config)
        method = runner.measurement(config)
        if isinstance(method, VerifiedMeasurement):
            method.timed_seed = None if fresh else recipe.timed_seed
            method.reference_seed = None if fresh else recipe.reference_seed
        skipped: list[NotEvaluated] = []
        root = self._trace_set.root
        found = list(
            runner.evaluate_each(
                *(recipe.definition, trace.workload, [recipe.solution], config, root),
                on_skip=lambda _, why: skipped.append(why),
            )
        )
        if not found:
            raise NotReproducible(f"the solution cannot be built here: {skipped[0].message}")
        return found[0][1]

    def _runner(self, device: Optional[str], config: RecordedConfig) -> Runner:
        name = choose_devices(device)[0]
        key = name, config.use_isolated_runner, config.executor, config.sandbox
        if key not in self._runners:
            kind = IsolatedRunner if config.use_isolated_runner else PersistentRunner
            self._runners[key] = kind(name, catalog=self._catalog)
        return self._runners[key]

    def close(self) -> None:
        """End all processes; idempotent."""
        while self._runners:
            _, runner = self._runners.popitem()
            runner.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def _with_fresh(found: Replay, again: Evaluation, tolerance: float) -> Replay:
    """Compare a replay with one whose timed calls had fresh seeds."""
    known = found.evaluation
    assert known is not None
    reasons = list(compare(known, again, tolerance).drift)
    if known.status == again.status:  # errors differ, because the values do
        reasons = [one for one in reasons if not one.startswith("max_")]
    if not reasons:
        return found
    about = "only with the recorded seeds, which are public; with fresh ones: "
    return replace(found, verdict=Verdict.DRIFTED, reasons=(about + "; ".join(reasons),))


def _judged(
    target: Target, before: Evaluation, now: Evaluation, recipe: Recipe, tolerance: float
) -> Replay:
    then = recipe.provenance.inputs_crc32
    today = now.provenance.inputs_crc32 if now.provenance is not None else None
    inputs = "same" if then == today else "different"
    if then is None or today is None:
        inputs = "not recorded"
    found = compare(before, now, tolerance)
    differences = (*recipe.notes, *found.differences)
    verdict, reasons = Verdict.REPRODUCED, found.drift
    if inputs == "different":
        verdict = Verdict.NOT_REPRODUCIBLE
        reasons = ("the inputs differ from the recorded ones despite the same seed", *found.drift)
    elif found.drift:
        verdict = Verdict.DRIFTED
    return Replay(target, verdict, reasons, differences, inputs, now)


def as_trace(replay: Replay) -> Optional[Trace]:
    """Return the trace of a replay, marked as one; None if nothing was evaluated.

    Parameters
    ----------
    replay : Replay
        Preferably from a `Replayer` with fresh variations.
    """
    before, now = replay.target.trace, replay.evaluation
    if before is None or before.evaluation is None or now is None or now.provenance is None:
        return None
    extra = {**now.provenance.extra, "replay_of": before.evaluation.timestamp}
    marked = now.provenance.model_copy(update={"extra": extra})
    evaluation = now.model_copy(update={"provenance": marked})
    return before.model_copy(update={"evaluation": evaluation})
