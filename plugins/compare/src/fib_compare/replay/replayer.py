"""Carrying out recorded evaluations again."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Optional

from fib_compare.replay.compare import compare
from fib_compare.replay.recorded import NotReproducible, RecordedConfig, recipe_of
from flashinfer_bench.bench.backends import choose_devices
from flashinfer_bench.bench.session import IsolatedRunner, PersistentRunner
from flashinfer_bench.data import Trace
from flashinfer_bench.errors import FibError, RunnerFatalError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fib_compare.replay.compare import Comparison
    from fib_compare.replay.recorded import Recipe
    from fib_compare.replay.targets import Target
    from flashinfer_bench.bench.evaluation import NotEvaluated
    from flashinfer_bench.bench.session import Runner
    from flashinfer_bench.data import Evaluation, Provenance, TraceSet
    from flashinfer_bench.plugins import Catalog


_FRESH_TRIES = 2


class Verdict(str, Enum):
    """Whether what a trace says still holds.

    ``reproduced``: the same evaluation came to the same. ``drifted``: it came to something else.
    ``not reproducible``: it could not be carried out again, so nothing is known.
    """

    REPRODUCED = "reproduced"
    DRIFTED = "drifted"
    NOT_REPRODUCIBLE = "not reproducible"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Replay:
    """What came of replaying one trace.

    Attributes
    ----------
    target : Target
        What was replayed.
    verdict : Verdict
        Whether it holds.
    reasons : tuple of str
        Why not; empty if it was reproduced.
    differences : tuple of str
        What was different from the recorded run: hardware, driver, libraries, or what is not known.
    inputs : str
        ``same``: rebuilt bit for bit; ``different``; ``not recorded``; empty if none were made.
    evaluation : Evaluation, optional
        Of now.
    """

    target: Target
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    inputs: str = ""
    evaluation: Optional[Evaluation] = None

    @property
    def recorded(self) -> Optional[Evaluation]:
        """The evaluation of then."""
        return self.target.trace.evaluation if self.target.trace is not None else None


def impossible(target: Target, reason: str) -> Replay:
    """Return the result of a trace that cannot be replayed here."""
    return Replay(target, Verdict.NOT_REPRODUCIBLE, (reason,))


class Replayer(AbstractContextManager["Replayer"]):
    """Carries out recorded evaluations again, with the same inputs, seeds and settings.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    device : str, optional
        Where to; by default where each trace was recorded.
    latency_tolerance : float
        By how much latencies may differ, relative to the recorded one.
    fresh_variations : bool
        Draw new seeds for the timed calls, which nobody can foresee, instead of the recorded ones.
        Whoever can read a trace knows those, so only such an evaluation is worth as much as any.
    catalog : Catalog, optional
        The plugins; by default all that are installed.

    Notes
    -----
    Processes are kept from one trace to the next; `close` ends them.
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
        """Carry out one evaluation again, and hold it against what was recorded.

        Parameters
        ----------
        target : Target
            The recorded one.

        Returns
        -------
        Replay
            Whatever is missing makes it not reproducible, with the reason.

        Raises
        ------
        RunnerFatalError
            If no process can be started on the device.
        """
        trace = target.trace
        if trace is None or trace.evaluation is None:
            return impossible(target, target.problem or "there is no run in this line")
        try:
            recipe = recipe_of(trace, self._trace_set, self._siblings(trace))
            now = self._evaluate(trace, recipe, fresh=self._fresh)
            found = _judged(target, trace.evaluation, now, recipe, self._tolerance)
            if self._fresh or not _may_know_its_calls(found, recipe):
                return found
            return self._held_against_fresh(found, trace, recipe)
        except RunnerFatalError:
            self.close()
            raise
        except FibError as error:
            return impossible(target, error.message)

    def _held_against_fresh(self, found: Replay, trace: Trace, recipe: Recipe) -> Replay:
        """Carry out a run that agrees once more, with timed calls that nobody could foresee.

        Who cheats fails each time; a machine that was busy for a moment does not.
        """
        held = found
        for _ in range(_FRESH_TRIES):
            again = self._evaluate(trace, recipe, fresh=True)
            held = _with_fresh(found, again, self._tolerance)
            if held.verdict is Verdict.REPRODUCED:
                break
        return held

    def _siblings(self, trace: Trace) -> Iterator[Trace]:
        yield from self._trace_set.traces.get(trace.definition, ())  # read only if it is needed

    def _evaluate(self, trace: Trace, recipe: Recipe, *, fresh: bool) -> Evaluation:
        config = _config(recipe)
        runner = self._runner(self._device or recipe.provenance.device, config)
        runner.timed_seed = None if fresh else recipe.timed_seed
        runner.reference_seed = None if fresh else recipe.reference_seed
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


