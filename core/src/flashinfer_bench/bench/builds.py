"""Building many solutions, each in a process of its own, several at a time.

What compilers leave on disk is loaded by the process that evaluates the solution. While a GPU times
one solution, the cores of the host compile others. On the CPU that would disturb the clock: there
the solutions of a definition are compiled before anything of it is timed.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Optional

from flashinfer_bench.bench import plan, pool
from flashinfer_bench.bench.backends import make_executor
from flashinfer_bench.bench.executors.base import (
    Candidate,
    CandidateError,
    CandidateFailed,
    CandidateTimeout,
    Executor,
)
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.errors import CapabilityError, RunnerFatalError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.observers import RunObserver
    from flashinfer_bench.data import Solution, TraceSet
    from flashinfer_bench.plugins import Catalog

logger = logging.getLogger(__name__)

BuildState = Literal["built", "cached", "failed", "unavailable", "other device"]


@dataclass(frozen=True)
class BuildOutcome:
    """What came of building a solution.

    Attributes
    ----------
    definition, solution : str
        Their names.
    language : str
        Language of the solution.
    builder : str
        Name of the builder; empty if it is not known.
    fresh : bool
        Whether something was compiled; otherwise it was found in the cache.
    seconds : float
        How long it took.
    error : CandidateError, optional
        Why it failed.
    output : str
        What the process printed.
    binding : str, optional
        Binding that the solution asks for; None if that is left to its builder.
    elsewhere : str
        Why it is not meant for this device; empty if it is.
    """

    definition: str
    solution: str
    language: str
    builder: str = ""
    fresh: bool = False
    seconds: float = 0.0
    error: Optional[CandidateError] = None
    output: str = ""
    binding: Optional[str] = None
    elsewhere: str = ""

    @property
    def state(self) -> BuildState:
        """What came of it in a word.

        ``built``; ``cached``: it was found in the cache; ``failed``; ``unavailable``: this machine
        lacks something for it; ``other device``: it is not meant for the one that is built for.
        """
        if self.elsewhere:
            return "other device"
        if self.error is None:
            return "built" if self.fresh else "cached"
        no_fault = isinstance(self.error, CandidateFailed) and self.error.is_no_fault
        return "unavailable" if no_fault else "failed"

    @property
    def reason(self) -> str:
        """Why it failed or was left alone; empty if it was built."""
        if self.error is None:
            return self.elsewhere
        return self.error.reason if isinstance(self.error, CandidateFailed) else self.error.message

    @property
    def log(self) -> str:
        """What the compiler said if it failed, and what the process printed."""
        told = self.error.traceback if isinstance(self.error, CandidateFailed) else ""
        return "\n".join(part.strip() for part in (told, self.output) if part.strip())


def _outcome(build: plan.Build, **details: Any) -> BuildOutcome:
    """Return what came of a build; `details` are further fields."""
    solution, spec = build.solution.name, build.solution.spec
    return BuildOutcome(
        build.definition.name, solution, str(spec.language), binding=spec.binding, **details
    )


@dataclass(eq=False)
class BuildAhead:
    """Builds solutions in processes of their own while, or before, others are evaluated.

    Runners of several devices may share one. What is asked here may come from any thread.

    Attributes
    ----------
    builds : sequence of Build
        What to build, in the order in which it is expected to be needed.
    executor : Executor
        Starts the processes. It is not closed here.
    jobs : int
        How many at the same time.
    timeout_s : float
        Seconds that one may take; a compiler that hangs costs its solution only.
    overlap : bool
        Begin with everything at once, and compile while solutions are timed. Otherwise nothing
        is compiled but during `prepare`.
    sandbox : Sandbox, optional
        Confines the processes.
    make : callable, optional
        What to do for each; by default it is compiled, as far as other processes can use that.
    on_finished : callable, optional
        Told what came of each, from the thread that it happened in.
    """

    builds: Sequence[plan.Build]
    executor: Executor
    _: KW_ONLY
    jobs: int
    timeout_s: float
    overlap: bool
    sandbox: Optional[Sandbox] = None
    make: Optional[Callable[[BuildAhead, plan.Build], Optional[BuildOutcome]]] = None
    on_finished: Optional[Callable[[BuildOutcome], None]] = None

    def __post_init__(self) -> None:
        self._builds = {pool.solution_key(build.solution): build for build in self.builds}
        self._lock = threading.Lock()
        self._interrupted = threading.Event()
        self._busy: set[Candidate] = set()
        self._waiting: list[pool.WorkerKey] = []  # for a thread, the next one first
        self._threads = 0
        # The result is None for what could not be tried: its evaluation then does without.
        self._results: dict[pool.WorkerKey, Future[Optional[BuildOutcome]]] = {}

    def start(self) -> None:
        """Begin, where compiling and timing may overlap."""
        if self.overlap:
            self._begin(self._builds)

    def prepare(self, definition: str) -> None:
        """Get ready for timing something of a definition.

        Where nothing may be compiled meanwhile this takes until all its solutions are.

        Parameters
        ----------
        definition : str
            Its name.

        Raises
        ------
        RunInterrupted
            If the run ends meanwhile.
        """
        mine = [key for key, build in self._builds.items() if build.definition.name == definition]
        if self.overlap:
            with self._lock:
                self._waiting.sort(key=lambda key: key not in mine)
        else:
            self._begin(mine)
            for key in mine:
                self._results[key].result()

    def outcome(self, solution: Solution) -> Optional[BuildOutcome]:
        """Return what came of a solution; wait until that is known.

        Parameters
        ----------
        solution : Solution
            Any solution.

        Returns
        -------
        BuildOutcome or None
            None if it is not, or could not be, compiled ahead, or another try may end differently.

        Raises
        ------
        RunInterrupted
            If the run ends meanwhile.
        """
        key = pool.solution_key(solution)
        if key not in self._builds:
            return None
        self._begin([key])
        outcome = self._results[key].result()
        return outcome if outcome is not None and _is_final(outcome) else None

    def as_ready(self, solutions: Iterable[Solution]) -> Iterator[Solution]:
        """Yield `solutions` in their order, except that no one waits for another's compiler."""
        left = list(solutions)
        while left:
            futures = [self._results.get(pool.solution_key(one)) for one in left]
            pending = [future for future in futures if future is not None]
            if len(pending) == len(left):
                wait(pending, return_when=FIRST_COMPLETED)
            ready = (i for i, one in enumerate(futures) if one is None or one.done())
            yield left.pop(next(ready))

    def compile(self, build: plan.Build) -> BuildOutcome:
        """Do the part of a build that other processes can use.

        Parameters
        ----------
        build : Build
            What to compile.

        Raises
        ------
        RunnerFatalError
            If no process can be started.
        """
        return self._built(build, self.executor.spawn_compiler(), loads=False)

    def load(self, build: plan.Build) -> BuildOutcome:
        """Build a solution to its end, which runs the code that it runs when it is loaded.

        Parameters
        ----------
        build : Build
            What to build. What has been compiled is taken from the cache.

        Raises
        ------
        RunnerFatalError
            If no process can be started.
        """
        self.executor.start()
        return self._built(build, self.executor.spawn(), loads=True)

    def _built(self, build: plan.Build, process: Candidate, *, loads: bool) -> BuildOutcome:
        began = time.monotonic()
        what, details = (build.definition, build.solution), dict[str, Any]()
        with self._lock:
            self._busy.add(process)
        if self._interrupted.is_set():  # it may have come before the process was on the list
            process.close()
        try:
            if self.sandbox is not None and loads:
                self.sandbox.confine(process, *what)
            elif self.sandbox is not None:
                self.sandbox.confine_compiler(process)
            if loads:
                process.load(*what, timeout_s=self.timeout_s)
                details = {"fresh": True}
            else:
                done = process.compile(*what, timeout_s=self.timeout_s)
                # An executor that cannot compile ahead leaves all of it to loading.
                details = {"builder": done.builder, "fresh": done.fresh or not done.builder}
        except CandidateError as error:
            details = {"error": error, "output": process.log()}
            if isinstance(error, CandidateFailed):
                details["builder"] = error.builder
        finally:
            process.close()
            with self._lock:
                self._busy.discard(process)
        return _outcome(build, seconds=time.monotonic() - began, **details)

    def interrupt(self) -> None:
        """End all processes, compilers and all, for good; from any thread."""
        self._interrupted.set()
        with self._lock:
            busy = list(self._busy)
        for candidate in busy:
            candidate.close()

    def close(self) -> None:
        """End what is still going on, and wait for that, but not for ever; idempotent."""
        self.interrupt()
        wait(list(self._results.values()), timeout=pool.LAST_WORDS_S)

    def check(self) -> None:
        """Raise what `make` or `on_finished` has raised, if one has."""
        for future in self._results.values():
            if future.done() and not isinstance(future.exception(), pool.RunInterrupted):
                future.result()

    def wait(self) -> None:
        """Wait until all that has begun has ended; raise what `check` does at once."""
        wait(list(self._results.values()), return_when=FIRST_EXCEPTION)
        self.check()

    def _begin(self, keys: Iterable[pool.WorkerKey]) -> None:
        with self._lock:
            for key in keys:
                if key not in self._results:
                    self._require_going_on()
                    self._results[key] = Future()
                    self._waiting.append(key)
                    if self._threads < self.jobs:
                        pool.in_thread("fib-build", self._serve)
                        self._threads += 1

    def _require_going_on(self) -> None:
        if self._interrupted.is_set():
            raise pool.RunInterrupted("the run ended while solutions were built")

    def _serve(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                key = self._waiting.pop(0)
            try:
                self._results[key].set_result(self._work(key))
            except BaseException as error:  # noqa: BLE001 - handed to the threads that wait
                self._results[key].set_exception(error)

    def _work(self, key: pool.WorkerKey) -> Optional[BuildOutcome]:
        self._require_going_on()
        try:
            outcome = (self.make or _compile_if_possible)(self, self._builds[key])
            self._require_going_on()  # else a build that failed need not be at fault
            if outcome is not None and self.on_finished is not None:
                self.on_finished(outcome)
        except BaseException:
            self.interrupt()
            raise
        return outcome


def _compile_if_possible(builds: BuildAhead, build: plan.Build) -> Optional[BuildOutcome]:
    try:
        return builds.compile(build)
    except RunnerFatalError as error:
        logger.warning("%s is not compiled ahead: %s", build.solution.name, error)
        return None


def _is_final(outcome: BuildOutcome) -> bool:
    """Return whether another try would hardly end differently."""
    error = outcome.error
    if isinstance(error, CandidateFailed):
        # There may be room on the disk again when it is evaluated.
        return error.about != "storage"
    # A process that died while it compiled had not even loaded the solution, and may have been
    # killed for what others did, as where memory ran out. Waiting a second time is too expensive.
    return error is None or isinstance(error, CandidateTimeout)


class BuildRun:
    """Builds solutions in processes of their own, several at a time.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    config : BenchmarkConfig
        ``definitions`` and ``solutions`` select; ``device``, ``build_jobs``, ``timeout_seconds``
        and ``executor`` hold as in a run. Without a device it is CUDA if there is a GPU, else the
        CPU; one that is named need not be there. All cores are used by default.
    catalog : Catalog
        Where builders and executors come from.
    compile_only : bool
        Fill the cache, and neither load nor call the solutions; what is not compiled is left out.
        Compilers run as the solutions' flags have it.
    observers : sequence of RunObserver
        Are told of each build.

    Attributes
    ----------
    outcomes : list of BuildOutcome
        What has come of solutions so far.
    left_out : tuple of Solution
        What is not compiled, in a run that only compiles.
    """

    def __init__(
        self,
        trace_set: TraceSet,
        config: BenchmarkConfig,
        catalog: Catalog,
        *,
        compile_only: bool = False,
        observers: Sequence[RunObserver] = (),
    ) -> None:
        self._config, self._catalog = config, catalog
        self._compile_only = compile_only
        self._observers = observers
        self._device = build_device(config.device)
        self._lock = threading.Lock()
        self.outcomes: list[BuildOutcome] = []
        definitions = plan.selected_definitions(trace_set, config.definitions)
        solutions = plan.selected_solutions(trace_set, definitions, config.solutions)
        chosen = [
            plan.Build(one, solution) for one in definitions for solution in solutions[one.name]
        ]
        self._builds: list[plan.Build] = []
        self._compiled: set[plan.Build] = set()
        left_out: list[Solution] = []
        for build in chosen:
            found = plan.obstacle(build.solution, catalog, self._device)
            if found is not None:
                self.outcomes.append(_hindered(build, *found))
                continue
            if plan.compiles_ahead(build.solution, catalog, self._device):
                self._compiled.add(build)
            elif compile_only:
                left_out.append(build.solution)
                continue
            self._builds.append(build)
        self.left_out = tuple(left_out)
        if self.left_out and not (self._builds or self.outcomes):
            raise SelectionError(
                f"none of the {len(self.left_out)} selected solutions is in a language that is "
                "compiled",
                hint="without --compile-only they are loaded, too",
            )
        if not chosen:
            raise SelectionError(
                "there is nothing to build",
                hint="a dataset has its solutions in the folder solutions",
            )

    def run(self) -> list[BuildOutcome]:
        """Build everything.

        Returns
        -------
        list of BuildOutcome
            In the order in which they were finished; first what cannot be built here.

        Raises
        ------
        CapabilityError
            If there is no executor for the device, or no torch.
        RunnerFatalError
            If no process can be started.
        """
        for observer in self._observers:
            observer.builds_started(len(self._builds) + len(self.outcomes))
        for outcome in self.outcomes:
            self._tell(outcome)
        with ExitStack() as at_the_end:
            for observer in self._observers:
                at_the_end.callback(observer.finished)
            if self._builds:
                self._build_all(at_the_end)
        return self.outcomes

    def _build_all(self, at_the_end: ExitStack) -> None:
        if not self._compile_only and find_spec("torch") is None:
            raise CapabilityError(
                "loading what has been built needs torch",
                hint="pip install 'flashinfer-bench-core[torch]'",
            )
        executor = make_executor(self._catalog, self._device, self._config.executor)
        at_the_end.callback(executor.close)
        sandbox = Sandbox(self._config.sandbox, self._catalog)
        at_the_end.callback(sandbox.tidy)
        builds = BuildAhead(
            self._builds,
            executor,
            jobs=self._config.build_jobs or pool.default_jobs(spare=0),
            timeout_s=self._config.timeout_seconds,
            overlap=True,
            sandbox=sandbox,
            make=self._make,
            on_finished=self._finished,
        )
        at_the_end.callback(builds.close)
        builds.start()
        builds.wait()

    def _make(self, builds: BuildAhead, build: plan.Build) -> BuildOutcome:
        if build not in self._compiled:
            outcome = builds.load(build)
        else:
            outcome = compiled = builds.compile(build)
            if not self._compile_only and compiled.error is None:
                loaded = builds.load(build)
                outcome = replace(
                    loaded,
                    builder=compiled.builder,
                    fresh=compiled.fresh,
                    seconds=compiled.seconds + loaded.seconds,
                )
        return outcome if outcome.builder else replace(outcome, builder=self._builder_of(build))

    def _finished(self, outcome: BuildOutcome) -> None:
        with self._lock:
            self.outcomes.append(outcome)
            self._tell(outcome)

    def _builder_of(self, build: plan.Build) -> str:
        """Return the builder's name, if there is only one that it can have been."""
        spec = build.solution.spec
        builders = self._catalog.builders_for(spec.language, spec.binding, device=self._device)
        usable = [entry.name for entry in builders if entry.availability()]
        return usable[0] if len(usable) == 1 else ""

    def _tell(self, outcome: BuildOutcome) -> None:
        for observer in self._observers:
            observer.build_finished(outcome)


def _hindered(build: plan.Build, kind: str, reason: str) -> BuildOutcome:
    if kind != "capability":
        return _outcome(build, elsewhere=reason)
    error = CandidateFailed(reason, stage="compile", kind="", traceback="", about="capability")
    return _outcome(build, error=error)


def build_device(device: Optional[str]) -> str:
    """Return the device to build for.

    Parameters
    ----------
    device : str, optional
        ``cpu``, ``cuda`` or ``cuda:N``; None stands for CUDA if there is a GPU, else the CPU.
        To build for a device it need not be there.
    """
    from flashinfer_bench.compile.toolkit import gpu_architectures

    if device is None:
        return "cuda:0" if gpu_architectures() else "cpu"
    return "cuda:0" if device == "cuda" else device
