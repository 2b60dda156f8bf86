"""Evaluating the solutions of workloads on one device, and what these evaluations share."""

from __future__ import annotations

import gc
import logging
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, ClassVar, Optional

from flashinfer_bench._lazy import OldAttributes
from flashinfer_bench.bench import backends
from flashinfer_bench.bench.evaluation import NotEvaluated
from flashinfer_bench.bench.evaluators import resolve_evaluator
from flashinfer_bench.bench.executors.base import CandidateError, CandidateFailed, Executor
from flashinfer_bench.bench.executors.threads import staying_on
from flashinfer_bench.bench.locks import device_lock
from flashinfer_bench.bench.measurement import MeasurementMethod, ReferenceFailed, Task
from flashinfer_bench.bench.pool import RunInterrupted, WorkerKey, WorkerPool
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.bench.timing import Timer, pick_timer
from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.errors import RunnerFatalError
from flashinfer_bench.plugins import Catalog, Registered, TimerSpec, default_catalog
from flashinfer_bench.tensors import judge_core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from flashinfer_bench.bench.builds import BuildAhead
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.transport.deadline import Deadline
    from flashinfer_bench.data import Definition, Environment, Evaluation, Solution, Workload

_logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 60.0
_MAY_BE_THE_DEVICE = (EvaluationStatus.RUNTIME_ERROR, EvaluationStatus.TIMEOUT)


@dataclass(frozen=True)
class Session:
    """What all evaluations of a run on one device share.

    Attributes
    ----------
    device : str
        ``cpu`` or ``cuda:N``.
    environment : Environment
        Goes into every evaluation.
    config : BenchmarkConfig
        The settings, with a seed.
    pool : WorkerPool
        Lends candidate processes.
    catalog : Catalog
        The plugins.
    timer : str
        Name of the timing backend.
    timer_version : str, optional
        Its version as this process knows it.
    timer_enqueues : bool
        Whether it can time calls that the device is to make later.
    timer_notes : tuple of str
        Which better timer could not be used, and why; for every trace.
    measurement : str
        Name of the way in which solutions are measured: ``basic``, ``verified``, …
    failed_builds : dict
        Solutions that are known not to build, with the candidate's answer: building does not
        depend on the workload, so it is not tried again for the next one.
    ahead : BuildAhead, optional
        What is compiled, or has been, ahead of its evaluation.
    """

    device: str
    environment: Environment
    config: BenchmarkConfig
    pool: WorkerPool
    catalog: Catalog
    timer: str
    timer_version: Optional[str] = None
    timer_enqueues: bool = False
    timer_notes: tuple[str, ...] = ()
    measurement: str = "basic"
    failed_builds: dict[WorkerKey, CandidateFailed] = field(default_factory=dict)
    ahead: Optional[BuildAhead] = None

    @property
    def seed(self) -> int:
        """Seed of the run."""
        assert self.config.seed is not None
        return self.config.seed

    @contextmanager
    def device_to_itself(self, deadline: Deadline) -> Iterator[None]:
        """Keep other processes from timing on this device; waiting for it costs no budget.

        If it is the CPU, the calling thread stays on the core that solutions leave to it.

        Raises
        ------
        RunInterrupted
            If the run ends while the device is waited for.
        """
        with ExitStack() as stack:
            with deadline.stopped():
                lock = device_lock(self.device, lambda: self.pool.interrupted)
                held = stack.enter_context(lock)
            if not held:
                raise RunInterrupted(f"the run ended while waiting for {self.device}")
            core = judge_core() if self.device == "cpu" else None
            if core is not None:
                stack.enter_context(staying_on(core))
            yield


@cache
def _leave_imports_alone() -> None:
    """Have the collector not look at all that torch has imported each time: 100 ms."""
    gc.collect()
    gc.freeze()


def _warn(solution: Solution, why: NotEvaluated) -> None:
    _logger.warning("no result for %s: %s", solution.name, why)