def _config(recipe: Recipe) -> RecordedConfig:
    told = recipe.provenance
    return RecordedConfig.restored(
        _safe_settings(recipe),
        warmup_runs=told.warmup_runs,
        iterations=told.iterations,
        num_trials=told.num_trials,
        seed=recipe.seed,
        trust=recipe.trust,
        timer=told.timer,
    )


def _safe_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the recorded settings; a record has no say in whether solutions are confined here."""
    settings = recipe.provenance.settings or {}
    confined = settings.get("sandbox") == "strict"
    return {name: value for name, value in settings.items() if name != "sandbox" or confined}


def _about_settings(recipe: Recipe) -> list[str]:
    """Return what a reader must know of the settings: a record may have been edited."""
    settings = recipe.provenance.settings or {}
    told = [f"as recorded: {name} {value}" for name, value in _safe_settings(recipe).items()]
    if len(settings) > len(told):
        told.append(f"sandbox {settings['sandbox']} was recorded; here the solution was confined")
    if recipe.trust == "off":
        told.append("as recorded: trust off, so that nobody looked whether the solution cheats")
    return told


def _may_know_its_calls(found: Replay, recipe: Recipe) -> bool:
    """Return whether a solution may have passed because the recorded seeds are no secret."""
    now = found.evaluation
    passed = now is not None and now.performance is not None
    return passed and found.verdict is Verdict.REPRODUCED and recipe.timed_seed is not None


def _with_fresh(found: Replay, again: Evaluation, tolerance: float) -> Replay:
    """Hold a replay against one whose timed calls nobody could foresee."""
    known = found.evaluation
    assert known is not None
    reasons = list(compare(known, again, tolerance).drift)
    if known.status == again.status:  # other values have other errors
        reasons = [one for one in reasons if not one.startswith("max_")]
    if not reasons:
        return found
    about = "only with the recorded seeds, which are no secret; with fresh ones: "
    return replace(found, verdict=Verdict.DRIFTED, reasons=(about + "; ".join(reasons),))


def _judged(
    target: Target, before: Evaluation, now: Evaluation, recipe: Recipe, tolerance: float
) -> Replay:
    inputs = _inputs(recipe.provenance, now.provenance)
    found: Comparison = compare(before, now, tolerance)
    differences = (*recipe.missing, *_about_settings(recipe), *found.differences)
    verdict, reasons = Verdict.REPRODUCED, found.drift
    if inputs == "different":
        verdict = Verdict.NOT_REPRODUCIBLE
        reasons = ("the inputs are not those of then, although the seed is", *found.drift)
    elif found.drift:
        verdict = Verdict.DRIFTED
    return Replay(target, verdict, reasons, differences, inputs, now)


def _inputs(before: Provenance, now: Optional[Provenance]) -> str:
    then, today = before.inputs_crc32, now.inputs_crc32 if now is not None else None
    if then is None or today is None:
        return "not recorded"
    return "same" if then == today else "different"


def as_trace(replay: Replay) -> Optional[Trace]:
    """Return the trace of a replay, marked as one; None if nothing was evaluated.

    Parameters
    ----------
    replay : Replay
        Best of a `Replayer` with fresh variations.
    """
    before, now = replay.target.trace, replay.evaluation
    if before is None or before.evaluation is None or now is None or now.provenance is None:
        return None
    extra = {**now.provenance.extra, "replay_of": before.evaluation.timestamp}
    marked = now.provenance.model_copy(update={"extra": extra})
    evaluation = now.model_copy(update={"provenance": marked})
    return Trace(
        definition=before.definition,
        workload=before.workload,
        solution=before.solution,
        evaluation=evaluation,
    )
