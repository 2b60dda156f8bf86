"""The process that evaluates tasks on one device: ``python -m fib_serve.worker``.

Each result is recorded in the database, then appended to the dataset, then marked as exported. A
process that is killed in between leaves results that are not marked; whoever goes on looks whether
the dataset holds their traces. So nothing is lost, and nothing is there twice.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sqlite3
import sys
import threading
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Optional

from fib_serve.records import TaskStatus
from fib_serve.store import Store
from fib_serve.supervisor import TRY_AGAIN
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.backends import choose_devices, make_executor
from flashinfer_bench.bench.observers import RunObserver
from flashinfer_bench.bench.sandbox import strictest
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, layout
from flashinfer_bench.data.json_codec import (
    append_jsonl_file,
    load_json_file,
    save_json_file,
    to_json,
)
from flashinfer_bench.data.loader import Problems, load_definitions, read_workloads
from flashinfer_bench.data.storage import locked
from flashinfer_bench.errors import (
    CapabilityError,
    ConflictError,
    DataError,
    FibError,
    RunnerFatalError,
    StorageError,
    UnknownNameError,
)
from flashinfer_bench.plugins import default_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fib_serve.records import Result, Task
    from flashinfer_bench.bench.plan import Skipped
    from flashinfer_bench.data import Workload

logger = logging.getLogger(__name__)

POLL_S = 1.0
"""How often a worker looks for tasks, and for cancellation, if nobody wakes it."""

# Between two signs of progress a run may compile, have the reference run, evaluate, measure again,
# and at each step wait for others on the device.
_STUCK_S, _STUCK_TIMEOUTS = 300.0, 8
_OF_TASKS = ("device", "definitions", "solutions")
_MAX_TORN_BYTES = 1 << 20  # of a line that a killed process left, which is then moved elsewhere


class DatasetWriter:
    """Reads what tasks name from a dataset, and brings their results there.

    Parameters
    ----------
    root : Path
        The dataset.
    store : Store
        Where results are recorded first.
    """

    def __init__(self, root: Path, store: Store) -> None:
        self.root = root
        self._store = store
        self._definitions: dict[str, Definition] = {}
        self._seen: frozenset[tuple[Path, int]] = frozenset()
        self._names: dict[Path, str] = {}

    def definition(self, name: str) -> Definition:
        """Return a definition as it is now.

        Raises
        ------
        UnknownNameError
            If there is none of that name.
        """
        files = layout.files(self.root / layout.DEFINITIONS, ".json")
        seen = frozenset((path, path.stat().st_mtime_ns) for path in files)
        if seen != self._seen:
            self._definitions = load_definitions(self.root, Problems("collect"))
            self._seen = seen
        if name not in self._definitions:
            raise UnknownNameError.of("definition", [name], self._definitions)
        return self._definitions[name]

    def size(self, definition: str) -> int:
        """Return how long the file is by now to which traces are appended."""
        path = self._traces_file(definition)
        return path.stat().st_size if path.exists() else 0

    def export(self, wanted: Callable[[Result], bool], since: int = 0) -> None:
        """Append the traces of recorded results that the dataset does not hold yet.

        Parameters
        ----------
        wanted : callable
            Tells which ones.
        since : int
            They cannot be before this place in their file.
        """
        with locked(self._store.path.with_name("export")):
            for result in filter(wanted, self._store.unexported()):
                try:
                    self._export(result, since)
                except StorageError:
                    raise
                except FibError as error:
                    logger.error("a trace of task %s cannot be kept: %s", result.task, error)
                else:
                    self._store.mark_exported(result.id)

    def _export(self, result: Result, since: int) -> None:
        assert result.trace is not None
        trace = Trace.model_validate(result.trace)
        path = self._traces_file(trace.definition)
        if not _holds(path, result.trace, since):
            solution = solution_of(self._store, result.task, str(trace.solution))
            if not self.has_solution(solution):
                save_json_file(solution, self._solution_file(solution))
            append_jsonl_file([trace], path)

    def _traces_file(self, definition: str) -> Path:
        op_type = self.definition(definition).op_type
        return layout.traces_file(self.root, op_type, definition)

    def has_solution(self, solution: Solution) -> bool:
        """Return whether the dataset has a file of this solution.

        Raises
        ------
        ConflictError
            If it has another solution of the same name.
        """
        path = self._solution_file(solution)
        known = path if path.exists() else self._file_of(solution.name)
        if known is not None and load_json_file(Solution, known).hash() != solution.hash():
            raise ConflictError(
                f"the dataset has another solution named {solution.name!r}",
                path=known,
                field="name",
                hint="submit it with another name",
            )
        return known is not None

    def _solution_file(self, solution: Solution) -> Path:
        op_type = self.definition(solution.definition).op_type
        names = solution.author, op_type, solution.definition, solution.name
        return layout.solution_file(self.root, *names)

    def _file_of(self, name: str) -> Optional[Path]:
        files = layout.files(self.root / layout.SOLUTIONS, ".json")
        for path in files:
            if path not in self._names:
                try:
                    self._names[path] = json.loads(path.read_bytes())["name"]
                except (OSError, ValueError, LookupError, TypeError):
                    continue  # 'fib validate' tells it
        return next((path for path in files if self._names.get(path) == name), None)


def solution_of(store: Store, task_id: str, name: str) -> Solution:
    """Return the solution of a task under the name that the task gives it."""
    content = Solution.model_validate(store.solution_of(task_id))
    return content if content.name == name else content.model_copy(update={"name": name})


def _holds(path: Path, record: dict[str, Any], since: int) -> bool:
    """Return whether a file has exactly this trace, at or after a place."""
    if not path.exists():
        return False
    needle = json.dumps(record["evaluation"]["timestamp"]).encode()
    with path.open("rb") as file:
        if since <= path.stat().st_size:
            file.seek(max(0, since - _MAX_TORN_BYTES))
        for line in file:
            if needle in line:
                try:
                    if json.loads(line) == record:
                        return True
                except ValueError:  # the beginning of the part, or an unfinished line
                    continue
    return False


def _is_of(task: str, workload: str, result: Result) -> bool:
    return (result.task, result.workload) == (task, workload)


class _TaskSet(TraceSet):
    """What a task is about; its traces go into the database, and from there to the dataset."""

    def __init__(self, writer: DatasetWriter, store: Store, tell: Callable[[], None]) -> None:
        super().__init__(writer.root)
        self._writer, self._store, self._tell_server = writer, store, tell
        self.task: Optional[Task] = None

    def hold(self, task: Task, solution: Solution, workloads: Sequence[str]) -> None:
        """Take what is to be evaluated next."""
        definition = self._writer.definition(task.definition)
        self.task = task
        self.definitions = {definition.name: definition}
        self.solutions = {definition.name: [solution]}
        found = read_workloads(self._writer.root, definition, workloads)
        self.workloads = {definition.name: found}

    def add_traces(self, traces: Iterable[Trace]) -> None:
        assert self.task is not None
        task = self.task.id
        for trace in traces:
            uuid, since = trace.workload.uuid, self._writer.size(trace.definition)
            self._store.record(task, uuid, json.loads(to_json(trace, indent=None)))
            self._writer.export(partial(_is_of, task, uuid), since)
            self._tell_server()


class _TaskObserver(RunObserver):
    """Tells the database how far a task is."""

    def __init__(self, store: Store, subject: _TaskSet, tell: Callable[[], None]) -> None:
        self._store, self._subject, self._tell = store, subject, tell
        self.skips: set[str] = set()

    def evaluation_started(self, definition: str, workload: Workload, solution: str) -> None:
        assert self._subject.task is not None
        self._store.stage(self._subject.task.id, workload.uuid, "evaluating")
        self._tell()

    def skipped(self, skipped: Skipped) -> None:
        task = self._subject.task
        assert task is not None
        self.skips.add(skipped.kind)
        uuids = task.workloads if skipped.workload is None else (skipped.workload,)
        for uuid in uuids:  # those that have a result keep it
            self._store.record(task.id, uuid, None, skipped.reason)
        self._tell()


class TaskWorker:
    """Works off tasks on one device, one at a time, until it is told to end.

    Parameters
    ----------
    store : Store
        The tasks.
    dataset : Path
        What they are about.
    device : str
        ``cpu`` or ``cuda:N``.
    name : str
        By which the store knows this worker.
    settings : dict
        As for `BenchmarkConfig.default`, but that tolerances go by dtype unless ``tolerance`` says
        otherwise. Without ``sandbox`` it is ``strict`` where the system
        offers that, otherwise ``auto``.
    send : callable
        Takes messages for the server.

    Raises
    ------
    ConfigError
        If a setting is not allowed.
    CapabilityError
        If there is no such device, or the settings ask for what this system does not offer.
    """

    def __init__(
        self,
        store: Store,
        dataset: Path,
        *,
        device: str,
        name: str,
        settings: dict[str, Any],
        send: Callable[[dict[str, Any]], None],
    ) -> None:
        self._store, self._name, self._send = store, name, send
        (self._device,) = choose_devices(device)
        given = {
            "tolerance": "dtype",  # nobody wins by computing in less precision than asked for
            **{
                key: value
                for key, value in settings.items()
                if value is not None and key not in _OF_TASKS
            },
        }
        self._config = BenchmarkConfig.default(**given, device=self._device)
        if "sandbox" not in given:
            catalog = default_catalog()
            with closing(make_executor(catalog, self._device, self._config.executor)) as executor:
                level = strictest(executor, catalog, dataset)
            self._config = BenchmarkConfig.default(**given, device=self._device, sandbox=level)
        self._writer = DatasetWriter(dataset, store)
        self._subject = _TaskSet(self._writer, store, self._tell)
        self._observer = _TaskObserver(store, self._subject, self._tell)
        self._benchmark = Benchmark(self._subject, self._config, observers=[self._observer])
        self._lock = threading.Lock()  # of the task: the next one must not be interrupted
        self._current: Optional[str] = None
        self._progress = time.monotonic()
        self._work, self._look = threading.Event(), threading.Event()

    def wake(self) -> None:
        """Look for tasks, and for cancellation, now; from any thread."""
        self._work.set()
        self._look.set()

    def run(self) -> None:
        """Work for ever.

        Raises
        ------
        RunnerFatalError
            If no process can be started on the device any more.
        StorageError
            If a result cannot be kept.
        """
        from flashinfer_bench.tensors import env_snapshot

        threading.Thread(target=self._watch, name="fib-serve-watch", daemon=True).start()
        self._writer.export(lambda result: True)
        hardware = env_snapshot(self._device).hardware
        self._send({"ready": {"device": self._device, "hardware": hardware}})
        with self._benchmark:
            while True:
                self._work.clear()
                self._progress = time.monotonic()
                task = self._store.claim(self._name)
                if task is None:
                    self._work.wait(POLL_S)
                    continue
                self._send({"task": task.id})
                self._tell()
                with self._lock:
                    self._current = task.id
                status, error = self._outcome(task)
                with self._lock:
                    self._current = None
                if self._store.is_cancelled(task.id):
                    status, error = TaskStatus.CANCELLED, None
                told = {}
                skips = self._observer.skips
                if status is TaskStatus.FAILED and skips and skips <= {"capability", "device"}:
                    told["code"] = "capability"
                self._store.finish(task.id, status, error, **told)
                self._send({"task": None})
                self._tell()

    def _outcome(self, task: Task) -> tuple[TaskStatus, Optional[str]]:
        """Evaluate a task; say how it ended."""
        self._observer.skips.clear()
        try:
            self._evaluate(task)
        except (StorageError, sqlite3.Error, RunnerFatalError):
            raise
        except FibError as error:
            if isinstance(error, CapabilityError):
                self._observer.skips.add("capability")
            return TaskStatus.FAILED, str(error)
        except Exception as error:  # the next task may be fine
            logger.exception("task %s", task.id)
            return TaskStatus.FAILED, f"the service has an error: {type(error).__name__}: {error}"
        results = {one.workload: one for one in self._store.results(task.id)}
        without = [
            uuid for uuid in task.workloads if uuid not in results or results[uuid].trace is None
        ]
        if not without:
            return TaskStatus.COMPLETED, None
        first = results.get(without[0])
        why = first.note if first is not None else "the run ended before it"
        count = f"{len(without)} of {len(task.workloads)}"
        return TaskStatus.FAILED, f"no verdict on {count} workloads: {why}"

    def _evaluate(self, task: Task) -> None:
        solution = solution_of(self._store, task.id, task.solution)
        done = {one.workload for one in self._store.results(task.id)}
        if done:  # another worker has begun it
            self._writer.export(lambda result: result.task == task.id)
        left = [uuid for uuid in dict.fromkeys(task.workloads) if uuid not in done]
        if not left:
            return
        self._writer.has_solution(solution)  # tells now if its traces could not be kept
        self._subject.hold(task, solution, left)
        self._benchmark.run_all()
        self._subject.traces = {}

    def _tell(self) -> None:
        self._progress = time.monotonic()
        self._send({"event": self._store.last_event()})

    def _watch(self) -> None:
        """Show that this process lives, end cancelled tasks, and end it all if it is stuck."""
        patience = _STUCK_S + _STUCK_TIMEOUTS * self._config.timeout_seconds
        while True:
            self._send({"alive": True})
            if (quiet := time.monotonic() - self._progress) > patience:
                logger.error("%s: no progress for %.0f s: the worker ends", self._device, quiet)
                os._exit(1)
            with self._lock, suppress(sqlite3.Error):  # the main thread meets it, too
                if self._current is not None and self._store.is_cancelled(self._current):
                    self._benchmark.interrupt()
            self._look.wait(POLL_S)
            self._look.clear()


def _private(descriptor: int, mode: str, replacement: int) -> IO[str]:
    """Return a standard stream for this process alone; what else uses it gets another one."""
    stream = os.fdopen(os.dup(descriptor), mode, encoding="utf-8", buffering=1)
    os.dup2(replacement, descriptor)
    return stream


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Serve a supervisor on the standard streams; the end of its input ends this process."""
    parser = argparse.ArgumentParser(prog="python -m fib_serve.worker")
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--name", help="by default the device")
    parser.add_argument("--benchmark", type=json.loads, default={}, help="settings as JSON")
    given = parser.parse_args(arguments)
    level = given.benchmark.get("log_level", "INFO")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Solutions, and what they start, must neither read nor write what is meant for the server.
    null = os.open(os.devnull, os.O_RDONLY)
    orders, answers = _private(0, "r", null), _private(1, "w", 2)
    lock = threading.Lock()
    worker: Optional[TaskWorker] = None

    def send(message: dict[str, Any]) -> None:
        with lock:
            try:
                print(json.dumps(message), file=answers, flush=True)
            except OSError:  # nobody is there any more
                os._exit(0)

    def obey() -> None:
        for line in orders:
            if line.strip() == "wake" and worker is not None:
                worker.wake()
        os._exit(0)  # the task is begun again by the next worker; child processes end with this one

    threading.Thread(target=obey, name="fib-serve-orders", daemon=True).start()
    try:
        worker = TaskWorker(
            Store(given.database),
            given.dataset,
            device=given.device,
            name=given.name or given.device,
            settings=given.benchmark,
            send=send,
        )
        worker.run()
    except (StorageError, sqlite3.Error) as error:
        logger.error("%s: the worker ends: %s", given.device, error)
        return TRY_AGAIN
    except (FibError, DataError) as error:
        logger.error("%s: the worker ends: %s", given.device, error)
    return 1


if __name__ == "__main__":
    sys.exit(main())
