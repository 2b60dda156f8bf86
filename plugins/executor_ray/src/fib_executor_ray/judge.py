"""What runs on a node: one process that judges on each device, and tasks that compile.

A judge is an actor of Ray. It is the same trusted process as that of a local run; solutions run in
candidates of its own, beside the device.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import queue
import time
import traceback
from concurrent.futures import wait
from contextlib import ExitStack, closing, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fib_executor_ray import fitness
from fib_executor_ray.contents import NodeStore
from fib_executor_ray.wire import (
    pack_error,
    pack_outcome,
    unpack_config,
    unpack_outcome,
)
from flashinfer_bench.bench.backends import make_executor
from flashinfer_bench.bench.builds import BuildAhead, BuildOutcome
from flashinfer_bench.bench.locks import device_lock, physical_name
from flashinfer_bench.bench.plan import Build, compiles_ahead
from flashinfer_bench.bench.pool import in_thread
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.bench.session import IsolatedRunner, PersistentRunner
from flashinfer_bench.data import Definition, Evaluation, Solution, Workload
from flashinfer_bench.data.json_codec import from_json, to_json
from flashinfer_bench.data.layout import FOLDERS
from flashinfer_bench.errors import CapabilityError, FibError, RunnerFatalError
from flashinfer_bench.plugins import Catalog, default_catalog
from flashinfer_bench.tensors.devices import usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future


_logger = logging.getLogger(__name__)

BEAT_S = 10.0
"""A judge at work says something at least so often."""

TOGETHER_S = 0.002
_LAST_WORDS_S = 1.0


def distributions(catalog: Catalog) -> dict[str, str]:
    """Return core and the plugins that are loaded, with their versions."""
    loaded = (one for one in catalog.plugins if one.state == "ok" and one.distribution)
    found = {one.distribution: one.version for one in loaded}
    return {**found, "flashinfer-bench-core": metadata.version("flashinfer-bench-core")}


class Warnings(logging.Handler):
    """Keeps warnings, which go to the driver with the next message."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: queue.SimpleQueue[str] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self._texts.put(record.getMessage())

    def take(self) -> list[str]:
        """Return those that are new."""
        found = []
        with suppress(queue.Empty):
            while True:
                found.append(self._texts.get_nowait())
        return found


class TaskBuilds(BuildAhead):
    """Builds in tasks of Ray on the same node, of which each takes a core."""

    place: Any = None
    settings: str = ""

    def make(self, build: Build) -> Optional[BuildOutcome]:
        """Have a task compile a solution; None if that cannot be tried."""
        import ray

        records = to_json(build.definition, indent=None), to_json(build.solution, indent=None)
        task = ray.remote(compile_solution).options(
            name=f"fib build {build.solution.name}",
            num_cpus=1,
            max_retries=2,
            scheduling_strategy=self.place,
        )
        try:
            text = ray.get(task.remote(*records, self.settings))
        except ray.exceptions.RayError as error:
            _logger.warning("%s was not compiled in advance: %s", build.solution.name, error)
            return None
        return unpack_outcome(build, text) if text else None


def compile_solution(definition: str, solution: str, settings: str) -> str:
    """Compile a solution into the cache of this node, and return what came of it as JSON.

    The text is empty if no process could be started.
    """
    given = json.loads(settings)
    if (visible := given["visible"]) is not None:  # a task without a GPU sees none otherwise
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    config, catalog = unpack_config(given["config"]), default_catalog()
    build = Build(from_json(definition, Definition), from_json(solution, Solution))
    with closing(make_executor(catalog, given["device"])) as executor:
        sandbox = Sandbox(config.sandbox, catalog, hidden=given["hidden"])
        ahead = BuildAhead(
            [build],
            executor,
            jobs=1,
            timeout_s=config.timeout_seconds,
            overlap=False,
            sandbox=sandbox,
        )
        outcome = ahead.make(build)
        sandbox.tidy()
    return "" if outcome is None else pack_outcome(outcome)


