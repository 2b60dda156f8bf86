"""Runners: evaluating the solutions of a workload on one device."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from flashinfer_bench.bench.backends import make_executor, pick_timer, timer_version
from flashinfer_bench.bench.calibration import load_ceilings
from flashinfer_bench.bench.evaluators import resolve_evaluator
from flashinfer_bench.bench.health import may_be_the_device, require_working
from flashinfer_bench.bench.judge.baseline import ReferenceFailed, prepare_baseline
from flashinfer_bench.bench.judge.evaluate import NotEvaluated, evaluate_solution
from flashinfer_bench.bench.judge.report import with_reference_seed
from flashinfer_bench.bench.judge.seeds import fresh_seed
from flashinfer_bench.bench.judge.session import Session
from flashinfer_bench.bench.locks import DeviceLock
from flashinfer_bench.bench.pool import WorkerPool
from flashinfer_bench.bench.replay.origin import Origin
from flashinfer_bench.bench.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from flashinfer_bench.bench.ahead import BuildAhead
    from flashinfer_bench.bench.backends import TimerChoice
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.executors.base import CandidateFailed, Executor
    from flashinfer_bench.bench.judge.baseline import DeviceBaseline
    from flashinfer_bench.bench.pool import WorkerKey
    from flashinfer_bench.bench.watch.lock import LockReport
    from flashinfer_bench.data import Definition, Environment, Evaluation, Solution, Workload
    from flashinfer_bench.plugins import Catalog

logger = logging.getLogger(__name__)


def _warn(solution: Solution, why: NotEvaluated) -> None:
    logger.warning("no verdict on %s: %s", solution.name, why)


class Runner:
    """Evaluates solutions on one device. Use `IsolatedRunner` or `PersistentRunner`.

    The reference runs once for each workload, in a process of its own. A runner belongs to one
    thread; only `interrupt` may be called from another one.

    Parameters
    ----------
    device : str
        ``cpu`` or ``cuda:N``.
    executor : Executor, optional
        Starts the processes; the runner then does not close it. By default the runner makes and
        closes its own, as the settings and the installed plugins say.
    catalog : Catalog, optional
        Where timers, evaluators and executors are looked up; by default all that are installed.

    Attributes
    ----------
    ahead : BuildAhead, optional
        Compiles solutions ahead of their evaluation, for all runners of a run together. The runner
        interrupts it with itself, but does not close it.
    sandbox : Sandbox, optional
        Confines the candidates, for all runners of a run together. By default each runner makes
        its own, as the settings say.
    timed_seed, reference_seed : int, optional
        Seeds of the timed calls of the solution and of the reference, to repeat an evaluation; by
        default fresh ones are drawn, which nobody can foresee.
    """

    #: Idle processes that are kept for later evaluations of their solutions, by type of device.
    keep: ClassVar[dict[str, int]] = {}

    def __init__(
        self,
        device: str,
        *,
        executor: Optional[Executor] = None,
        catalog: Optional[Catalog] = None,
    ) -> None:
        self.device = device
        self.ahead: Optional[BuildAhead] = None
        self.sandbox: Optional[Sandbox] = None
        self.timed_seed: Optional[int] = None
        self.reference_seed: Optional[int] = None
        self._catalog = catalog
        self._given_executor = executor
        self._own_executor: Optional[Executor] = None
        self._pool: Optional[WorkerPool] = None
        self._environment: Optional[Environment] = None
        self.clock_lock: Optional[LockReport] = None
        self._timers: dict[tuple[Optional[str], str, str], TimerChoice] = {}
        self._failed_builds: dict[WorkerKey, CandidateFailed] = {}
        self._definition: Optional[Definition] = None
        self._interrupted = False

    @property
    def environment(self) -> Environment:
        """Hardware and libraries that evaluations of this runner take place on."""
        if self._environment is None:
            from flashinfer_bench.tensors import env_snapshot

            self._environment = env_snapshot(self.device)
        return self._environment

    def run_workload(
        self,
        definition: Definition,
        workload: Workload,
        solutions: Iterable[Solution],
        config: BenchmarkConfig,
        root: Optional[Path] = None,
    ) -> dict[str, Evaluation]:
        """Evaluate `solutions` on one workload.

        Parameters
        ----------
        definition : Definition
            What is computed.
        workload : Workload
            On what.
        solutions : iterable of Solution
            Implementations of `definition`.
        config : BenchmarkConfig
            The settings. Without a seed a fresh one is drawn for this call.
        root : Path, optional
            Folder of the dataset, for tensors in files.

        Returns
        -------
        dict of str to Evaluation
            By the solution's name.

        Raises
        ------
        DataError
            If the workload does not fit the definition, or a tensor file is missing or wrong.
        RunnerError
            If there can be no verdict on any solution, as when the reference fails.
        RunnerFatalError
            If no process can be started on this device.
        CapabilityError
            If no timer, evaluator or executor is available, or the reference cannot be built here.

        Notes
        -----
        A solution that cannot be built here by no fault of its own is left out, with a warning.
        """
        return {
            solution.name: evaluation
            for solution, evaluation in self.evaluate_each(
                definition, workload, solutions, config, root
            )
        }

    def evaluate_each(
        self,
        definition: Definition,
        workload: Workload,
        solutions: Iterable[Solution],
        config: BenchmarkConfig,
        root: Optional[Path] = None,
        *,
        on_start: Callable[[Solution], None] = lambda solution: None,
        on_skip: Callable[[Solution, NotEvaluated], None] = _warn,
    ) -> Iterator[tuple[Solution, Evaluation]]:
        """Yield each evaluation as soon as it ends; otherwise like `run_workload`.

        Parameters
        ----------
        definition, workload, solutions, config, root
            As of `run_workload`.
        on_start : callable
            Called with each solution before it is evaluated.
        on_skip : callable
            Called with each solution on which there can be no verdict, and why; by default that is
            logged.

        Yields
        ------
        tuple of Solution and Evaluation
        """
        from flashinfer_bench.compile import reference_solution

        self._enter(definition)
        origin = Origin(config, definition, workload, self.device, self._get_catalog())
        settings = config.resolve_eval_config(definition, workload)
        session = self._session(config, origin, settings.cache)
        evaluator = resolve_evaluator(definition, config.evaluator, catalog=self._catalog)
        evaluator.check_settings(settings)
        solutions = list(solutions)
        left = len(solutions)
        if self.ahead is not None:
            self.ahead.prepare(definition.name)
            solutions = self.ahead.as_ready(solutions)
        reference = reference_solution(definition)
        problem = session, definition, workload, reference, settings, root, evaluator
        baseline = self._prepare(*problem)
        settings = baseline.config or settings
        for solution in solutions:
            on_start(solution)
            left -= 1
            try:
                evaluation = evaluate_solution(session, solution, baseline, evaluator, settings)
            except NotEvaluated as error:
                on_skip(solution, error)
            else:
                if may_be_the_device(evaluation):
                    self._require_working_device()
                if not left:
                    evaluation = with_reference_seed(evaluation, baseline)
                yield solution, evaluation

    def _prepare(self, *problem: Any) -> DeviceBaseline:
        """Return what `prepare_baseline` does; a reference that fails may be the device's fault."""
        try:
            return prepare_baseline(*problem)
        except ReferenceFailed:
            self._require_working_device()
            raise

    def _require_working_device(self) -> None:
        """Raise `RunnerFatalError` if it is the device that fails, and not what runs on it."""
        executor = self._given_executor or self._own_executor
        if executor is not None and not self._interrupted:
            require_working(executor)

    def _enter(self, definition: Definition) -> None:
        """Let go of what belongs to the definition before."""
        if self._definition is not definition:
            self._definition = definition
            self._failed_builds.clear()
            if self._pool is not None:
                self._pool.clear()

    def _session(self, config: BenchmarkConfig, origin: Origin, cache: str) -> Session:
        chosen = self.require_timer(config.timer, trust=config.trust, cache=cache)
        return Session(
            device=self.device,
            environment=self.environment,
            seed=fresh_seed() if config.seed is None else config.seed,
            timer=chosen.name,
            timer_note=chosen.note,
            clock_lock=self.clock_lock,
            warm=cache == "warm",
            timeout_s=config.timeout_seconds,
            profile_baseline=config.profile_baseline,
            pool=self._get_pool(config),
            lock=DeviceLock(self.device),
            failed_builds=self._failed_builds,
            ahead=self.ahead,
            trust=config.trust,
            timed_seed=self.timed_seed,
            reference_seed=self.reference_seed,
            origin=origin,
            timer_version=timer_version(self._get_catalog(), self.device, chosen.name),
            ceilings=load_ceilings(self.device, self.environment.hardware),
        )

    def require_timer(
        self, name: Optional[str], *, trust: str = "full", cache: str = "cold"
    ) -> TimerChoice:
        """Return the timer that this runner uses if `name` is asked for.

        Parameters
        ----------
        name : str, optional
            The timer; None takes the best that is available.
        trust, cache : str
            As of `pick_timer`.

        Raises
        ------
        CapabilityError
            If there is no such timer for the device.
        ConfigError
            If it does not go with `trust` or `cache`.
        """
        key = name, trust, cache
        if key not in self._timers:
            asked = {"trust": trust, "cache": cache}
            self._timers[key] = pick_timer(self._get_catalog(), self.device, name, **asked)
        return self._timers[key]

    def _get_catalog(self) -> Catalog:
        if self._catalog is None:
            from flashinfer_bench.plugins import default_catalog

            self._catalog = default_catalog()
        return self._catalog

    def _get_pool(self, config: BenchmarkConfig) -> WorkerPool:
        if self._pool is None:
            executor = self._given_executor
            if executor is None:
                executor = make_executor(self._get_catalog(), self.device, config.executor)
                self._own_executor = executor
            keep = self.keep.get(self.device.partition(":")[0], 0)
            sandbox = self.sandbox or Sandbox(config.sandbox)
            self._pool = WorkerPool(executor, keep=keep, overlap=True, sandbox=sandbox)
        if self._interrupted:
            self._pool.interrupt()
        return self._pool

    def interrupt(self) -> None:
        """End what is going on, from another thread; `RunInterrupted` is raised in the runner's."""
        self._interrupted = True
        if self.ahead is not None:
            self.ahead.interrupt()
        if self._pool is not None:
            self._pool.interrupt()

    def close(self) -> None:
        """End all processes; idempotent."""
        if self._pool is not None:
            self._pool.clear()
        if self._own_executor is not None:
            self._own_executor.close()
        self._pool = self._own_executor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()


class IsolatedRunner(Runner):
    """Starts a fresh process for every evaluation."""

    keep: ClassVar[dict[str, int]] = {}


class PersistentRunner(Runner):
    """Keeps processes alive for further workloads of the same solution, never for another one.

    What a solution has built or compiled stays. A process is given up after anything that went
    wrong in it, when the next definition begins, or when there are too many: fewer are kept on CUDA
    devices, where each one holds a context and cached memory.
    """

    keep: ClassVar[dict[str, int]] = {"cpu": 16, "cuda": 4}
