"""The case that authors of builders provide, and the fixtures of the builder tests."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Optional

import pytest

from fib_testing.children import ChildReport, ChildTask, run_children
from fib_testing.records import construct, keep, raised_by
from fib_testing.samples import DefinitionCase, difference_of, run_reference
from flashinfer_bench.data import CompileOptions, Definition, Solution, SourceFile, Workload
from flashinfer_bench.plugins import Settings, discover

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.compile import Builder, Runnable

MISSING = "fib_conformance_no_such_symbol"

_AXIS = "fib_conformance_axis"
_DEFINE = "-DFIB_CONFORMANCE_OTHER=1"
_SEED = 20250705
_SEE_BUILD = "the correct solution does not build: see test_the_solution_builds"


@dataclass(frozen=True, kw_only=True)
class FailingSolution:
    """A solution that must not build.

    Parameters
    ----------
    solution : Solution
        A solution with any kind of mistake.
    expect : str
        A part of the error's message, hint or log that a user needs to find the mistake.
    """

    solution: Solution
    expect: str


@dataclass(frozen=True, kw_only=True)
class BuilderCase(DefinitionCase):
    """A builder, a correct solution for it, and further data for tests.

    Broken solutions are derived from the correct one.

    Parameters
    ----------
    record : BuilderSpec or str
        The record that the plugin registers. A factory's path, ``"package.module:Name"``, is
        enough if there is no record yet; the checks of the record are then skipped.
    definition : Definition
        The definition of the solution. `sample_definition` is a small one.
    solution : Solution
        A correct solution that runs in at most a second.
    twin : Solution, optional
        A solution with the same file names and definition that computes something else.
    other_style : Solution, optional
        A correct solution with the other calling convention, for a builder that supports both.
    failing : tuple of FailingSolution
        Further solutions that must not build.
    workload : Workload, optional
        Defines the inputs. By default variable axes get small sizes and tensors random values,
        which may not be valid for a definition with constraints or index tensors.
    root : Path, optional
        Folder of the workload's files.
    inputs : callable, optional
        Creates the inputs instead of a workload: new objects with the same values at each call.
    device : str
        Device of the inputs: ``"cpu"``, ``"cuda"``, …
    garbage : str
        Replaces the entry file: not a valid program in the language.
    rtol, atol : float, optional
        Tolerances, both or none; by default those of `torch.testing.assert_close`.
    other_options : CompileOptions, optional
        Options that require another build of the solution, or are rejected. Default: its own
        options and a macro (``-D…``) for both the host compiler and nvcc.
    compilers : sequence of str
        Names of programs (or of Python modules that are run) that compile and that the kit does not
        recognise; it knows build tools such as ninja, and options such as -c and -o.
    libraries : str
        Pattern of the loaded files in the cache: ``"*.wasm"``. Default: all files that are not
        text.
    plugin : str, optional
        The plugin's module, as in its entry point. Default: the top-level package of the factory.
    tolerates : mapping of str to str
        Changes to the process, or files left behind, that a library causes and the builder cannot
        prevent: the name as the failed test prints it, and the reason.
    """

    solution: Solution
    twin: Optional[Solution] = None
    other_style: Optional[Solution] = None
    failing: tuple[FailingSolution, ...] = ()
    workload: Optional[Workload] = None
    inputs: Optional[Callable[[], Sequence[Any]]] = None
    device: str = "cpu"
    garbage: str = "@@@ this is ]] not a program {{ in any language\n"
    rtol: Optional[float] = None
    atol: Optional[float] = None
    other_options: Optional[CompileOptions] = None
    compilers: Sequence[str] = ()
    libraries: str = ""
    tolerates: Mapping[str, str] = field(default_factory=dict)

    @property
    def compiles(self) -> bool:
        """Whether builds are stored on disk for other processes."""
        return bool(getattr(self.record, "compiles", False))

    @property
    def options(self) -> CompileOptions:
        """Compile options that differ from the solution's."""
        if self.other_options is not None:
            return self.other_options
        own = self.solution.spec.compile_options or CompileOptions()
        changes = {name: [*getattr(own, name), _DEFINE] for name in ("cflags", "cuda_cflags")}
        return own.model_copy(update=changes)

    def make_inputs(self) -> list[Any]:
        """Return new inputs, in declaration order."""
        if self.inputs is not None:
            return list(self.inputs())
        return self.generate(self.workload, _SEED, self.device)

    def make_outputs(self, inputs: Sequence[Any]) -> list[Any]:
        """Return output buffers for `inputs`, filled with invalid values."""
        from flashinfer_bench.tensors import allocate_outputs

        if self.workload is not None:
            axes = dict(self.workload.axes)
        else:
            axes = self.definition.get_axes_values_from_inputs(inputs)
        return list(allocate_outputs(self.definition, axes, self.device))


