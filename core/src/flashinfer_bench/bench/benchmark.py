"""The benchmark loop: evaluate the solutions of a dataset and keep the results."""

from __future__ import annotations

import logging
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Optional, Union

from flashinfer_bench.bench.ahead import BuildAhead
from flashinfer_bench.bench.backends import choose_devices, make_executor
from flashinfer_bench.bench.clocks import locked_runners
from flashinfer_bench.bench.config import LOG_LEVELS, BenchmarkConfig
from flashinfer_bench.bench.crew import default_jobs
from flashinfer_bench.bench.judge.seeds import fresh_seed
from flashinfer_bench.bench.plan import Skipped, make_plan
from flashinfer_bench.bench.recorder import RunRecord
from flashinfer_bench.bench.resume import finished
from flashinfer_bench.bench.runner import IsolatedRunner, PersistentRunner
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

    from flashinfer_bench.bench.executors.base import Executor
    from flashinfer_bench.bench.observers import RunObserver
    from flashinfer_bench.bench.plan import Plan
    from flashinfer_bench.bench.resume import Done
    from flashinfer_bench.bench.runner import Runner
    from flashinfer_bench.data import Trace, TraceSet
    from flashinfer_bench.plugins import Catalog


class Benchmark:
    """Evaluates the solutions of a dataset on its workloads.

    Solutions and references run in child processes only. Each trace is written to the dataset as
    soon as its evaluation ends, so that a run which is broken off keeps what it has done.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    config : BenchmarkConfig, optional
        The settings; by default the packaged ones.
    log_level : str
        Least severe level that ``flashinfer_bench.bench`` logs; `config` stands over it.
    observers : sequence of RunObserver
        Are told what happens.
    catalog : Catalog, optional
        Where builders, timers, evaluators and executors come from; by default all installed ones.

    Attributes
    ----------
    config : BenchmarkConfig
        The settings of `run_all`.
    observers : sequence of RunObserver
        Are told what happens in the next run.

    Examples
    --------
    >>> with Benchmark(TraceSet.from_path("dataset")) as benchmark:
    ...     results = benchmark.run_all()
    """

    def __init__(
        self,
        trace_set: TraceSet,
        config: Union[BenchmarkConfig, str, None] = None,
        log_level: str = "INFO",
        *,
        observers: Sequence[RunObserver] = (),
        catalog: Optional[Catalog] = None,
    ) -> None:
        if isinstance(config, str):  # the first release had the level in this place
            self.config, log_level = BenchmarkConfig.default(), config
        else:
            self.config = config or BenchmarkConfig.default()
        self._trace_set = trace_set
        self._log_level = log_level
        self.observers: Sequence[RunObserver] = tuple(observers)
        self._catalog = catalog
        self._pending: list[Trace] = []
        self._skipped: tuple[Skipped, ...] = ()
        self._executors: dict[tuple[str, Optional[str]], Executor] = {}
        # Ends the child processes even of a benchmark that nobody closes.
        self._finalizer = weakref.finalize(self, _close_all, self._executors)
        _set_log_level(self.config, log_level)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What could not be evaluated in the last run, and why."""
        return self._skipped

    def get_trace_set(self) -> TraceSet:
        """Return the dataset."""
        return self._trace_set

    def run(self, config: Optional[BenchmarkConfig] = None) -> TraceSet:
        """Evaluate everything and store the traces; like `run_all`, with other settings.

        Parameters
        ----------
        config : BenchmarkConfig, optional
            The settings of this run; by default those of the benchmark.
        """
        return self._run(config or self.config, dump_traces=True, resume=False)

    def evaluate(self, config: Optional[BenchmarkConfig] = None) -> TraceSet:
        """Evaluate everything without storing it; `flush` stores it later.

        Parameters
        ----------
        config : BenchmarkConfig, optional
            The settings of this run; by default those of the benchmark.
        """
        return self._run(config or self.config, dump_traces=False, resume=False)

    def run_all(self, dump_traces: bool = True, resume: bool = False) -> TraceSet:
        """Evaluate the solutions of the dataset on its workloads.

        Parameters
        ----------
        dump_traces : bool
            Add each trace to the dataset, in memory and on disk, as soon as its evaluation ends.
        resume : bool
            Leave out what an earlier run on the same hardware has decided for good; time-outs and
            crashes are tried again.

        Returns
        -------
        TraceSet
            The dataset with the traces of this run only.

        Raises
        ------
        SelectionError
            If there is nothing to evaluate, or a filter names something unknown.
        CapabilityError
            If there is no such device, or no executor or timer for it, or the sandbox is strict and
            this system does not offer what it takes.
        RunnerFatalError
            If no process can be started any more.
        StorageError
            If a trace cannot be written; it is kept for `flush`, and the run ends.
        """
        return self._run(self.config, dump_traces=dump_traces, resume=resume)

    def flush(self) -> None:
        """Add the traces that have not been stored yet to the dataset.

        Raises
        ------
        StorageError
            If they cannot be written; they are kept.
        """
        self._trace_set.add_traces(self._pending)
        self._pending.clear()

    def close(self) -> None:
        """End all child processes; idempotent. A later run starts new ones."""
        _close_all(self._executors)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def _run(self, config: BenchmarkConfig, *, dump_traces: bool, resume: bool) -> TraceSet:
        _set_log_level(config, self._log_level)
        self._skipped = ()
        if config.seed is None:
            config = config.model_copy(update={"seed": fresh_seed()})
        runners = self._make_runners(config)
        device = runners[0].device
        done = self._done(runners) if resume else ()
        plan = make_plan(self._trace_set, config, self._get_catalog(), done, device=device)
        run = RunRecord(self._trace_set, config, self.observers, store=dump_traces)
        sandbox = self._make_sandbox(runners, config)
        ahead = self._build_ahead(plan, device, config, run, sandbox)
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            try:
                sandbox.require(self._executor(device, config))
                with locked_runners(runners, config.lock_clocks_mhz):
                    run.carry_out(plan, runners, ahead)
            finally:
                sandbox.tidy()
                self._skipped = tuple(run.skipped)
                self._pending += run.unsaved
            on_failure.pop_all()
        return run.results()

    def _get_catalog(self) -> Catalog:
        if self._catalog is None:
            from flashinfer_bench.plugins import default_catalog

            self._catalog = default_catalog()
        return self._catalog

    def _make_runners(self, config: BenchmarkConfig) -> list[Runner]:
        kind = IsolatedRunner if config.use_isolated_runner else PersistentRunner
        runners: list[Runner] = [
            kind(device, executor=self._executor(device, config), catalog=self._get_catalog())
            for device in choose_devices(config.device)
        ]
        for runner in runners:  # a timer that is not there is told once, not for each evaluation
            runner.require_timer(config.timer, trust=config.trust, cache=config.cache)
        return runners

    @staticmethod
    def _make_sandbox(runners: Sequence[Runner], config: BenchmarkConfig) -> Sandbox:
        sandbox = Sandbox(config.sandbox)
        for runner in runners:
            runner.sandbox = sandbox
        return sandbox

    def _build_ahead(
        self,
        plan: Plan,
        device: str,
        config: BenchmarkConfig,
        run: RunRecord,
        sandbox: Sandbox,
    ) -> Optional[BuildAhead]:
        if not plan.builds:
            return None
        return BuildAhead(
            plan.builds,
            self._executor(device, config),
            jobs=config.build_jobs or default_jobs(),
            timeout_s=config.timeout_seconds,
            overlap=device != "cpu",
            sandbox=sandbox,
            on_finished=run.build_finished,
        )

    def _executor(self, device: str, config: BenchmarkConfig) -> Executor:
        key = (device, config.executor)
        if key not in self._executors:
            self._executors[key] = make_executor(self._get_catalog(), *key)
        return self._executors[key]

    def _done(self, runners: Sequence[Runner]) -> set[Done]:
        traces = [trace for group in self._trace_set.traces.values() for trace in group]
        solutions = [item for group in self._trace_set.solutions.values() for item in group]
        return finished(traces, solutions, {runner.environment.hardware for runner in runners})


def _close_all(executors: dict[tuple[str, Optional[str]], Executor]) -> None:
    while executors:
        _, executor = executors.popitem()
        executor.close()


def _set_log_level(config: BenchmarkConfig, log_level: str) -> None:
    level = config.log_level if "log_level" in config.model_fields_set else log_level.upper()
    if level not in LOG_LEVELS:
        raise ConfigError(f"log level {log_level!r} is not one of {', '.join(LOG_LEVELS)}")
    logging.getLogger("flashinfer_bench.bench").setLevel(level)
