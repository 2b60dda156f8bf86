"""What agents ask for: the records of datasets, and evaluations by warm benchmarks or a service."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar

from flashinfer_bench.bench.backends import choose_devices, make_executor
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.observers import RunObserver
from flashinfer_bench.bench.sandbox import strictest
from flashinfer_bench.data import EvaluationStatus, Solution, Trace, TraceSet, Workload, layout
from flashinfer_bench.data.json_codec import load_json_file, save_json_file
from flashinfer_bench.data.loader import read_workloads
from flashinfer_bench.errors import (
    ConfigError,
    ConflictError,
    FibError,
    StorageError,
    UnknownNameError,
)
from flashinfer_bench.plugins import default_catalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fib_serve.client import Client, TaskView
    from flashinfer_bench.bench import Benchmark, Skipped
    from flashinfer_bench.bench.builds import BuildOutcome
    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.executors.base import Executor
    from flashinfer_bench.data import Definition

logger = logging.getLogger(__name__)

Tell = Callable[[float, Optional[float], str], None]
"""Takes steps done, steps in all, and a message; from any thread."""

_T = TypeVar("_T")
_BASELINE = "baseline"
_ENDING_S = 1.0  # clients of a server on stdio wait for two seconds, then kill it
_REMOTE_CALLS = 8
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0  # between attempts to end a call
_CANCEL_TRIES = 30  # of a task, while its service is away


class CallCancelled(FibError):
    """Nobody waits for the result any more."""


class Call(Generic[_T]):
    """Work for a device: how far it is, its outcome, and how it is ended.

    Parameters
    ----------
    work : callable
        ``work(call, device)`` does it.
    tell : callable
        Takes steps done, steps in all, and a message; from any thread.

    Attributes
    ----------
    outcome : Future
        The result.
    cancelled : bool
        Whether nobody waits any more.
    """

    def __init__(self, work: Callable[[Call[_T], Device], _T], tell: Tell) -> None:
        self._work = work
        self.tell = tell
        self.outcome: Future[_T] = Future()
        self.cancelled = False
        self._stop: Optional[Callable[[], None]] = None
        self._lock = threading.Lock()  # what follows on the device must not be ended

    def run(self, device: Device) -> None:
        """Do the work, unless it has been cancelled before."""
        if not self.outcome.set_running_or_notify_cancel():
            return
        try:
            self.outcome.set_result(self._work(self, device))
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            self.outcome.set_exception(error)

    def check(self) -> None:
        """Raise `CallCancelled` if nobody waits any more."""
        if self.cancelled:
            raise CallCancelled("the call was cancelled")

    def cancel(self) -> None:
        """End the work; from any thread, at any time."""
        self.cancelled = True
        if not self.outcome.cancel():
            threading.Thread(target=self._end, name="fib-cancel", daemon=True).start()

    @contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Have `stop` called, more than once, if the call is cancelled meanwhile."""
        with self._lock:
            self._stop = stop
        try:
            yield
        finally:
            with self._lock:
                self._stop = None

    def _end(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self.outcome.done():  # the first time may be before the run has begun
            with self._lock, suppress(FibError):
                if self._stop is not None:
                    self._stop()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


@dataclass(frozen=True)
class Evaluated:
    """The evaluation of a solution.

    Attributes
    ----------
    definition : Definition
        What it solves.
    solution : Solution
        It, under the name that its traces have.
    traces : sequence of Trace
        One for each workload that was evaluated.
    trace_set : TraceSet
        What feedback is made from.
    skipped : sequence of str
        Why there are no more traces.
    diagnoses : mapping
        By uuid of the workload.
    saved : bool
        Whether solution and traces are in a dataset.
    earlier : sequence of Trace
        Runs of the definition that came before and that `trace_set` lacks.
    settings : mapping
        The settings of an evaluation by uuid of the workload, if they are known.
    """

    definition: Definition
    solution: Solution
    traces: Sequence[Trace]
    trace_set: TraceSet
    skipped: Sequence[str] = ()
    diagnoses: Mapping[str, Any] = field(default_factory=dict)
    saved: bool = True
    earlier: Sequence[Trace] = ()
    settings: Mapping[str, ResolvedEvalConfig] = field(default_factory=dict)


def _check_same(found: Solution, solution: Solution, where: str) -> None:
    if (found.name, found.definition, found.hash()) != (
        solution.name,
        solution.definition,
        solution.hash(),
    ):
        hint = "give the solution another name"
        raise ConflictError(f"{where} has another solution {found.name!r}", hint=hint)


# ------------------------------------------------------------------------------------- datasets

_OF_SCORE = (
    *("rank", "solution", "author", "language", "hardware", "timer", "cache"),
    *("workloads", "passed"),
)


class Datasets:
    """The records of some datasets, and what agents add to them.

    They are read when first needed, and again if a name is unknown.

    Parameters
    ----------
    roots : sequence of Path
        Their folders.
    save : bool
        Whether solutions and traces are written; otherwise they are kept in memory.
    """

    def __init__(self, roots: Sequence[Path], *, save: bool = True) -> None:
        self._roots = roots
        self.save = save
        self._lock = threading.RLock()
        self._read: dict[str, TraceSet] = {}
        self._added: dict[str, Solution] = {}
        self._traces: dict[str, list[Trace]] = {}

    def _sets(self, *, again: bool = False) -> dict[str, TraceSet]:
        """Return the dataset of each definition."""
        with self._lock:
            if again or not self._read:
                self._read = _distinct(self._roots)
                for solution in [] if self.save else self._added.values():
                    name = solution.definition
                    if name in self._read:  # its file may have gone
                        self._read[name].solutions.setdefault(name, []).append(solution)
            return self._read

    def _set_of(self, name: str) -> tuple[TraceSet, Definition]:
        for again in (False, True):
            sets = self._sets(again=again)
            if name in sets:
                return sets[name], sets[name].definitions[name]
        raise UnknownNameError.of("definition", [name], sets)

    def listed(self) -> list[dict[str, Any]]:
        """Return name, op_type and description of each definition."""
        shown = {"name", "op_type", "description"}
        every = self._sets().items()
        return [one.definitions[name].model_dump(include=shown) for name, one in every]

    def definition(self, name: str) -> Definition:
        """Return a definition; raise `UnknownNameError` if there is none."""
        return self._set_of(name)[1]

    def trace_set(self, definition: str) -> TraceSet:
        """Return the dataset that a definition is in."""
        return self._set_of(definition)[0]

    def root(self, definition: str) -> Path:
        """Return the folder of the dataset that a definition is in."""
        root = self.trace_set(definition).root
        assert root is not None
        return root

    def solutions(self, definition: str) -> list[Solution]:
        """Return the solutions of a definition."""
        self._sets(again=True)  # others may add some at any time
        return list(self.trace_set(definition).solutions.get(definition, ()))

    def solution(self, name: str) -> Solution:
        """Return a solution; raise `UnknownNameError` if there is none."""
        for again in (False, True):
            sets = self._sets(again=again).items()
            known = {one.name: one for key, each in sets for one in each.solutions.get(key, ())}
            if name in known:
                return known[name]
        raise UnknownNameError.of("solution", [name], known)

    def workloads(self, definition: str, uuids: Optional[Sequence[str]] = None) -> list[Trace]:
        """Return workload traces, by default all; raise `UnknownNameError` for unknown uuids."""
        return read_workloads(self.root(definition), self.definition(definition), uuids)

    def add(self, solution: Solution) -> Solution:
        """Add a solution, under a name that ends with a digest of its content; return it.

        Raises
        ------
        ConfigError
            If its author is the one that scores compare with.
        ConflictError
            If another one has this name.
        UnknownNameError
            If there is no such definition.
        StorageError
            If it cannot be written.
        """
        if solution.author == _BASELINE:
            hint = "give your own name"
            raise ConfigError(f"the author {_BASELINE!r} is not allowed here", hint=hint)
        if not solution.name.endswith(f"_{solution.hash()[:8]}"):
            solution = solution.with_unique_name()
        with self._lock:
            trace_set, definition = self._set_of(solution.definition)
            found = trace_set.get_solution(solution.name)
            if found is not None:
                _check_same(found, solution, f"the dataset {trace_set.root}")
                return found
            if self.save:
                self._write(solution, self.root(definition.name), definition)
            trace_set.solutions.setdefault(definition.name, []).append(solution)
            self._added[solution.name] = solution
        return solution

    @staticmethod
    def _write(solution: Solution, root: Path, definition: Definition) -> None:
        names = solution.author, definition.op_type, definition.name, solution.name
        path = layout.solution_file(root, *names)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                save_json_file(solution, path)
                return
            found = load_json_file(Solution, path)  # others have written it, or it was not valid
        except StorageError:
            raise
        except OSError as error:
            told = f"{path} cannot be written: {error.strerror or error}"
            hint = "make the folder writable, or keep solutions in memory: --no-save"
            raise StorageError(told, hint=hint) from error
        _check_same(found, solution, str(path))

    def kept(self, definition: str) -> list[Trace]:
        """Return the traces that are kept in memory."""
        return list(self._traces.get(definition, ()))

    def keep(self, traces: Iterable[Trace]) -> None:
        """Add traces to the dataset of their definition, or keep them in memory."""
        for trace in traces:
            if self.save:
                self.trace_set(trace.definition).add_traces([trace])
            else:
                self._traces.setdefault(trace.definition, []).append(trace)

    def leaderboard(self, definition: str) -> list[dict[str, Any]]:
        """Return the scores of the solutions of a definition, the best first."""
        from fib_report.results import collect_results, latest_results, with_intervals
        from fib_report.scores import score_solutions
        from flashinfer_bench.data.selection import Selection

        sources = [TraceSet.from_path(self.root(definition), on_error="collect")]
        if not self.save:
            read, found = self._set_of(definition)
            solutions = {definition: read.solutions.get(definition, [])}
            kept = {definition: self.kept(definition)}
            sources.append(TraceSet(None, {definition: found}, solutions, traces=kept))
        wanted = Selection(definitions=(definition,))
        results = [one for source in sources for one in collect_results(source, wanted)]
        scores = score_solutions(with_intervals(latest_results(results)))
        return [_row(score) for score in scores]


def _distinct(roots: Iterable[Path]) -> dict[str, TraceSet]:
    """Read datasets; return the one of each definition."""
    found: dict[str, TraceSet] = {}
    for one in (TraceSet.from_path(root, on_error="collect") for root in roots):
        for name in one.definitions:
            if name in found:
                raise ConflictError(
                    f"the definition {name!r} is in {found[name].root} and in {one.root}",
                    hint="name datasets with --local that have no definition in common",
                )
            found[name] = one
    return found


def _row(score: Any) -> dict[str, Any]:
    latency, speedup = score.latency, score.speedup
    marks = {
        "latencies are disputed": score.disputed,
        "results may come from memory": score.replayable,
        "passed by a loose tolerance": score.loose,
    }
    return {
        **{name: getattr(score, name) for name in _OF_SCORE},
        "latency_ms": latency and latency.value,
        "latency_interval_ms": list(latency.ends) if latency and latency.ends else None,
        "speedup": speedup and speedup.value,
        "notes": [f"{text} on {count} workloads" for text, count in marks.items() if count],
    }


# -------------------------------------------------------------------------------------- devices


class _Subject(TraceSet):
    """What is evaluated now; its traces go to `Datasets`."""

    def __init__(self, datasets: Datasets) -> None:
        super().__init__()
        self._datasets = datasets

    def hold(self, solution: Solution, workloads: list[Trace]) -> None:
        """Take what is to be evaluated next."""
        definition = self._datasets.definition(solution.definition)
        self.root = self._datasets.root(definition.name)
        self.definitions = {definition.name: definition}
        self.solutions = {definition.name: [solution]}
        self.workloads = {definition.name: workloads}

    def add_traces(self, traces: Iterable[Trace]) -> None:
        self._datasets.keep(traces)


class _Watch(RunObserver):
    """Tells the progress: two steps for each workload, and half a one for a build."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._done, self._total, self._number, self._where = 0.0, 0, 0, ""

    def started(self, total: int) -> None:
        self._total = total

    def build_finished(self, outcome: BuildOutcome) -> None:
        self._say(0.5, f"{outcome.state} in {outcome.seconds:.1f} s")

    def evaluation_started(self, definition: str, workload: Workload, solution: str) -> None:
        self._number += 1
        self._where = f"workload {workload.uuid} ({self._number} of {self._total})"
        self._say(1.0, f"{self._where}: building, checking and timing")

    def evaluation_finished(self, trace: Trace) -> None:
        run = trace.evaluation
        assert run is not None
        speed = f", {run.performance.latency_ms:.4g} ms" if run.performance is not None else ""
        checked = "checked and timed: " if run.performance is not None else ""
        self._say(1.0, f"{self._where}: {checked}{run.status.value}{speed}")

    def _say(self, steps: float, message: str) -> None:
        self._done += steps
        self._tell(self._done, 2.0 * self._total + 0.5, message)


@dataclass(eq=False)
class Device:
    """A device with a warm benchmark, which works off calls in one thread.

    Parameters
    ----------
    name : str
        ``cpu`` or ``cuda:N``.
    settings : mapping
        As for `BenchmarkConfig.default`.
    datasets : Datasets
        What is evaluated.
    calls : queue
        What to do; None ends it.
    """

    name: str
    settings: Mapping[str, Any]
    datasets: Datasets
    calls: queue.SimpleQueue[Optional[Call[Any]]]

    def __post_init__(self) -> None:
        self._subject = _Subject(self.datasets)
        self._opened = ExitStack()
        # Child processes may end with the thread that started them, so there is one for all calls.
        self.thread = threading.Thread(target=self._serve, name=f"fib-{self.name}", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with self._opened:
            while (call := self.calls.get()) is not None:
                call.run(self)

    @cached_property
    def config(self) -> BenchmarkConfig:
        """The settings; the sandbox is strict where that is possible, unless they say otherwise."""
        given = {"tolerance": "dtype", **self.settings}  # nobody wins by computing less precisely
        if "sandbox" not in given:
            given["sandbox"] = strictest(self.executor, default_catalog())
        return BenchmarkConfig.default(**{**given, "device": choose_devices(self.name)[0]})

    @cached_property
    def executor(self) -> Executor:
        """Starts processes for diagnoses."""
        name = BenchmarkConfig.default(**self.settings).executor
        made = make_executor(default_catalog(), choose_devices(self.name)[0], name)
        return self._opened.enter_context(closing(made))

    @cached_property
    def benchmark(self) -> Benchmark:
        """The benchmark, whose processes stay."""
        from flashinfer_bench.bench import Benchmark

        return self._opened.enter_context(Benchmark(self._subject, self.config))

    def evaluate(
        self, call: Call[Any], solution: Solution, workloads: list[Trace]
    ) -> tuple[list[Trace], tuple[Skipped, ...]]:
        """Evaluate a solution; return its traces, and what was skipped."""
        self._subject.hold(solution, workloads)
        benchmark = self.benchmark
        benchmark.observers = (_Watch(call.tell),)
        with call.stopped_by(benchmark.interrupt):
            call.check()
            results = benchmark.run_all()
        call.check()
        return results.traces.get(solution.definition, []), benchmark.skipped

    def diagnose(
        self, call: Call[Any], definition: Definition, solution: Solution, trace: Trace
    ) -> Any:
        """Return why outputs are wrong; None if that cannot be found out."""
        assert self._subject.root is not None
        return diagnosed(
            *(definition, solution, trace, self._subject.root),
            sandbox=self.config.sandbox,
            executor=self.executor,
            config=self.config.resolve_eval_config(definition, trace.workload),
            call=call,
        )[0]


def diagnosed(
    definition: Definition, solution: Solution, trace: Trace, root: Optional[Path], **options: Any
) -> tuple[Any, str]:
    """Find out why outputs are wrong.

    Parameters
    ----------
    definition, solution, trace : Definition, Solution, Trace
        What was wrong, and the run that showed it.
    root : Path or None
        Folder of the dataset.
    **options
        Further arguments of `fib_agents.diagnosis.diagnose`.

    Returns
    -------
    diagnosis : Diagnosis, optional
        None if there is none.
    note : str
        Why there is none.

    Raises
    ------
    CallCancelled
        If the call among `options` was cancelled.
    """
    from fib_agents import diagnosis

    try:
        seeds = diagnosis.seeds_of(trace)
        found = diagnosis.diagnose(
            definition, solution, trace.workload, root, seeds=seeds, **options
        )
    except CallCancelled:
        raise
    except Exception as error:
        reason = error.message if (told := isinstance(error, FibError)) else repr(error)
        logger.warning("%s is not diagnosed: %s", solution.name, reason, exc_info=not told)
        return None, f"not made: {reason}"
    return found, ""


class LocalJudge:
    """Evaluates solutions of datasets here, one at a time on each device.

    Parameters
    ----------
    datasets : Datasets
        The records.
    devices : sequence of str
        ``cpu``, ``cuda:N``.
    settings : mapping
        As for `BenchmarkConfig.default`, but that tolerances go by dtype by default, and that the
        sandbox is strict where the system offers that.
    """

    def __init__(
        self, datasets: Datasets, devices: Sequence[str], settings: Mapping[str, Any]
    ) -> None:
        self.records = datasets
        self._calls: queue.SimpleQueue[Optional[Call[Any]]] = queue.SimpleQueue()
        self._current: set[Call[Any]] = set()
        self._devices = [Device(name, settings, datasets, self._calls) for name in devices]

    def begin(self, work: Callable[[Call[_T], Device], _T], tell: Tell) -> Call[_T]:
        """Put work into the queue of the devices."""
        call = Call(work, tell)
        self._current.add(call)
        call.outcome.add_done_callback(lambda _: self._current.discard(call))
        self._calls.put(call)
        return call

    def evaluate(
        self,
        solution: Solution,
        uuids: Optional[Sequence[str]],
        tell: Tell,
        *,
        new: bool,
        diagnose: bool,
    ) -> Call[Evaluated]:
        """Begin to evaluate a solution.

        Parameters
        ----------
        solution : Solution
            What to evaluate.
        uuids : sequence of str, optional
            Of workloads; by default all.
        tell : callable
            Takes the progress.
        new : bool
            Whether to add the solution to the dataset.
        diagnose : bool
            Whether to look for the reason if outputs are wrong.
        """
        datasets = self.records
        workloads = datasets.workloads(solution.definition, uuids)
        if not workloads:
            hint = "'fib new workload' adds one"
            raise ConfigError(f"{solution.definition!r} has no workloads", hint=hint)
        if new:
            solution = datasets.add(solution)
        definition = datasets.definition(solution.definition)

        def work(call: Call[Evaluated], device: Device) -> Evaluated:
            earlier = datasets.kept(definition.name)
            traces, skipped = device.evaluate(call, solution, workloads)
            diagnoses = {}
            for trace in [one for one in traces if diagnose and _is_wrong(one)][:1]:
                call.tell(2.0 * len(workloads) + 0.4, 2.0 * len(workloads) + 0.5, "diagnosing")
                found = device.diagnose(call, definition, solution, trace)
                diagnoses[trace.workload.uuid] = found
                call.check()
            told = [f"{one.workload or one.solution}: {one.reason}" for one in skipped]
            resolve = device.config.resolve_eval_config
            settings = {one.workload.uuid: resolve(definition, one.workload) for one in traces}
            trace_set = datasets.trace_set(definition.name)
            return Evaluated(
                *(definition, solution, traces, trace_set, told, diagnoses, datasets.save),
                *(earlier, settings),
            )

        return self.begin(work, tell)

    def close(self) -> None:
        """End all calls and processes."""
        for call in list(self._current):
            call.cancel()
        for _ in self._devices:
            self._calls.put(None)
        until = time.monotonic() + _ENDING_S
        for device in self._devices:
            device.thread.join(max(0.0, until - time.monotonic()))


def _is_wrong(trace: Trace) -> bool:
    run = trace.evaluation
    return run is not None and run.status is EvaluationStatus.INCORRECT_NUMERICAL


# ------------------------------------------------------------------------------------ a service


class RemoteRecords:
    """The records of a service, as `Datasets` has them.

    Parameters
    ----------
    client : Client
        The service.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.submitted: dict[str, Solution] = {}

    def listed(self) -> list[dict[str, Any]]:
        """Return name, op_type and description of each definition; older services lack the type."""
        return [{"op_type": "", **row} for row in self._client.definitions()]

    def definition(self, name: str) -> Definition:
        """Return a definition; the error for an unknown name is the service's."""
        return self._client.definition(name)

    def solutions(self, definition: str) -> list[Solution]:
        """Return the solutions that were submitted from here; a service gives out no others."""
        self.definition(definition)
        return [one for one in self.submitted.values() if one.definition == definition]

    def solution(self, name: str) -> Solution:
        """Return a solution that was submitted from here."""
        if name not in self.submitted:
            raise UnknownNameError.of("solution that was submitted here", [name], self.submitted)
        return self.submitted[name]

    def workloads(self, definition: str) -> list[Trace]:
        """Return workload traces, except hidden ones."""
        rows = self._client.workloads(definition)
        found = [Workload.model_validate(row.get("workload", row)) for row in rows]
        return [Trace(definition=definition, workload=one) for one in found]

    def leaderboard(self, definition: str) -> list[dict[str, Any]]:
        """Return the ranked solutions of a definition."""
        return self._client.leaderboard(definition)


class RemoteJudge:
    """Has solutions evaluated by a service of ``fib serve``.

    Parameters
    ----------
    client : Client
        The service.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.records = RemoteRecords(client)
        self._slots = threading.Semaphore(_REMOTE_CALLS)

    def evaluate(
        self, solution: Solution, uuids: Optional[Sequence[str]], tell: Tell, **_: Any
    ) -> Call[Evaluated]:
        """Begin to evaluate a solution, as `LocalJudge.evaluate`; the service does not diagnose."""

        def work(call: Call[Evaluated], device: Any) -> Evaluated:
            with self._slots:
                return self._evaluate(call, solution, uuids)

        call = Call(work, tell)
        threading.Thread(target=call.run, args=(None,), name="fib-remote", daemon=True).start()
        return call

    def _evaluate(
        self, call: Call[Evaluated], solution: Solution, uuids: Optional[Sequence[str]]
    ) -> Evaluated:
        client = self._client
        call.check()
        task = client.submit(solution, uuids)
        solution = solution.model_copy(update={"name": task.solution})
        self.records.submitted[solution.name] = solution

        tries = iter(range(_CANCEL_TRIES))

        @cache  # asking once is enough
        def stop() -> None:
            if next(tries, None) is not None:
                client.cancel(task.task_id)

        with call.stopped_by(stop):
            view = self._follow(call, task.task_id)
        call.check()
        traces = view.evaluated()
        if not traces:
            told = view.error or f"the task is {view.status.value}"
            raise ConfigError(f"{client.url}: {told}", hint="correct the solution, or try again")
        definition = client.definition(solution.definition)
        trace_set = TraceSet(None, {definition.name: definition}, {definition.name: [solution]})
        skipped = [view.error] if view.error else []
        return Evaluated(definition, solution, traces, trace_set, skipped)

    def _follow(self, call: Call[Evaluated], task_id: str) -> TaskView:
        total = self._client.task(task_id).workloads
        for number, event in enumerate(self._client.events(task_id), 1):
            workload = event.data.get("workload")
            where = f" workload {workload}" if workload else ""
            call.tell(number, 2.0 * total + 4 if total else None, f"{event.kind}{where}")
        return self._client.wait(task_id)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