def with_spec(solution: Solution, **fields: Any) -> Solution:
    """Return `solution` with other fields of its build specification."""
    record = solution.model_dump(mode="json")
    record["spec"].update(fields)
    return Solution.model_validate(record)


def with_entry_content(solution: Solution, content: str) -> Solution:
    """Return `solution` with other content in its entry file, and nothing else changed."""
    record = solution.model_dump(mode="json")
    for source in record["sources"]:
        if source["path"] == solution.get_entry_path():
            source["content"] = content
    return Solution.model_validate(record)


def with_unsafe_source(solution: Solution, path: str, content: str) -> Solution:
    """Return `solution` with one more file, at a path that the format does not allow.

    Such a solution can be created without validation, for example by unpickling, so builders must
    check paths as well.
    """
    unsafe = SourceFile.model_construct(path=path, content=content)
    return solution.model_copy(update={"sources": [*solution.sources, unsafe]})


def with_constant(definition: Definition) -> Definition:
    """Return `definition` with an additional, unused constant axis."""
    record = definition.model_dump(mode="json")
    record["axes"][_AXIS] = {"type": "const", "value": 7}
    return Definition.model_validate(record)


class BuilderKit:
    """A case, the processes that build it, and the builds to clean up after the test.

    Parameters
    ----------
    suite : BuilderConformance
        Decides whether the builder is available here.
    case : BuilderCase
        The author's case.
    request : pytest.FixtureRequest
        The request of the running test.
    folders : pytest.TempPathFactory
        Creates folders for the cache and for processes.
    """

    def __init__(
        self,
        suite: Any,
        case: BuilderCase,
        request: pytest.FixtureRequest,
        folders: pytest.TempPathFactory,
    ) -> None:
        self.case = case
        self.solution = case.solution
        self._suite = suite
        self._request = request
        self._folders = folders
        self._built: list[Runnable] = []
        self.garbage = with_entry_content(case.solution, case.garbage)
        self.symbol_missing = with_spec(
            case.solution, entry_point=f"{case.solution.get_entry_path()}::{MISSING}"
        )
        # ``FIB_CACHE_PATH`` of all tests of a class, so that builds are reused.
        self.cache: Path = self.keep("cache", lambda: folders.mktemp("conformance-cache"))
        os.environ["FIB_CACHE_PATH"] = str(self.cache)
        # Builders that change the process are observed in children that start like this process.
        self._task = ChildTask(
            factory=case.factory,
            definition=case.definition,
            solution=case.solution,
            cache=self.cache,
            env=dict(os.environ),
            sys_path=list(sys.path),
            compilers=case.compilers,
        )

    def keep(self, label: Hashable, make: Callable[[], Any]) -> Any:
        """Return ``make()``, called once for the class and the case."""
        case = self.case
        # Distinguishes cases of the same class, as with a parametrized fixture.
        key = (label, case.factory, case.definition.name, case.solution.hash(), case.device)
        return keep(self._request, key, make)

    # ------------------------------------------------------------------- builds

    def builder(self) -> Builder:
        """Return a new builder; skip the test if it is missing or unavailable here."""
        self._suite.require_available(self.case, self._request)
        made: Builder = construct(self.case)
        return made

    def languages(self) -> set[str]:
        """Return the languages of all installed records that name this builder."""
        # Ignore problems of other plugins.
        catalog = discover(replace(Settings.from_env(), strict=False))
        records = [e.spec for e in catalog.builders if e.spec.factory == self.case.factory]
        records += [] if isinstance(self.case.record, str) else [self.case.record]
        handled = {language for spec in records for language, _ in spec.handles}
        return handled | {str(self.solution.spec.language)}

    def build(self, solution: Optional[Solution] = None, by: Optional[Builder] = None) -> Runnable:
        """Build a solution (default: the correct one); it is cleaned up after the test."""
        builder = by or self.builder()
        if self.case.compiles and solution is None:
            self.observed()  # first, because it needs an empty cache
        made = builder.build(self.case.definition, solution or self.solution)
        self._built.append(made)
        return made

    def build_good(self, by: Optional[Builder] = None) -> Runnable:
        """Build the correct solution; skip the test if that fails, which another test reports."""
        from flashinfer_bench.compile import Runnable

        builder = by or self.builder()
        if not builder.can_build(self.solution):
            pytest.skip("can_build rejects it: see test_can_build_accepts_its_own_language")
        if raised_by(lambda: self.build(by=builder)) or not isinstance(self._built[-1], Runnable):
            pytest.skip(_SEE_BUILD)
        return self._built[-1]

    def error_of(self, solution: Solution, by: Optional[Builder] = None) -> BaseException | None:
        """Return the error of building `solution`, or None."""
        return raised_by(lambda: self.build(solution, by))

    def close_all(self) -> None:
        """Clean up all builds; `test_cleaning_up` reports errors."""
        for runnable in self._built:
            raised_by(runnable.cleanup)

    # ------------------------------------------------------------------ outputs

    def difference(self, actual: Optional[Sequence[Any]]) -> str:
        """Return how outputs differ from the reference's; empty if equal or missing."""
        import torch

        case = self.case
        expected = self.keep("expected", lambda: run_reference(case.definition, case.make_inputs()))
        if actual is None:
            return ""
        if len(actual) != len(expected):
            return f"{len(actual)} outputs instead of {len(expected)}"
        for name, ours, theirs in zip(case.definition.outputs, actual, expected, strict=True):
            pair = torch.as_tensor(ours).cpu(), torch.as_tensor(theirs).cpu()
            if found := difference_of(*pair, rtol=case.rtol, atol=case.atol):
                return f"output {name!r}: {found}"
        return ""

    def arguments(self) -> list[Any]:
        """Return inputs followed by output buffers with invalid values."""
        inputs = self.case.make_inputs()
        return [*inputs, *self.case.make_outputs(inputs)]

    def outputs_of(self, runnable: Runnable) -> list[Any]:
        """Call a runnable with inputs and outputs, and return the outputs."""
        arguments = self.arguments()
        runnable.call_destination_passing(*arguments)
        return arguments[len(self.case.definition.inputs) :]

    # ---------------------------------------------------------------- processes

    def task(self, **fields: Any) -> ChildTask:
        """Return a task for a process: to build the correct solution, changed by `fields`."""
        return replace(self._task, **fields)

    def run(self, *tasks: ChildTask, together: bool = False) -> list[ChildReport]:
        """Run `tasks` in separate processes at the same time, and return the reports."""
        folder = self._folders.mktemp("conformance-children")
        return run_children(folder, tasks, self.arguments(), together=together)

    def observed(self) -> list[ChildReport]:
        """Return reports of the first two processes, which build it at the same time."""
        # Compiled builds are shared by all tests of the class; other builds store nothing.
        cold = self.cache.with_name(f"{self.cache.name}-cold")
        self.builder()
        task = self.task(cache=self.cache if self.case.compiles else cold)
        reports: list[ChildReport] = self.keep("first", lambda: self.run(task, task, together=True))
        return reports

    def observed_to_the_end(self) -> ChildReport:
        """Return the report of a process that completed; skip the test if none did."""
        self.build_good()
        reports = self.observed()
        done = [report for report in reports if not report.problem]
        if not done:
            pytest.skip(
                f"no build in a separate process succeeded ({reports[0].headline}): see "
                "test_a_process_of_its_own"
            )
        return done[0]