class Judge:
    """Evaluates solutions on one device of a node.

    Parameters
    ----------
    job : str
        JSON: the ``device`` (``cpu`` or ``cuda:0``), its ``name``, that of its ``node``, the
        ``config``, and the ``dataset`` of the driver, which this node may share.
    """

    def __init__(self, job: str) -> None:
        _undo_thread_limit()
        self._job = json.loads(job)
        self._device = self._job["device"]
        self._config = unpack_config(self._job["config"])
        self._catalog = default_catalog()
        self._warnings = Warnings()
        logging.getLogger().addHandler(self._warnings)
        self._store = NodeStore()
        self._records: dict[str, Any] = {}
        self._stack = ExitStack()
        self._stack.callback(self._store.close)
        self._hidden = [str(self._store.folder)]
        self._runner: Optional[PersistentRunner | IsolatedRunner] = None
        self._work: Optional[Future[None]] = None
        self._built: set[str] = set()
        self._count = 0
        self._doing: dict[str, Any] = {}
        self._checked: dict[str, Any] = {}

    def describe(self, languages: str) -> str:
        """Get ready, and say what this node is and what it lacks.

        Parameters
        ----------
        languages : str
            JSON: pairs of the language and the binding of solutions.

        Returns
        -------
        str
            JSON: ``python``, ``distributions``, ``environment``; ``physical``, which device it
            really is; ``problem`` if nothing can be judged here; and ``builders``: for each of the
            `languages`, what is missing or None.
        """
        told: dict[str, Any] = {
            "python": platform.python_version(),
            "distributions": distributions(self._catalog),
            "problem": None,
        }
        try:
            self._begin()
            assert self._runner is not None
            told["environment"] = json.loads(to_json(self._runner.environment, indent=None))
            told["physical"] = physical_name(self._device)
            self._catalog.select_builder("python", None, device=self._device)
        except FibError as error:
            told["problem"] = " ".join(str(error).split())
        told["builders"] = [self._lacking(*pair) for pair in json.loads(languages)]
        return json.dumps(told)

    def _begin(self) -> None:
        config, catalog = self._config, self._catalog
        executor = make_executor(catalog, self._device)
        self._stack.callback(executor.close)
        executor.begin()
        if self._job["dataset"] and (shared := Path(self._job["dataset"])).is_dir():
            folders = (shared / name for name in FOLDERS)
            self._hidden += [str(path) for path in folders if path.is_dir()]
        sandbox = Sandbox(config.sandbox, catalog, hidden=self._hidden)
        self._stack.callback(sandbox.tidy)
        kind = IsolatedRunner if config.use_isolated_runner else PersistentRunner
        runner = kind(self._device, executor=executor, catalog=catalog, sandbox=sandbox)
        runner.require_timer(config.timer, trust=config.trust, cache=config.cache)
        sandbox.require(executor)
        self._stack.enter_context(runner.measurement(config).running(config))
        self._stack.callback(runner.close)
        self._runner, self._executor, self._sandbox = runner, executor, sandbox

    def _lacking(self, language: str, binding: Optional[str]) -> Optional[list[str]]:
        """Return why solutions in a language cannot be built, as of `Distributor.obstacle`."""
        catalog, device = self._catalog, self._device
        anywhere = catalog.builders_for(language, binding)
        if anywhere and not catalog.builders_for(language, binding, device=device):
            others = sorted({name for entry in anywhere for name in entry.spec.devices})
            return ["device", f"{language} solutions need {' or '.join(others)}"]
        try:
            catalog.select_builder(language, binding, device=device)
        except CapabilityError as error:
            return ["capability", str(error)]
        return None

    def check(self) -> str:
        """Time the known kernel, with the device to itself.

        Returns
        -------
        str
            JSON: ``seconds`` and ``memory_errors``.
        """
        with device_lock(self._device):
            seconds = fitness.time_known_kernel(self._device)
        self._checked = {
            "seconds": seconds,
            "memory_errors": fitness.memory_errors(self._device),
            "checked": time.time(),
        }
        return json.dumps(self._checked)

    def missing(self, paths: str) -> str:
        """Return which contents this node lacks.

        Parameters
        ----------
        paths : str
            JSON: by digest, the path on the driver, or ``""``. Files that the node shares are
            copied from there.

        Returns
        -------
        str
            JSON: digests.
        """
        return json.dumps(
            [
                digest
                for digest, path in json.loads(paths).items()
                if not self._store.has(digest)
                and not (path and self._store.add_file(digest, Path(path)))
            ]
        )

    def keep(self, digest: str, references: list[Any]) -> None:
        """Keep a content, of which each chunk is in Ray's object store."""
        import ray

        self._store.add(digest, (ray.get(one) for one in references))

    def evaluate(self, work: str) -> Iterator[bytes]:
        """Evaluate solutions on a workload.

        Parameters
        ----------
        work : str
            JSON: digests of the ``definition`` and the ``solutions``, the ``workload``, and the
            digests of its ``blobs`` by path.

        Yields
        ------
        bytes
            Lines of JSON: ``started``, ``skipped`` or ``evaluated`` is the number of a solution,
            ``reason`` why it was skipped, ``error`` an error for all that are left; ``warnings``.
            After ``evaluated``, a line with the evaluation. Nothing if there is nothing new.
        """
        given = json.loads(work)
        messages: queue.SimpleQueue[Optional[str]] = queue.SimpleQueue()

        def tell(body: str = "", **head: Any) -> None:
            if warnings := self._warnings.take():
                head["warnings"] = warnings
            messages.put(json.dumps(head) + (f"\n{body}" if body else ""))

        def judge() -> None:
            try:
                self._evaluate(given, tell)
            except FibError as error:
                tell(error=pack_error(error))
            except Exception:  # noqa: BLE001 - no object of this process goes to the driver
                told = f"the judge has an error:\n{traceback.format_exc()}"
                tell(error=pack_error(RunnerFatalError(told)))
            finally:
                self._doing = {}
                messages.put(None)

        self._work = in_thread("fib-judge", judge)
        going_on = True
        while going_on:
            lines: list[str] = []
            with suppress(queue.Empty):
                # The end of one evaluation and the begin of the next travel together.
                while (
                    message := messages.get(timeout=TOGETHER_S if lines else BEAT_S)
                ) is not None:
                    lines.append(message)
                going_on = False
            yield "\n".join(lines).encode()

    def _evaluate(self, given: dict[str, Any], tell: Any) -> None:
        runner = self._runner
        assert runner is not None
        definition = self._record(given["definition"], Definition)
        solutions = [self._record(one, Solution) for one in given["solutions"]]
        numbers = {one.name: number for number, one in enumerate(solutions)}
        workload = from_json(json.dumps(given["workload"]), Workload)
        self._store.provide(given["blobs"])
        self._build_ahead(definition, solutions)

        def start(solution: Solution) -> None:
            names = {"definition": definition.name, "solution": solution.name}
            self._doing = {**names, "workload": workload.uuid, "since": time.time()}
            tell(started=numbers[solution.name])

        def skip(solution: Solution, why: Exception) -> None:
            tell(skipped=numbers[solution.name], reason=str(why))

        for solution, evaluation in runner.evaluate_each(
            definition,
            workload,
            solutions,
            self._config,
            self._store.root,
            on_start=start,
            on_skip=skip,
        ):
            self._count += 1
            evaluation = self._placed(evaluation)
            tell(to_json(evaluation, indent=None), evaluated=numbers[solution.name])

    def _record(self, digest: str, kind: Any) -> Any:
        found = self._records.get(digest)
        if found is None:
            if kind is Definition:  # what belongs to the one before is not needed any more
                self._records.clear()
            found = self._records[digest] = from_json(self._store.read(digest), kind)
        return found

    def _placed(self, evaluation: Evaluation) -> Evaluation:
        """Return an evaluation that says where it took place."""
        told = evaluation.provenance
        if told is None:
            return evaluation
        extra = {"node": self._job["node"], "node_device": physical_name(self._device)}
        told = told.model_copy(update={"extra": {**told.extra, **extra}})
        return evaluation.model_copy(update={"provenance": told})

    def _build_ahead(self, definition: Definition, solutions: Sequence[Solution]) -> None:
        assert self._runner is not None
        names = {f"{definition.name}/{one.hash()}" for one in solutions}
        if names <= self._built:
            return
        if self._runner.ahead is not None:
            self._runner.ahead.close()
        self._built = names
        import ray

        here = ray.get_runtime_context().get_node_id()
        place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
        ahead = TaskBuilds(
            [
                Build(definition, one)
                for one in solutions
                if compiles_ahead(one, self._catalog, self._device)
            ],
            self._executor,
            jobs=self._config.build_jobs or usable_cores(),
            timeout_s=self._config.timeout_seconds,
            overlap=self._device != "cpu",
            sandbox=self._sandbox,
        )
        ahead.place = place
        ahead.settings = json.dumps(
            {
                "config": self._job["config"],
                "device": self._device,
                "hidden": self._hidden,
                "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            }
        )
        ahead.start()
        self._runner.ahead = ahead

    def status(self) -> str:
        """Return what this judge is and does, as JSON; answered during an evaluation as well."""
        assert self._runner is not None
        return json.dumps(
            {
                "node": self._job["node"],
                "device": self._job["name"],
                "hardware": self._runner.environment.hardware,
                "evaluations": self._count,
                **self._checked,
                **self._doing,
            }
        )

    def close(self) -> None:
        """End what is going on, and undo what was done to the device; idempotent."""
        if self._runner is not None:
            self._runner.interrupt()
        if self._work is not None:
            wait([self._work], timeout=_LAST_WORDS_S)
        self._stack.close()


def _undo_thread_limit() -> None:
    """Remove the limit of OpenMP threads that Ray sets for a process without cores of its own."""
    with suppress(OSError):
        if b"OMP_NUM_THREADS=" not in Path("/proc/self/environ").read_bytes():
            os.environ.pop("OMP_NUM_THREADS", None)
