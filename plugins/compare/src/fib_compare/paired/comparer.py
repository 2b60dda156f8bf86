"""Comparison of two solutions of a dataset, workload by workload."""

from __future__ import annotations

import logging
import math
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Optional

from fib_compare.paired.launch import (
    Cores,
    LaunchSize,
    NoTimeLeft,
    pair_seconds,
    take_launch,
)
from fib_compare.paired.result import Contest, ContestResult, Obstacle, Role, Stopped
from fib_compare.paired.sides import CannotCompare, CheckSupply, Disputes, Side
from fib_compare.stats import Launch, compare_launches, enough
from fib_judge.calibration import load_ceilings
from fib_judge.decidability import UndecidableWorkload
from fib_judge.records import KeyedRandom, VerifiedAttempt, VerifiedBaseline, VerifiedSession
from fib_judge.reference import prepare_baseline
from fib_judge.timed import secret_schedule
from flashinfer_bench.bench.backends import choose_devices
from flashinfer_bench.bench.evaluation import EvaluatorFailed
from flashinfer_bench.bench.evaluators import resolve_evaluator
from flashinfer_bench.bench.measurement import ReferenceFailed, Task
from flashinfer_bench.bench.plan import (
    meant_for_other_device,
    selected_definitions,
    selected_solutions,
)
from flashinfer_bench.bench.pool import solution_key
from flashinfer_bench.bench.session import IsolatedRunner
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.errors import (
    CapabilityError,
    ConfigError,
    DataError,
    SelectionError,
    UnknownNameError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Evaluator
    from flashinfer_bench.data import Definition, Solution, TraceSet, Workload
    from flashinfer_bench.plugins import Catalog


logger = logging.getLogger(__name__)

_FEWEST_LAUNCHES = 2
_CHECKS = 6  # exchanges of a launch that may be compared
_RECENT = 4  # launches; the next one is expected to take as long as the longest of them
_ROLES: tuple[Role, Role] = ("baseline", "candidate")


@dataclass(frozen=True)
class CompareSettings:
    """Required confidence and time limit of a comparison.

    Attributes
    ----------
    min_effect : float
        Smallest relative difference that counts, such as 0.01.
    alpha : float
        Probability of calling equal solutions different.
    max_seconds : float
        Time limit for each workload, without preparing the workload and building both solutions.

    Raises
    ------
    ConfigError
        If a value is invalid.
    """

    min_effect: float = 0.01
    alpha: float = 0.05
    max_seconds: float = 30.0

    def __post_init__(self) -> None:
        _require("min_effect", self.min_effect, 0.0, 1.0)
        _require("alpha", self.alpha, 0.0, 0.5)
        _require("max_seconds", self.max_seconds, 0.0, math.inf)


def _require(name: str, value: float, low: float, high: float) -> None:
    if not low < value < high:  # neither is NaN
        most = f" and below {high:g}" if math.isfinite(high) else ""
        raise ConfigError(f"{name} is {value:g}; it must be above {low:g}{most}")


class ContestRun:
    """Compares two solutions on one workload.

    Parameters
    ----------
    session : VerifiedSession
        The run. Its pool must keep no solution's processes.
    contest : Contest
        The two solutions and the workload.
    evaluator : Evaluator
        Judges the outputs.
    config : ResolvedEvalConfig
        Tolerances and number of input sets.
    settings : CompareSettings
        When a comparison is decided.
    tests : int
        Number of tests that the answer is corrected for.
    on_launch : callable
        Called after each launch with the number of launches and the seconds so far.
    """

    def __init__(
        self,
        session: VerifiedSession,
        contest: Contest,
        evaluator: Evaluator,
        config: ResolvedEvalConfig,
        settings: CompareSettings,
        *,
        tests: int = 1,
        on_launch: Callable[[int, float], None] = lambda launches, seconds: None,
    ) -> None:
        self._session, self._contest = session, contest
        self._evaluator, self._config, self._settings = evaluator, config, settings
        self._tests, self._on_launch = tests, on_launch
        self._cores = Cores(session.device)
        self._cap = Deadline(settings.max_seconds)
        self._size: Optional[LaunchSize] = None
        self._launches: list[Launch] = []
        self._took_s: list[float] = []  # of all launches so far, discarded ones included

    def run(self, root: Optional[Path] = None) -> ContestResult:
        """Return the result; problems of a solution become an `Obstacle`.

        Parameters
        ----------
        root : Path, optional
            Folder of the dataset, for tensors in files.

        Raises
        ------
        RunnerFatalError
            If no process can be started.
        """
        began = time.monotonic()
        baseline = self._prepare(root)
        if isinstance(baseline, Obstacle):
            return self._result(began, obstacle=baseline)
        session, settings = self._session, self._settings
        rng = KeyedRandom(session.secret_seed(f"compare/{baseline.handle}"))
        self._cap = Deadline(settings.max_seconds)
        self._rng, self._disputes = rng, Disputes()
        self._supply = CheckSupply(session, baseline, settings.max_seconds, rng)
        try:
            stopped = self._decide(baseline)
            if len(self._launches) < _FEWEST_LAUNCHES:
                raise CannotCompare("both", "too slow", self._too_slow())
        except CannotCompare as error:
            return self._result(began, obstacle=error.obstacle, notes=self._notes())
        except EvaluatorFailed as error:
            failed = Obstacle("reference", "failed", error.message)
            return self._result(began, obstacle=failed, notes=self._notes())
        comparison = compare_launches(
            self._launches,
            min_effect=settings.min_effect,
            alpha=settings.alpha,
            capped=stopped == "time",
        )
        found = {"comparison": comparison, "launches": tuple(self._launches), "stopped": stopped}
        return self._result(began, notes=self._notes(), **found)

    def _prepare(self, root: Optional[Path]) -> VerifiedBaseline | Obstacle:
        from flashinfer_bench.compile import reference_solution

        definition, workload = self._contest.definition, self._contest.workload
        reference = reference_solution(definition)
        try:
            task = Task(definition, workload, reference, self._evaluator, self._config, root)
            baseline = prepare_baseline(self._session, task)
            # Few calls are checked; their pauses must not be shorter than the others.
            if baseline.values is not None:
                baseline.values.kept.clear()
            return baseline
        except ReferenceFailed as error:
            return Obstacle("reference", "failed", error.message)
        except (UndecidableWorkload, DataError) as error:
            return Obstacle("reference", "workload", error.message)
        except CapabilityError as error:
            return Obstacle("reference", "unavailable", error.message)

    def _decide(self, baseline: VerifiedBaseline) -> Stopped:
        settings, cap, took_s = self._settings, self._cap, self._took_s
        # While there is time for another launch.
        while len(took_s) < _FEWEST_LAUNCHES or cap.remaining > max(took_s[-_RECENT:]):
            began = cap.remaining
            try:
                launch = self._launch(baseline)
            except NoTimeLeft:
                return "time"
            took_s.append(began - cap.remaining)
            if launch is not None:
                self._launches.append(launch)
            self._on_launch(len(self._launches), settings.max_seconds - cap.remaining)
            if launch is not None and enough(
                self._launches, settings.min_effect, settings.alpha, tests=self._tests
            ):
                return "decided"
        return "time"

    def _launch(self, baseline: VerifiedBaseline) -> Optional[Launch]:
        """Make one launch; return None if it is discarded."""
        number, session = len(self._took_s), self._session
        with ExitStack() as stack:
            sides = self._sides(stack, baseline, number)
            with nullcontext() if number else self._cap.stopped():  # the first may compile
                for side in sides if number % 2 else sides[::-1]:
                    side.prepare(check=not number)
                    side.begin(self._rng)
                    stack.callback(side.close)
                session.pool.settle()
            if self._size is None:
                pair_s = pair_seconds(session, sides, self._rng, self._cap)
                self._size = LaunchSize.fitting(pair_s, self._cap.seconds)
            groups, alone = self._supply.take(min(_CHECKS, self._size.pairs))
            session.pool.settle()
            schedule = secret_schedule(self._size.pairs, groups, self._rng)
            launch = take_launch(
                *(session, sides, self._rng, schedule, alone, self._size),
                number=number,
                cap=self._cap,
                cores=self._cores,
            )
        return launch if self._disputes.accepts(sides) else None

    def _sides(
        self, stack: ExitStack, baseline: VerifiedBaseline, number: int
    ) -> tuple[Side, Side]:
        contest, session = self._contest, self._session
        deadline = Deadline(session.config.timeout_seconds)
        made = []
        for role, solution in zip(_ROLES, (contest.baseline, contest.candidate), strict=True):
            key = ("compare", role, str(number), *solution_key(solution))
            worker = stack.enter_context(session.pool.worker(key))
            attempt = VerifiedAttempt(session, solution, baseline, worker, deadline)
            made.append(Side(role, attempt))
        return made[0], made[1]

    def _too_slow(self) -> str:
        given, made = self._settings.max_seconds, len(self._launches)
        text = (
            f"only {made} of the required {_FEWEST_LAUNCHES} launches finished within {given:g} s; "
            "increase --max-seconds"
        )
        if self._disputes.set_aside:
            text += f" ({self._disputes.set_aside} were discarded)"
        return text

    def _notes(self) -> tuple[str, ...]:
        disputes, notes = self._disputes, []
        if disputes.set_aside:
            notes.append(f"{disputes.set_aside} launches discarded: latencies were disputed")
        if self._supply.reused:
            notes.append("the reference is slow: later launches reused checks of earlier ones")
        return tuple(notes)

    def _result(self, began: float, **found: Any) -> ContestResult:
        contest, session = self._contest, self._session
        return ContestResult(
            definition=contest.definition.name,
            workload=contest.workload.uuid,
            baseline=contest.baseline.name,
            candidate=contest.candidate.name,
            seconds=time.monotonic() - began,
            timer=session.timer,
            cache=self._config.cache,
            hardware=session.environment.hardware,
            **found,
        )


def find_contests(
    trace_set: TraceSet,
    baseline: str,
    candidate: str,
    definitions: Optional[Sequence[str]] = None,
    workloads: Sequence[str] = (),
) -> list[Contest]:
    """Return the workloads that two solutions have in common.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    baseline, candidate : str
        Names of solutions; may be the same.
    definitions : sequence of str, optional
        Only these definitions.
    workloads : sequence of str
        Beginnings of uuids; empty for all workloads.

    Raises
    ------
    UnknownNameError
        If there is no solution, definition or workload of such a name.
    SelectionError
        If the solutions have no workload in common.
    """
    chosen = selected_definitions(trace_set, definitions)
    found = selected_solutions(trace_set, trace_set.definitions.values(), [baseline, candidate])
    by_name = {item.name: item for group in found.values() for item in group}
    first, second = by_name[baseline], by_name[candidate]
    if first.definition != second.definition:
        raise SelectionError(
            f"{baseline!r} is a solution of {first.definition!r}, and {candidate!r} of "
            f"{second.definition!r}: they have no workload in common",
            hint="compare two solutions of the same definition",
        )
    for definition in chosen:
        if definition.name == first.definition:
            fitting = _workloads(trace_set, definition, workloads)
            return [Contest(definition, one, first, second) for one in fitting]
    raise SelectionError(
        f"{baseline!r} is a solution of {first.definition!r}, which --definition excludes",
        hint=f"leave out --definition, or use --definition {first.definition}",
    )


def _workloads(
    trace_set: TraceSet, definition: Definition, prefixes: Sequence[str]
) -> list[Workload]:
    traces = trace_set.workloads.get(definition.name, [])
    known = {trace.workload.uuid: trace.workload for trace in traces}
    unknown = tuple(one for one in prefixes if not any(uuid.startswith(one) for uuid in known))
    if unknown:
        raise UnknownNameError(
            f"{definition.name!r} has no workload {', '.join(map(repr, unknown))}",
            hint=f"available workloads: {', '.join(list(known)[:8])}" if known else None,
            unknown=unknown,
        )
    wanted = tuple(prefixes) or ("",)
    found = [workload for uuid, workload in known.items() if uuid.startswith(wanted)]
    if not found:
        raise SelectionError(f"definition {definition.name!r} has no workloads")
    return found


class Comparer(AbstractContextManager["Comparer"]):
    """Compares solutions on one device.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset. Nothing is written to it.
    config : BenchmarkConfig
        Device, tolerances, time limit, seed, trust, sandbox, timer, executor and evaluator.
    settings : CompareSettings
        When a comparison is decided.
    catalog : Catalog, optional
        The plugins; by default all installed ones.

    Notes
    -----
    `close` ends all processes.
    """

    def __init__(
        self,
        trace_set: TraceSet,
        config: BenchmarkConfig,
        settings: CompareSettings,
        *,
        catalog: Optional[Catalog] = None,
    ) -> None:
        if catalog is None:
            from flashinfer_bench.plugins import default_catalog

            catalog = default_catalog()
        self._trace_set, self._config, self._settings = trace_set, config, settings
        self._catalog = catalog
        self.device = choose_devices(config.device)[0]
        self._runner = IsolatedRunner(self.device, catalog=catalog)

    def run(
        self,
        contests: Sequence[Contest],
        *,
        on_start: Callable[[Contest], None] = lambda contest: None,
        on_launch: Callable[[int, float], None] = lambda launches, seconds: None,
    ) -> Iterator[ContestResult]:
        """Yield the result of each contest as soon as it ends.

        Parameters
        ----------
        contests : sequence of Contest
            As `find_contests` returns them.
        on_start : callable
            Called with each contest before it begins.
        on_launch : callable
            As for `ContestRun`.

        Raises
        ------
        CapabilityError
            If a solution does not support this device, or there is no builder, timer, evaluator
            or executor.
        RunnerFatalError
            If no process can be started, or the device is gone.
        """
        config, catalog = self._config, self._catalog
        for contest in contests[:1]:
            for solution in (contest.baseline, contest.candidate):
                self._require_builder(solution)
        tests = len(contests) + 1 if len(contests) > 1 else 1  # one more for the mean
        for contest in contests:
            on_start(contest)
            resolved = config.resolve_eval_config(contest.definition, contest.workload)
            evaluator = resolve_evaluator(contest.definition, config.evaluator, catalog=catalog)
            evaluator.check_settings(resolved)
            parts = self.session, contest, evaluator, resolved, self._settings
            run = ContestRun(*parts, tests=tests, on_launch=on_launch)
            result = run.run(self._trace_set.root)
            if result.obstacle is not None and result.obstacle.kind == "failed":
                self._runner.require_working_device()
            yield result

    def _require_builder(self, solution: Solution) -> None:
        spec = solution.spec
        elsewhere = meant_for_other_device(solution, self._catalog, self.device)
        if elsewhere:
            raise CapabilityError(f"solution {solution.name!r}: {elsewhere}")
        self._catalog.select_builder(
            spec.language, spec.binding, solution=solution.name, device=self.device
        )

    @cached_property
    def session(self) -> VerifiedSession:
        """The session that all contests share; created on first use."""
        config = self._config.model_copy(update={"profile_baseline": False})
        shared = self._runner.session(config, config.cache)
        ceilings = load_ceilings(self.device, shared.environment.hardware)
        return VerifiedSession(**vars(shared), ceilings=ceilings)

    def close(self) -> None:
        """End all processes; idempotent."""
        self._runner.close()
        vars(self).pop("session", None)

    def __exit__(self, *error: object) -> None:
        self.close()
