"""Building one solution in a process of its own, and what came of it."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Optional

from flashinfer_bench.bench.executors.base import CandidateError, CandidateFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flashinfer_bench.bench.executors.base import Candidate, Executor
    from flashinfer_bench.bench.pool import WorkerKey
    from flashinfer_bench.bench.sandbox import Sandbox
    from flashinfer_bench.data import Definition, Solution
    from flashinfer_bench.plugins import Catalog

BuildState = Literal["built", "cached", "failed", "unavailable", "other device"]


def solution_key(solution: Solution) -> WorkerKey:
    """Return the identity under which processes and builds of `solution` are kept."""
    return ("solution", solution.definition, solution.name, solution.hash())


def compiles_ahead(solution: Solution, catalog: Catalog, device: Optional[str]) -> bool:
    """Return whether a builder for `solution` leaves on disk what other processes load.

    Parameters
    ----------
    solution : Solution
        What is to be built.
    catalog : Catalog
        What is installed.
    device : str, optional
        Where it shall work.
    """
    spec = solution.spec
    builders = catalog.builders_for(spec.language, spec.binding, device=device)
    return any(entry.spec.compiles and entry.availability() for entry in builders)


@dataclass(frozen=True, eq=False)
class Build:
    """A solution to build; compared by identity.

    Attributes
    ----------
    definition : Definition
        The interface that it must have.
    solution : Solution
        What to build.
    """

    definition: Definition
    solution: Solution

    def outcome(self, seconds: float = 0.0, **details: Any) -> BuildOutcome:
        """Return what came of it; `details` are further fields of `BuildOutcome`."""
        spec = self.solution.spec
        names = self.definition.name, self.solution.name, str(spec.language)
        return BuildOutcome(*names, binding=spec.binding, seconds=seconds, **details)


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


class BuildProcesses:
    """Processes that are building something, so that all of them can be ended at once.

    Parameters
    ----------
    executor : Executor
        Starts them. It is not closed here.
    sandbox : Sandbox, optional
        Confines them.
    """

    def __init__(self, executor: Executor, sandbox: Optional[Sandbox] = None) -> None:
        self._executor = executor
        self._sandbox = sandbox
        self._busy: set[Candidate] = set()
        self._lock = threading.Lock()
        self._interrupted = threading.Event()

    @property
    def interrupted(self) -> bool:
        """Whether `interrupt` has been called: then a build that failed need not be at fault."""
        return self._interrupted.is_set()

    def compile(self, build: Build, *, timeout_s: float) -> BuildOutcome:
        """Do the part of a build that other processes can use.

        Parameters
        ----------
        build : Build
            What to compile.
        timeout_s : float
            Seconds that it may take.

        Raises
        ------
        RunnerFatalError
            If no process can be started.
        """
        with self._process(self._executor.spawn_compiler) as process:
            began = time.monotonic()
            try:
                if self._sandbox is not None:
                    self._sandbox.confine_compiler(process)
                done = process.compile(build.definition, build.solution, timeout_s=timeout_s)
            except CandidateError as error:
                name = error.builder if isinstance(error, CandidateFailed) else ""
                details = {"builder": name, "error": error, "output": process.log()}
                return build.outcome(time.monotonic() - began, **details)
            # An executor that cannot compile ahead leaves all of it to loading.
            fresh = done.fresh or not done.builder
            return build.outcome(time.monotonic() - began, builder=done.builder, fresh=fresh)

    def load(self, build: Build, *, timeout_s: float) -> BuildOutcome:
        """Build a solution to its end, which runs the code that it runs when it is loaded.

        Parameters
        ----------
        build : Build
            What to build. What has been compiled is taken from the cache.
        timeout_s : float
            Seconds that it may take.

        Raises
        ------
        RunnerFatalError
            If no process can be started.
        """
        self._executor.start()
        with self._process(self._executor.spawn) as process:
            began = time.monotonic()
            try:
                if self._sandbox is not None:
                    self._sandbox.confine(process, build.definition, build.solution)
                process.load(build.definition, build.solution, timeout_s=timeout_s)
            except CandidateError as error:
                return build.outcome(time.monotonic() - began, error=error, output=process.log())
            return build.outcome(time.monotonic() - began, fresh=True)

    def interrupt(self) -> None:
        """End all processes, compilers and all; from any thread, once and for all."""
        self._interrupted.set()
        with self._lock:
            busy = list(self._busy)
        for candidate in busy:
            candidate.close()

    @contextmanager
    def _process(self, spawn: Callable[[], Candidate]) -> Iterator[Candidate]:
        candidate = spawn()
        with self._lock:
            self._busy.add(candidate)
        if self.interrupted:  # it may have come before the process was on the list
            candidate.close()
        try:
            yield candidate
        finally:
            candidate.close()
            with self._lock:
                self._busy.discard(candidate)