class Runner(OldAttributes, AbstractContextManager["Runner"]):
    """Evaluates solutions on one device. Use `IsolatedRunner` or `PersistentRunner`.

    The reference runs once for each workload, in a separate process. A runner belongs to one
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

    sandbox : Sandbox, optional
        Confines the candidates, for all runners of a run together. By default each runner makes
        its own, as the settings say.

    Attributes
    ----------
    ahead : BuildAhead, optional
        Compiles solutions ahead of their evaluation, for all runners of a run together. The runner
        interrupts it with itself, but does not close it.
    interrupted : bool
        Whether `interrupt` has been called.
    """

    #: Idle processes that are kept for later evaluations of their solutions, by type of device.
    keep: ClassVar[int] = 0

    def __init__(
        self,
        device: str,
        *,
        executor: Optional[Executor] = None,
        catalog: Optional[Catalog] = None,
        sandbox: Optional[Sandbox] = None,
    ) -> None:
        self.device = device
        self.ahead: Optional[BuildAhead] = None
        self._catalog = default_catalog() if catalog is None else catalog
        self._given = executor, sandbox
        self._made = ExitStack()  # ends what this runner has made itself
        self._pool: Optional[WorkerPool] = None
        self._pick_measurement = cache(partial(backends.pick_measurement, self._catalog, device))
        self._pick_timer = cache(partial(pick_timer, self._catalog, device))
        self._failed_builds: dict[WorkerKey, CandidateFailed] = {}
        self._definition: Optional[Definition] = None
        self.interrupted = False

    @cached_property
    def environment(self) -> Environment:
        """Hardware and libraries that evaluations of this runner take place on."""
        from flashinfer_bench.tensors import env_snapshot

        return env_snapshot(self.device)

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

        if self._definition is not definition:  # let go of what belongs to the one before
            self._definition = definition
            self._failed_builds.clear()
            if self._pool is not None:
                self._pool.clear()
        settings = config.resolve_eval_config(definition, workload)
        session = self.session(config, settings.cache)
        evaluator = resolve_evaluator(definition, config.evaluator, catalog=self._catalog)
        evaluator.check_settings(settings)
        solutions = list(solutions)
        left = len(solutions)
        if self.ahead is not None:
            self.ahead.prepare(definition.name)
            solutions = self.ahead.as_ready(solutions)
        method = self.measurement(config)
        reference = reference_solution(definition)
        task = Task(definition, workload, reference, evaluator, settings, root)
        try:
            baseline = method.prepare(session, task)
        except ReferenceFailed:
            self.require_working_device()
            raise
        _leave_imports_alone()
        for solution in solutions:
            on_start(solution)
            left -= 1
            try:
                evaluation = method.evaluate(session, solution, baseline)
            except NotEvaluated as error:
                on_skip(solution, error)
            else:
                if evaluation.status in _MAY_BE_THE_DEVICE:
                    self.require_working_device()
                if not left:
                    evaluation = method.completed(evaluation, baseline)
                yield solution, evaluation

    def measurement(self, config: BenchmarkConfig) -> MeasurementMethod:
        """Return how this runner measures; the same object for all that it evaluates.

        Raises
        ------
        CapabilityError
            If the one that is named is not registered, or cannot be used here.
        PluginLoadError
            If it cannot be loaded.
        """
        return self._pick_measurement(config.measurement)

    def session(self, config: BenchmarkConfig, cache: str) -> Session:
        """Return what evaluations with these settings share.

        Parameters
        ----------
        config : BenchmarkConfig
            The settings. Without a seed a fresh one is drawn.
        cache : str
            What calls find in the device's caches: ``cold`` or ``warm``.
        """
        timer, note = self.require_timer(config.timer, trust=config.trust, cache=cache)
        kind = timer.load_subclass(Timer)  # type: ignore[type-abstract]
        return Session(
            device=self.device,
            environment=self.environment,
            config=config.seeded(),
            pool=self._get_pool(config),
            catalog=self._catalog,
            timer=timer.name,
            timer_version=kind.version,
            timer_enqueues=kind.enqueues,
            timer_notes=(note,) if note is not None else (),
            measurement=self.measurement(config).name,
            failed_builds=self._failed_builds,
            ahead=self.ahead,
        )

    def require_timer(
        self, name: Optional[str], *, trust: str = "full", cache: str = "cold"
    ) -> tuple[Registered[TimerSpec], Optional[str]]:
        """Return the timer that this runner uses if `name` is asked for, and a note about it.

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
        return self._pick_timer(name, trust=trust, cache=cache)

    def _get_pool(self, config: BenchmarkConfig) -> WorkerPool:
        if self._pool is None:
            executor, sandbox = self._given
            if sandbox is None:
                sandbox = Sandbox(config.sandbox, self._catalog)
                self._made.callback(sandbox.tidy)  # after the processes have ended
            if executor is None:
                executor = backends.make_executor(self._catalog, self.device, config.executor)
                self._made.callback(executor.close)
            if sandbox is not self._given[1]:
                sandbox.require(executor)
            self._pool = WorkerPool(executor, keep=self.keep, sandbox=sandbox)
        if self.interrupted:
            self._pool.interrupt()
        return self._pool

    def require_working_device(self) -> None:
        """Have a process that no solution has touched put a tensor on the device.

        A GPU that is lost fails whatever runs on it, at once. Without a look at the device itself,
        that would be taken for the fault of one solution after the other, and the lost device would
        be through with the work of the whole run before the others have begun.

        Raises
        ------
        RunnerFatalError
            If that fails: nothing else will work there either.
        """
        if self._pool is None or self.interrupted or self._pool.executor.device == "cpu":
            return
        import torch

        for is_last in (False, True):  # once more with another process: one may have been harmed
            try:
                with self._pool.worker(("device",)) as worker:
                    candidate = worker.candidate
                    candidate.put_inputs(0, [torch.zeros(8)], {}, timeout_s=_ANSWER_TIMEOUT_S)
                return
            except CandidateError as error:
                if self._pool.interrupted:
                    raise RunInterrupted("the run ended while the device was tried") from error
                if is_last:
                    raise RunnerFatalError(
                        f"{self._pool.executor.device} no longer works: {error.message}",
                        hint="check nvidia-smi and the system log; 'fib run --resume' continues "
                        "from here",
                    ) from error

    def interrupt(self) -> None:
        """End what is going on, from another thread; `RunInterrupted` is raised in the runner's."""
        self.interrupted = True
        if self.ahead is not None:
            self.ahead.interrupt()
        if (pool := self._pool) is not None:  # the other thread may let go of it meanwhile
            pool.interrupt()

    def close(self) -> None:
        """End all processes; idempotent."""
        if self._pool is not None:
            self._pool.clear()
            self._pool.settle()
        self._made.close()
        self._pool = None

    def __exit__(self, *error: object) -> None:
        self.close()


class IsolatedRunner(Runner):
    """Starts a fresh process of the solution for every evaluation; the reference's goes on."""


class PersistentRunner(Runner):
    """Keeps processes alive for further workloads of the same solution, never for another one.

    What a solution has built or compiled stays. A process is given up after anything that went
    wrong in it, when the next definition begins, when there are too many, or some on a CUDA device
    of which half the memory is taken: each one holds a context and cached memory.
    """

    keep: ClassVar[int] = 16
