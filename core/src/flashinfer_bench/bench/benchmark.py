"""The benchmark loop: evaluate the solutions of a dataset and keep the results."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench import errors
from flashinfer_bench.bench.backends import (
    choose_devices,
    find_distributor,
    likely_devices,
    make_executor,
)
from flashinfer_bench.bench.builds import BuildAhead, BuildOutcome
from flashinfer_bench.bench.config import LOG_LEVELS, BenchmarkConfig
from flashinfer_bench.bench.evaluation import NotEvaluated
from flashinfer_bench.bench.plan import Plan, SkipKind, Skipped, WorkItem, finished, make_plan
from flashinfer_bench.bench.pool import LAST_WORDS_S, RunInterrupted, default_jobs, in_thread
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.bench.session import IsolatedRunner, PersistentRunner
from flashinfer_bench.data import Evaluation, Solution, Trace, TraceSet
from flashinfer_bench.data.layout import TRACES
from flashinfer_bench.plugins import Catalog, default_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from flashinfer_bench.bench.backends import DeviceRunner, Distributor
    from flashinfer_bench.bench.executors.base import Executor
    from flashinfer_bench.bench.observers import RunObserver

logger = logging.getLogger(__name__)


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
        Are notified of what happens.
    catalog : Catalog, optional
        Where builders, timers, evaluators and executors come from; by default all installed ones.

    Attributes
    ----------
    config : BenchmarkConfig
        The settings of `run_all`.
    observers : sequence of RunObserver
        Are notified of what happens in the next run.

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
        self.observers: Sequence[RunObserver] = tuple(observers)
        self._trace_set = trace_set
        self._log_level = log_level
        self._catalog = default_catalog() if catalog is None else catalog
        self._pending: list[Trace] = []
        self._skipped: tuple[Skipped, ...] = ()
        self._executors: dict[tuple[str, Optional[str]], Executor] = {}
        self._runners: Sequence[DeviceRunner] = ()
        self._processes = ExitStack()
        self._entered = False
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

    def interrupt(self) -> None:
        """End the run that is going on, if one is; to be called from another thread.

        The evaluation in hand is killed and has no result. The run returns the traces of those that
        had ended, and the next run is an ordinary one. A run that is only about to begin is not
        ended: call it again until the run has returned.
        """
        for runner in self._runners:
            runner.interrupt()

    def close(self) -> None:
        """End all child processes; idempotent.

        Each run does so at its end, but within a ``with`` statement, whose runs share them.
        """
        self._processes.close()

    def __enter__(self) -> Benchmark:
        self._entered = True
        return self

    def __exit__(self, *error: object) -> None:
        self._entered = False
        self.close()

    def _run(self, config: BenchmarkConfig, *, dump_traces: bool, resume: bool) -> TraceSet:
        _set_log_level(config, self._log_level)
        self._skipped = ()
        config = config.seeded()
        if (distributor := find_distributor(self._catalog, config)) is not None:
            with closing(distributor):
                return self._distribute(distributor, dump_traces, resume)
        with self._processes as processes:
            likely = likely_devices(config.device)
            for device in likely:  # torch is imported there, and here
                with suppress(errors.FibError):  # it is met again
                    self._executor(device, config.executor)
            devices = choose_devices(config.device)
            for device in set(likely).difference(devices):
                if (unused := self._executors.pop((device, config.executor), None)) is not None:
                    unused.close()
            results = self._run_on(devices, config, dump_traces, resume)
            if self._entered:
                self._processes = processes.pop_all()
        return results

    def _executor(self, device: str, name: Optional[str]) -> Executor:
        """Return the executor of a device, which begins to start."""
        found = self._executors.get((device, name))
        if found is None:
            found = self._executors[device, name] = make_executor(self._catalog, device, name)
            self._processes.callback(found.close)
            self._processes.callback(self._executors.clear)
        with suppress(errors.RunnerFatalError, OSError):  # `start` meets it again
            found.begin()
        return found

    def _run_on(
        self, devices: Sequence[str], config: BenchmarkConfig, store: bool, resume: bool
    ) -> TraceSet:
        trace_set, catalog, device = self._trace_set, self._catalog, devices[0]
        executors = [self._executor(one, config.executor) for one in devices]
        sandbox = Sandbox(config.sandbox, catalog, dataset=trace_set.root)
        if store and trace_set.root is not None:
            with suppress(OSError):  # only what is there can be hidden from solutions
                (trace_set.root / TRACES).mkdir(exist_ok=True)
        kind = IsolatedRunner if config.use_isolated_runner else PersistentRunner
        runners = [
            kind(executor.device, executor=executor, catalog=catalog, sandbox=sandbox)
            for executor in executors
        ]
        self._runners = runners
        for runner in runners:  # a timer that is not there is told once, not for each evaluation
            runner.require_timer(config.timer, trust=config.trust, cache=config.cache)
        plan = self._plan(runners, config, resume, device=device)
        run = RunRecord(trace_set, config, self.observers, store=store, hook=catalog.hook)
        ahead = BuildAhead(
            plan.builds,
            executors[0],
            jobs=config.build_jobs or default_jobs(),
            timeout_s=config.timeout_seconds,
            overlap=device != "cpu",
            sandbox=sandbox,
            on_finished=run.build_finished,
        )
        try:
            sandbox.require(executors[0])
            with ExitStack() as running:
                for runner in runners:
                    running.enter_context(runner.measurement(config).running(config))
                    runner.ahead = ahead
                return self._carry_out(run, plan, runners, ahead)
        finally:
            sandbox.tidy()

    def _distribute(self, distributor: Distributor, store: bool, resume: bool) -> TraceSet:
        trace_set, config = self._trace_set, distributor.config
        runners = self._runners = distributor.open(trace_set)
        plan = self._plan(runners, config, resume, distributor=distributor)
        run = RunRecord(trace_set, config, self.observers, store=store, hook=self._catalog.hook)
        return self._carry_out(run, plan, runners)

    def _plan(
        self,
        runners: Sequence[DeviceRunner],
        config: BenchmarkConfig,
        resume: bool,
        *,
        device: Optional[str] = None,
        distributor: Optional[Distributor] = None,
    ) -> Plan:
        """Plan the run; if its devices differ, each kind of hardware gets every evaluation."""
        told = resume or distributor is not None or len(runners) > 1
        plans = {}
        for hardware in sorted({one.environment.hardware for one in runners} if told else {""}):
            done = finished(self._trace_set, {hardware}) if resume else ()
            elsewhere = partial(distributor.obstacle, hardware=hardware) if distributor else None
            plans[hardware] = make_plan(
                self._trace_set, config, self._catalog, done, device=device, elsewhere=elsewhere
            )
        return Plan.of(plans)

    def _carry_out(
        self,
        run: RunRecord,
        plan: Plan,
        runners: Sequence[DeviceRunner],
        ahead: Optional[BuildAhead] = None,
    ) -> TraceSet:
        try:
            run.carry_out(plan, runners, ahead)
        finally:
            self._skipped = tuple(run.skipped)
            self._pending += run.unsaved
        return run.results()


def _set_log_level(config: BenchmarkConfig, log_level: str) -> None:
    level = config.log_level if "log_level" in config.model_fields_set else log_level.upper()
    if level not in LOG_LEVELS:
        raise errors.ConfigError(f"log level {log_level!r} is not one of {', '.join(LOG_LEVELS)}")
    logging.getLogger("flashinfer_bench.bench").setLevel(level)


class Scheduler:
    """Works off items with several runners at once.

    Each runner gets a thread of its own; the calling thread only waits. So Ctrl-C, which Python
    delivers to the main thread, never breaks into an evaluation or into writing a trace: the
    processes of the candidates are killed, the threads notice and end, and what was finished
    before is stored.

    A runner goes on with the definition that it has worked on, since what it has built stays of
    use; else it begins with the one that has most evaluations left for each runner, the first among
    equals.

    Parameters
    ----------
    items : iterable of WorkItem
        The work, in the preferred order.
    runners : sequence of DeviceRunner
        One for each device.
    work : callable
        ``work(runner, item)`` does one item. If it raises `RunnerFatalError` the device is given up
        and the others go on; whatever else it raises ends the run.
    """

    def __init__(
        self,
        items: Iterable[WorkItem],
        runners: Sequence[DeviceRunner],
        work: Callable[[DeviceRunner, WorkItem], None],
    ) -> None:
        self._runners, self._work = runners, work
        # By hardware, then by definition.
        self._waiting: dict[Optional[str], dict[str, deque[WorkItem]]] = {}
        for item in items:
            self._group(item).append(item)
        # Items that are being worked on, and may yet be put back; by hardware and definition.
        self._in_hand: Counter[tuple[Optional[str], str]] = Counter()
        self._changed = threading.Condition()
        self._stopping = False
        self._lost: Optional[errors.RunnerFatalError] = None

    def run(self) -> None:
        """Work until nothing is left.

        Raises
        ------
        RunnerFatalError
            If work is left, but no device to do it on.
        Exception
            What `work` has raised otherwise.
        """
        # Made before any thread: Ctrl-C may come while they are being started.
        serving: list[Future[None]] = [Future() for _ in self._runners]
        try:
            for one, future in zip(self._runners, serving, strict=True):
                in_thread(f"fib-device-{one.device}", self._serve, one, result=future)
            wait(serving, return_when=FIRST_EXCEPTION)
        finally:
            if not all(future.done() for future in serving):
                with self._changed:
                    self._stopping = True
                    self._changed.notify_all()
                for runner, future in zip(self._runners, serving, strict=True):
                    runner.interrupt()
                    if future.cancel():  # its thread had not begun
                        runner.close()
                begun = [future for future in serving if not future.cancelled()]
                wait(begun, timeout=LAST_WORDS_S)
        for future in serving:
            if future.done() and not future.cancelled():
                future.result()
        left = (group for groups in self._waiting.values() for group in groups.values())
        if self._lost is not None and any(left):
            raise self._lost

    def put_back(self, item: WorkItem) -> None:
        """Take an item back that could not be worked on."""
        with self._changed:
            self._group(item).appendleft(item)

    def _group(self, item: WorkItem) -> deque[WorkItem]:
        groups = self._waiting.setdefault(item.hardware, {})
        return groups.setdefault(item.definition.name, deque())

    def _serve(self, runner: DeviceRunner) -> None:
        definition = ""
        try:
            hardware = runner.environment.hardware if self._waiting.keys() - {None} else None
            while not runner.interrupted and (item := self._take(hardware, definition)) is not None:
                definition = item.definition.name
                try:
                    self._work(runner, item)
                finally:
                    with self._changed:
                        self._in_hand[hardware, definition] -= 1
                        self._changed.notify_all()
        except RunInterrupted:
            logger.debug("%s: interrupted", runner.device)
        except errors.RunnerFatalError as error:
            logger.error("giving up on %s: %s", runner.device, error)
            self._lost = error
        finally:
            runner.close()

    def _share(self, group: deque[WorkItem]) -> float:
        """Return how many evaluations there are for each runner, if another one comes."""
        count = sum(len(item.solutions) for item in group)
        return count / (1 + self._in_hand[group[0].hardware, group[0].definition.name])

    def _take(self, hardware: Optional[str], definition: str) -> Optional[WorkItem]:
        """Take an item; None once there is none and none can come back from a lost device."""
        with self._changed:
            groups = self._waiting.get(hardware, {})
            while not self._stopping:
                left = filter(None, groups.values())
                group = groups.get(definition) or max(left, key=self._share, default=())
                if group:
                    self._in_hand[hardware, group[0].definition.name] += 1
                    return group.popleft()
                if not self._in_hand.total():
                    return None
                self._changed.wait()
        return None


@dataclass
class RunRecord:
    """One pass over a plan: what it is told by the runners, and what it tells and stores.

    Attributes
    ----------
    trace_set : TraceSet
        The dataset.
    config : BenchmarkConfig
        The settings.
    observers : sequence of RunObserver
        Whom to tell.
    store : bool
        Whether traces are added to the dataset.
    hook : object
        Calls the lifecycle hooks of plugins; see `Catalog.hook`.
    total : int
        How many evaluations there are.
    skipped : list of Skipped
        What could not be evaluated.
    unsaved : list of Trace
        What has not been added to the dataset.
    """

    trace_set: TraceSet
    config: BenchmarkConfig
    observers: Sequence[RunObserver]
    store: bool
    hook: Any
    total: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    unsaved: list[Trace] = field(default_factory=list)
    _traces: dict[str, list[Trace]] = field(default_factory=dict)
    # Threads of several devices report here.
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def carry_out(
        self, plan: Plan, runners: Sequence[DeviceRunner], ahead: Optional[BuildAhead] = None
    ) -> None:
        """Do everything in `plan`.

        Parameters
        ----------
        plan : Plan
            What to do.
        runners : sequence of DeviceRunner
            One for each device.
        ahead : BuildAhead, optional
            Compiles what `plan` says can be compiled ahead.
        """
        self._scheduler = Scheduler(plan.items, runners, self._work)
        self.total = plan.total
        for entry in plan.skipped:
            self._skip(entry)
        self._tell("started", plan.total)
        self.hook.fib_run_started(run=self)
        if plan.resumed:
            logger.info("%d evaluations already have a result", plan.resumed)
        try:
            with ExitStack() as building:
                if plan.builds:
                    self._tell("builds_started", len(plan.builds))
                if ahead is not None:
                    building.enter_context(closing(ahead)).start()
                self._scheduler.run()
                if ahead is not None:
                    ahead.check()
        finally:
            self._tell("finished")
            self.hook.fib_run_finished(run=self)

    def build_finished(self, outcome: BuildOutcome) -> None:
        """Tell that a solution has been compiled, or could not be; from any thread."""
        logger.info("%s: %s in %.1f s", outcome.solution, outcome.state, outcome.seconds)
        self._tell("build_finished", outcome)

    def results(self) -> TraceSet:
        """Return the dataset with the traces of this run only."""
        return TraceSet(
            root=self.trace_set.root,
            definitions=dict(self.trace_set.definitions),
            solutions={name: list(group) for name, group in self.trace_set.solutions.items()},
            workloads={name: list(group) for name, group in self.trace_set.workloads.items()},
            traces={name: list(group) for name, group in self._traces.items()},
        )

    def _work(self, runner: DeviceRunner, item: WorkItem) -> None:
        """Evaluate the solutions of one workload."""
        done: set[str] = set()

        def start(solution: Solution) -> None:
            self._tell("evaluation_started", item.definition.name, item.workload, solution.name)

        def skip(solution: Solution, why: Exception) -> None:
            kind: SkipKind = "reference"
            if isinstance(why, (errors.CapabilityError, NotEvaluated)):
                kind = "capability"
            elif isinstance(why, errors.DataError):
                kind = "workload"
            place = item.definition.name, solution.name, item.workload.uuid
            self._skip(Skipped(kind, *place, 1, str(why)))
            done.add(solution.name)

        try:
            for solution, evaluation in runner.evaluate_each(
                item.definition,
                item.workload,
                item.solutions,
                self.config,
                self.trace_set.root,
                on_start=start,
                on_skip=skip,
            ):
                self._record(item, solution, evaluation)
                done.add(solution.name)
        except (RunInterrupted, errors.StorageError):
            raise
        except errors.RunnerFatalError:
            if (left := item.without(done)) is not None:
                self._scheduler.put_back(left)
            raise
        except (errors.RunnerError, errors.DataError, errors.CapabilityError) as error:
            for solution in item.solutions:
                if solution.name not in done:
                    skip(solution, error)

    def _tell(self, event: str, *what: object) -> None:
        with self._lock:
            for observer in self.observers:
                getattr(observer, event)(*what)

    def _record(self, item: WorkItem, solution: Solution, evaluation: Evaluation) -> None:
        trace = Trace(
            definition=item.definition.name,
            workload=item.workload,
            solution=solution.name,
            evaluation=evaluation,
        )
        with self._lock:
            self._traces.setdefault(trace.definition, []).append(trace)
            self.unsaved.append(trace)
            if self.store:
                self.trace_set.add_traces([trace])
                self.unsaved.pop()
            speed = evaluation.performance
            logger.info(
                "%s / %s / %s: %s%s",
                trace.definition,
                trace.workload.uuid,
                trace.solution,
                evaluation.status.value,
                f", {speed.latency_ms:.6g} ms" if speed else "",
            )
            self._tell("evaluation_finished", trace)
            self.hook.fib_evaluated(run=self, trace=trace)

    def _skip(self, entry: Skipped) -> None:
        with self._lock:
            self.skipped.append(entry)
            where = f" on {entry.workload}" if entry.workload else ""
            logger.warning("skipped %s%s: %s", entry.solution, where, entry.reason)
            self._tell("skipped", entry)
