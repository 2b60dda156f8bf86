"""Building the solutions of a dataset without evaluating them: what ``fib build`` does."""

from __future__ import annotations

import threading
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.backends import make_executor
from flashinfer_bench.bench.builds import Build, BuildProcesses, compiles_ahead
from flashinfer_bench.bench.crew import Crew, default_jobs
from flashinfer_bench.bench.executors.base import CandidateFailed
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.bench.selection import (
    meant_for_other_device,
    selected_definitions,
    selected_solutions,
)
from flashinfer_bench.errors import CapabilityError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flashinfer_bench.bench.builds import BuildOutcome
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.observers import RunObserver
    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.plugins import Catalog

_LAST_WORDS_S = 10.0  # how long threads may take to end once their processes are killed


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
        self._config = config
        self._catalog = catalog
        self._compile_only = compile_only
        self._observers = observers
        self._device = build_device(config.device)
        self._lock = threading.Lock()
        self.outcomes: list[BuildOutcome] = []
        chosen = list(_selected(trace_set, config))
        possible = [build for build in chosen if self._note_if_unavailable(build)]
        self._compiled = {b for b in possible if compiles_ahead(b.solution, catalog, self._device)}
        rest = [build.solution for build in possible if build not in self._compiled]
        self.left_out = tuple(rest) if compile_only else ()
        self._builds = [b for b in possible if b in self._compiled or not compile_only]
        if not chosen or (self.left_out and not (self._builds or self.outcomes)):
            raise _nothing_to_build(self.left_out)

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
        try:
            self._build_all()
        finally:
            for observer in self._observers:
                observer.finished()
        return self.outcomes

    def _build_all(self) -> None:
        if not self._builds:
            return
        if not self._compile_only and find_spec("torch") is None:
            raise CapabilityError(
                "loading what has been built needs torch",
                hint="pip install 'flashinfer-bench-core[torch]'",
            )
        executor = make_executor(self._catalog, self._device, self._config.executor)
        sandbox = Sandbox(self._config.sandbox)
        processes = BuildProcesses(executor, sandbox)
        crew: Crew[Optional[Build]] = Crew(
            # What takes longest to start is started beside the first compiler.
            lambda build: self._do(processes, build) if build is not None else executor.start(),
            size=self._config.build_jobs or default_jobs(spare=0),
        )
        try:
            crew.add([*([] if self._compile_only else [None]), *self._builds])
            crew.wait()
        finally:
            crew.stop()
            processes.interrupt()
            executor.close()
            crew.join(_LAST_WORDS_S)
            sandbox.tidy()

    def _do(self, processes: BuildProcesses, build: Build) -> None:
        outcome = self._build(processes, build)
        if not outcome.builder:
            outcome = replace(outcome, builder=self._builder_of(build))
        if not processes.interrupted:
            with self._lock:
                self.outcomes.append(outcome)
                self._tell(outcome)

    def _build(self, processes: BuildProcesses, build: Build) -> BuildOutcome:
        timeout_s = self._config.timeout_seconds
        if build not in self._compiled:
            return processes.load(build, timeout_s=timeout_s)
        compiled = processes.compile(build, timeout_s=timeout_s)
        if self._compile_only or compiled.error is not None:
            return compiled
        loaded = processes.load(build, timeout_s=timeout_s)
        seconds = compiled.seconds + loaded.seconds
        return replace(loaded, builder=compiled.builder, fresh=compiled.fresh, seconds=seconds)

    def _builder_of(self, build: Build) -> str:
        """Return the builder's name, if there is only one that it can have been."""
        spec = build.solution.spec
        builders = self._catalog.builders_for(spec.language, spec.binding, device=self._device)
        usable = [entry.name for entry in builders if entry.availability()]
        return usable[0] if len(usable) == 1 else ""

    def _note_if_unavailable(self, build: Build) -> bool:
        """Return whether there is a builder; note what it lacks if there is none."""
        spec, name = build.solution.spec, build.solution.name
        elsewhere = meant_for_other_device(build.solution, self._catalog, self._device)
        if elsewhere:
            self.outcomes.append(build.outcome(elsewhere=elsewhere))
            return False
        try:
            self._catalog.select_builder(
                spec.language, spec.binding, solution=name, device=self._device
            )
        except CapabilityError as error:
            lacking = CandidateFailed(
                str(error), stage="compile", kind="", traceback="", about="capability"
            )
            self.outcomes.append(build.outcome(error=lacking))
            return False
        return True

    def _tell(self, outcome: BuildOutcome) -> None:
        for observer in self._observers:
            observer.build_finished(outcome)


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


def _selected(trace_set: TraceSet, config: BenchmarkConfig) -> Iterator[Build]:
    definitions = selected_definitions(trace_set, config.definitions)
    solutions = selected_solutions(trace_set, definitions, config.solutions)
    for definition in definitions:
        for solution in solutions[definition.name]:
            yield Build(definition, solution)


def _nothing_to_build(left_out: Sequence[object]) -> SelectionError:
    if left_out:
        return SelectionError(
            f"none of the {len(left_out)} selected solutions is in a language that is compiled",
            hint="without --compile-only they are loaded, too",
        )
    return SelectionError(
        "there is nothing to build", hint="a dataset has its solutions in the folder solutions"
    )
