"""Building many solutions, each in a separate process, several at a time.

What compilers leave on disk is loaded by the process that evaluates the solution. While a GPU times
one solution, the cores of the host compile others. On the CPU that would disturb the clock: there
the solutions of a definition are compiled before anything of it is timed.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench import pool
from flashinfer_bench.bench.executors import base
from flashinfer_bench.errors import RunnerFatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flashinfer_bench.bench.plan import Build
    from flashinfer_bench.bench.sandbox import Sandbox
    from flashinfer_bench.data import Solution

logger = logging.getLogger(__name__)


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
    error : base.CandidateError, optional
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
    error: Optional[base.CandidateError] = None
    output: str = ""
    binding: Optional[str] = None
    elsewhere: str = ""

    @property
    def state(self) -> str:
        """What came of it in a word.

        ``built``; ``cached``: it was found in the cache; ``failed``; ``unavailable``: this machine
        lacks something for it; ``other device``: it is not meant for the one that is built for.
        """
        if self.elsewhere:
            return "other device"
        if self.error is None:
            return "built" if self.fresh else "cached"
        return "unavailable" if self.error.is_no_fault else "failed"

    @property
    def reason(self) -> str:
        """Why it failed or was left alone; empty if it was built."""
        return self.elsewhere if self.error is None else self.error.reason

    @property
    def log(self) -> str:
        """What the compiler said if it failed, and what the process printed."""
        told = self.error.traceback if self.error is not None else ""
        return "\n".join(part.strip() for part in (told, self.output) if part.strip())


def outcome_of(build: Build, **details: Any) -> BuildOutcome:
    """Return what came of a build; `details` are further fields."""
    solution, spec = build.solution.name, build.solution.spec
    return BuildOutcome(
        build.definition.name, solution, str(spec.language), binding=spec.binding, **details
    )


@dataclass(eq=False)
class BuildAhead:
    """Builds solutions in separate processes while, or before, others are evaluated.

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
    sandbox : Sandbox
        Confines the processes.
    on_finished : callable, optional
        Told what came of each, from the thread that it happened in.
    """

    builds: Sequence[Build]
    executor: base.Executor
    _: KW_ONLY
    jobs: int
    timeout_s: float
    overlap: bool
    sandbox: Sandbox
    on_finished: Optional[Callable[[BuildOutcome], None]] = None

    def __post_init__(self) -> None:
        self._builds = {pool.solution_key(build.solution): build for build in self.builds}
        self._lock = threading.Lock()
        self._busy = pool.BusyCandidates()
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
        future = self._results.get(pool.solution_key(solution))
        outcome = future.result() if future is not None else None
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

    def make(self, build: Build) -> Optional[BuildOutcome]:
        """Do the part of a build that other processes can use; None if that cannot be tried."""
        try:
            return self.compile(build)
        except RunnerFatalError as error:
            logger.warning("%s was not compiled in advance: %s", build.solution.name, error)
            return None

    def compile(self, build: Build) -> BuildOutcome:
        """Compile a solution.

        Raises
        ------
        RunnerFatalError
            If no process can be started.
        """

        def work(process: base.Candidate) -> dict[str, Any]:
            what = build.definition, build.solution
            self.sandbox.confine_compiler(process)
            done = process.compile(*what, timeout_s=self.timeout_s)
            # An executor that cannot compile ahead leaves all of it to loading.
            return {"builder": done.builder, "fresh": done.fresh or not done.builder}

        return self.built(build, self.executor.spawn_compiler(), work)

    def built(
        self,
        build: Build,
        process: base.Candidate,
        work: Callable[[base.Candidate], dict[str, Any]],
    ) -> BuildOutcome:
        """Have a process work on a build, and end it.

        Parameters
        ----------
        build : Build
            What is built.
        process : Candidate
            Has done nothing yet.
        work : callable
            Is given the process; returns fields of `BuildOutcome`.
        """
        began = time.monotonic()
        with closing(process), self._busy.having(process):
            try:
                details = work(process)
            except base.CandidateError as error:
                details = {"error": error, "output": process.log(), "builder": error.builder}
        return outcome_of(build, seconds=time.monotonic() - began, **details)

    def interrupt(self) -> None:
        """End all processes, compilers and all, for good; from any thread."""
        self._busy.interrupt()

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
        if self._busy.interrupted:
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
            outcome = self.make(self._builds[key])
            self._require_going_on()  # else a build that failed need not be at fault
            if outcome is not None and self.on_finished is not None:
                self.on_finished(outcome)
        except BaseException:
            self.interrupt()
            raise
        return outcome


def _is_final(outcome: BuildOutcome) -> bool:
    """Return whether another try would hardly end differently."""
    error = outcome.error
    if isinstance(error, base.CandidateFailed):
        # There may be room on the disk again when it is evaluated.
        return error.about != "storage"
    # A process that died while it compiled had not even loaded the solution, and may have been
    # killed for what others did, as where memory ran out. Waiting a second time is too expensive.
    return error is None or isinstance(error, base.CandidateTimeout)
