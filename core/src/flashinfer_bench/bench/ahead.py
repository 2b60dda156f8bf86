"""Compiling solutions ahead of their evaluation, several at a time.

What compilers leave on disk is loaded by the process that evaluates the solution. While a GPU times
one solution, the cores of the host compile others. On the CPU that would disturb the clock: there
the solutions of a definition are compiled before anything of it is timed.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.builds import BuildProcesses, solution_key
from flashinfer_bench.bench.crew import Crew
from flashinfer_bench.bench.executors.base import CandidateFailed, CandidateTimeout
from flashinfer_bench.errors import RunnerFatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flashinfer_bench.bench.builds import Build, BuildOutcome
    from flashinfer_bench.bench.executors.base import Executor
    from flashinfer_bench.bench.pool import WorkerKey
    from flashinfer_bench.bench.sandbox import Sandbox
    from flashinfer_bench.data import Solution

logger = logging.getLogger(__name__)

_LAST_WORDS_S = 10.0  # how long threads may take to end once their processes are killed


class BuildAhead:
    """Compiles solutions in processes of their own while, or before, others are evaluated.

    Runners of several devices may share one. What is asked here may come from any thread.

    Parameters
    ----------
    builds : sequence of Build
        What to compile, in the order in which it is expected to be needed.
    executor : Executor
        Starts the processes.
    jobs : int
        How many at the same time.
    timeout_s : float
        Seconds that one may take; a compiler that hangs costs its solution only.
    overlap : bool
        Begin with everything at once, and compile while solutions are timed. Otherwise nothing
        is compiled but during `prepare`.
    sandbox : Sandbox, optional
        Confines the processes.
    on_finished : callable, optional
        Told what came of each, from the thread that it happened in.
    """

    def __init__(
        self,
        builds: Sequence[Build],
        executor: Executor,
        *,
        jobs: int,
        timeout_s: float,
        overlap: bool,
        sandbox: Optional[Sandbox] = None,
        on_finished: Callable[[BuildOutcome], None] = lambda outcome: None,
    ) -> None:
        self._builds = {solution_key(build.solution): build for build in builds}
        self._processes = BuildProcesses(executor, sandbox)
        self._timeout_s = timeout_s
        self._overlap = overlap
        self._on_finished = on_finished
        self._crew: Crew[WorkerKey] = Crew(self._compile, size=jobs)
        self._begun: set[WorkerKey] = set()
        self._lock = threading.Lock()
        # None for what could not be tried: its evaluation then does without.
        self._outcomes: dict[WorkerKey, Optional[BuildOutcome]] = {}

    def start(self) -> None:
        """Begin, where compiling and timing may overlap."""
        if self._overlap:
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
        mine = {key for key, build in self._builds.items() if build.definition.name == definition}
        if self._overlap:
            self._crew.hurry(lambda key: key in mine)
        else:
            self._begin(key for key in self._builds if key in mine)
            self._crew.wait(lambda: mine <= self._outcomes.keys())

    def outcome(self, solution: Solution) -> Optional[BuildOutcome]:
        """Return what came of a solution; wait until that is known.

        Parameters
        ----------
        solution : Solution
            Any solution.

        Returns
        -------
        BuildOutcome or None
            None if it is not, or could not be, compiled ahead.

        Raises
        ------
        RunInterrupted
            If the run ends meanwhile.
        """
        key = solution_key(solution)
        if key not in self._builds:
            return None
        self._begin([key])
        self._crew.wait(lambda: key in self._outcomes)
        return self._outcomes[key]

    def as_ready(self, solutions: Iterable[Solution]) -> Iterator[Solution]:
        """Yield `solutions` in their order, except that no one waits for another's compiler.

        Raises
        ------
        RunInterrupted
            If the run ends while all that are left are being compiled.
        """
        left = [(solution_key(solution), solution) for solution in solutions]
        while left:
            self._crew.wait(lambda: any(self._is_known(key) for key, _ in left))
            index = next(i for i, (key, _) in enumerate(left) if self._is_known(key))
            yield left.pop(index)[1]

    def interrupt(self) -> None:
        """End all compilers, for good; from any thread."""
        self._crew.stop()
        self._processes.interrupt()

    def close(self) -> None:
        """End what is still going on, and wait for that; idempotent."""
        self.interrupt()
        self._crew.join(_LAST_WORDS_S)

    def check(self) -> None:
        """Raise what `on_finished` has raised, if it has."""
        self._crew.check()

    def _is_known(self, key: WorkerKey) -> bool:
        return key in self._outcomes or key not in self._begun

    def _begin(self, keys: Iterable[WorkerKey]) -> None:
        with self._lock:
            new = [key for key in keys if key not in self._begun]
            self._begun.update(new)
        self._crew.add(new)

    def _compile(self, key: WorkerKey) -> None:
        outcome: Optional[BuildOutcome] = None
        try:
            outcome = self._processes.compile(self._builds[key], timeout_s=self._timeout_s)
        except RunnerFatalError as error:
            logger.warning("%s is not compiled ahead: %s", self._builds[key].solution.name, error)
        if self._processes.interrupted:
            return
        if outcome is not None:
            self._on_finished(outcome)
        self._outcomes[key] = outcome if outcome is not None and _is_final(outcome) else None


def _is_final(outcome: BuildOutcome) -> bool:
    """Return whether another try would hardly end differently."""
    error = outcome.error
    if isinstance(error, CandidateFailed):
        # There may be room on the disk again when it is evaluated.
        return error.about != "storage"
    # A process that died while it compiled had not even loaded the solution, and may have been
    # killed for what others did, as where memory ran out. Waiting a second time is too expensive.
    return error is None or isinstance(error, CandidateTimeout)
