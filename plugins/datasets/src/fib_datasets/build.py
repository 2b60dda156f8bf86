"""Parallel builds of the solutions of a dataset, without evaluations."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench import plan, pool
from flashinfer_bench.bench.backends import make_executor
from flashinfer_bench.bench.builds import BuildAhead, BuildOutcome, outcome_of
from flashinfer_bench.bench.executors.base import CandidateFailed
from flashinfer_bench.bench.plan import Build
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.errors import CapabilityError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.executors.base import Candidate
    from flashinfer_bench.bench.observers import RunObserver
    from flashinfer_bench.data import Solution, TraceSet
    from flashinfer_bench.plugins import Catalog


@dataclass(eq=False)
class _Builds(BuildAhead):
    """Compiles and then loads solutions; loading runs their top-level code."""

    _: KW_ONLY
    run: BuildRun

    def make(self, build: Build) -> BuildOutcome:
        """Compile a solution, or load it from the cache."""
        run = self.run
        if build not in run.compiled:
            outcome = self._load(build)
        else:
            outcome = compiled = self.compile(build)
            if not run.compile_only and compiled.error is None:
                loaded = self._load(build)
                outcome = replace(
                    loaded,
                    builder=compiled.builder,
                    fresh=compiled.fresh,
                    seconds=compiled.seconds + loaded.seconds,
                )
        return outcome if outcome.builder else replace(outcome, builder=run.builder_of(build))

    def _load(self, build: Build) -> BuildOutcome:
        def work(process: Candidate) -> dict[str, Any]:
            what = build.definition, build.solution
            self.sandbox.confine(process, *what)
            process.load(*what, timeout_s=self.timeout_s)
            return {"fresh": True}

        self.executor.start()
        return self.built(build, self.executor.spawn(), work)


class BuildRun:
    """Builds solutions in separate processes, several at a time.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    config : BenchmarkConfig
        ``definitions`` and ``solutions`` are filters; ``device``, ``build_jobs``,
        ``timeout_seconds`` and ``executor`` are as in a run. The default device is CUDA if there
        is a GPU, otherwise the CPU; a given device need not exist. By default all cores are used.
    catalog : Catalog
        Provides builders and executors.
    compile_only : bool
        Fill the cache without loading or calling the solutions; solutions in languages that are
        not compiled are left out. Compilers run with the solutions' flags.
    observers : sequence of RunObserver
        Notified of each build.

    Attributes
    ----------
    outcomes : list of BuildOutcome
        Results of the builds so far.
    left_out : list of Solution
        With `compile_only`, solutions in languages that are not compiled.
    compiled : set of Build
        Builds that are compiled before they are loaded.
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
        self.compile_only = compile_only
        self._observers = observers
        self._device = build_device(config.device)
        self._lock = threading.Lock()
        self._builds: list[Build] = []
        self.outcomes: list[BuildOutcome] = []
        self.left_out: list[Solution] = []
        self.compiled: set[Build] = set()
        definitions = plan.selected_definitions(trace_set, config.definitions)
        solutions = plan.selected_solutions(trace_set, definitions, config.solutions)
        chosen = [Build(one, solution) for one in definitions for solution in solutions[one.name]]
        for build in chosen:
            found = plan.obstacle(build.solution, catalog, self._device)
            if found is not None:
                self.outcomes.append(_hindered(build, *found))
            elif plan.compiles_ahead(build.solution, catalog, self._device):
                self._builds.append(build)
                self.compiled.add(build)
            elif compile_only:
                self.left_out.append(build.solution)
            else:
                self._builds.append(build)
        if self.left_out and not (self._builds or self.outcomes):
            raise SelectionError(
                f"none of the {len(self.left_out)} selected solutions is in a language that is "
                "compiled",
                hint="leave out --compile-only to load them",
            )
        if not chosen:
            raise SelectionError(
                "the dataset has no solutions to build",
                hint="solutions are in the folder solutions of a dataset",
            )

    def run(self) -> list[BuildOutcome]:
        """Build everything.

        Returns
        -------
        list of BuildOutcome
            In the order of completion, after those that cannot be built here.

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
        if not self.compile_only and find_spec("torch") is None:
            raise CapabilityError(
                "loading solutions requires torch",
                hint="pip install torch numpy safetensors",
            )
        executor = make_executor(self._catalog, self._device, self._config.executor)
        at_the_end.callback(executor.close)
        sandbox = Sandbox(self._config.sandbox, self._catalog)
        at_the_end.callback(sandbox.tidy)
        builds = _Builds(
            self._builds,
            executor,
            jobs=self._config.build_jobs or pool.default_jobs(spare=0),
            timeout_s=self._config.timeout_seconds,
            overlap=True,
            sandbox=sandbox,
            on_finished=self._finished,
            run=self,
        )
        at_the_end.callback(builds.close)
        builds.start()
        builds.wait()

    def _finished(self, outcome: BuildOutcome) -> None:
        with self._lock:
            self.outcomes.append(outcome)
            self._tell(outcome)

    def builder_of(self, build: Build) -> str:
        """Return the builder's name, if only one is possible."""
        spec = build.solution.spec
        builders = self._catalog.builders_for(spec.language, spec.binding, device=self._device)
        usable = [entry.name for entry in builders if entry.availability()]
        return usable[0] if len(usable) == 1 else ""

    def _tell(self, outcome: BuildOutcome) -> None:
        for observer in self._observers:
            observer.build_finished(outcome)


def _hindered(build: Build, kind: str, reason: str) -> BuildOutcome:
    if kind != "capability":
        return outcome_of(build, elsewhere=reason)
    error = CandidateFailed(reason, stage="compile", kind="", traceback="", about="capability")
    return outcome_of(build, error=error)


def build_device(device: Optional[str]) -> str:
    """Return the device to build for.

    Parameters
    ----------
    device : str, optional
        ``cpu``, ``cuda`` or ``cuda:N``; need not exist here. None stands for CUDA if there is a
        GPU, otherwise the CPU.
    """
    from flashinfer_bench.compile.toolkit import gpu_architectures

    if device is None:
        return "cuda:0" if gpu_architectures() else "cpu"
    return "cuda:0" if device == "cuda" else device
