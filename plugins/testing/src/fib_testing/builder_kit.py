"""What the author of a builder gives, and what the tests of builders work with."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Optional

import pytest

from fib_testing.children import ChildReport, ChildTask, run_children
from fib_testing.records import RecordCase, construct, keep, raised_by
from fib_testing.samples import default_workload, run_reference
from flashinfer_bench.data import CompileOptions, Definition, Solution, SourceFile, Workload
from flashinfer_bench.errors import BuildError
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
        What is wrong with it is up to the author of the builder.
    expect : str
        A part of the error's message, hint or log: what a user needs to find the mistake.
    """

    solution: Solution
    expect: str


@dataclass(frozen=True, kw_only=True)
class BuilderCase(RecordCase):
    """A builder, a correct solution for it, and what goes with them.

    Broken variants of the solution are derived from it.

    Parameters
    ----------
    record : BuilderSpec or str
        What the plugin registers. A factory's path, ``"package.module:Name"``, does where there
        is no record yet; the checks of the record are then skipped.
    definition : Definition
        What the solution computes. `sample_definition` is a small one.
    solution : Solution
        A correct one, which needs no more than a second to run.
    twin : Solution, optional
        One with the same file names and the same definition that computes something else.
    other_style : Solution, optional
        A correct one of the other calling convention, for a builder that knows both.
    failing : tuple of FailingSolution
        Further solutions that must not build.
    workload : Workload, optional
        Says how the inputs come about. By default the variable axes get small sizes and all
        tensors random values, which a definition with constraints, or with tensors that index
        into others, may not allow.
    root : Path, optional
        Where the workload's files are.
    inputs : callable, optional
        Makes the inputs, in place of a workload: new objects at each call, with the same values.
    device : str
        Where they are: ``"cpu"``, ``"cuda"``, …
    garbage : str
        What is put in the place of the entry file: no program in any language.
    rtol, atol : float, optional
        Tolerances, both or none; by default those of `torch.testing.assert_close`.
    other_options : CompileOptions, optional
        With these the solution must be compiled anew, or be refused. Default: its own, and a
        definition for the preprocessor (``-D…``) for both the host's compiler and nvcc.
    libraries : str
        Names of the files in the cache that are loaded, as a pattern: ``"*.wasm"``. Default: all
        files that are not text.
    plugin : str, optional
        The plugin's module, as in its entry point. Default: the top-level package of the factory.
    tolerates : mapping of str to str
        Changes to the process, or files left behind, that a library causes and the builder cannot
        help: the name as the failed test prints it, and why.
    """

    definition: Definition
    solution: Solution
    twin: Optional[Solution] = None
    other_style: Optional[Solution] = None
    failing: tuple[FailingSolution, ...] = ()
    workload: Optional[Workload] = None
    root: Optional[Path] = None
    inputs: Optional[Callable[[], Sequence[Any]]] = None
    device: str = "cpu"
    garbage: str = "@@@ this is ]] not a program {{ in any language\n"
    rtol: Optional[float] = None
    atol: Optional[float] = None
    other_options: Optional[CompileOptions] = None
    libraries: str = ""
    tolerates: Mapping[str, str] = field(default_factory=dict)

    @property
    def compiles(self) -> bool:
        """Whether builds leave something on disk that other processes load."""
        return bool(getattr(self.record, "compiles", False))

    @property
    def options(self) -> CompileOptions:
        """Compile options other than the solution's."""
        if self.other_options is not None:
            return self.other_options
        own = self.solution.spec.compile_options or CompileOptions()
        changes = {name: [*getattr(own, name), _DEFINE] for name in ("cflags", "cuda_cflags")}
        return own.model_copy(update=changes)

    def make_inputs(self) -> list[Any]:
        """Return the inputs, made anew, in declaration order."""
        from flashinfer_bench.tensors import generate_inputs

        if self.inputs is not None:
            return list(self.inputs())
        workload = self.workload or default_workload(self.definition)
        return generate_inputs(
            self.definition, workload, seed=_SEED, root=self.root, device=self.device
        )

    def make_outputs(self, inputs: Sequence[Any]) -> list[Any]:
        """Return outputs to be written into, poisoned, for `inputs`."""
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

    A solution like this can be made by leaving out the checks, as somebody who unpickles or
    constructs it by hand might: a builder is the last one to look.
    """
    unsafe = SourceFile.model_construct(path=path, content=content)
    return solution.model_copy(update={"sources": [*solution.sources, unsafe]})


def with_constant(definition: Definition) -> Definition:
    """Return `definition` with one more constant axis, which nothing refers to."""
    record = definition.model_dump(mode="json")
    record["axes"][_AXIS] = {"type": "const", "value": 7}
    return Definition.model_validate(record)


class BuilderKit:
    """A case, the processes that build it, and what is cleaned up after the test.

    Parameters
    ----------
    suite : BuilderConformance
        Says whether the builder can be used here.
    case : BuilderCase
        What the author gives.
    request : pytest.FixtureRequest
        Of the running test.
    folders : pytest.TempPathFactory
        Makes folders for the cache and for processes.
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
        # ``FIB_CACHE_PATH`` of all tests of a class: what a compiler made is used again.
        self.cache: Path = self.keep("cache", lambda: folders.mktemp("conformance-cache"))
        os.environ["FIB_CACHE_PATH"] = str(self.cache)
        # Builders that change the process are watched in children, which start as this one did.
        self._env, self._sys_path = dict(os.environ), list(sys.path)

    def keep(self, label: Hashable, make: Callable[[], Any]) -> Any:
        """Return ``make()``, made once for the class and the case."""
        case = self.case
        # What tells cases apart that share a class, as with a parametrized fixture.
        key = (label, case.factory, case.definition.name, case.solution.hash(), case.device)
        return keep(self._request, key, make)

    # ------------------------------------------------------------------- builds

    def builder(self) -> Builder:
        """Return a new builder; skip the test if there is none, or it cannot be used here."""
        self._suite.require_available(self.case, self._request)
        made: Builder = construct(self.case)
        return made

    def languages(self) -> set[str]:
        """Return the languages of all installed records that name this builder."""
        # What is wrong with other plugins is none of this one's business.
        catalog = discover(replace(Settings.from_env(), strict=False))
        records = [e.spec for e in catalog.builders if e.spec.factory == self.case.factory]
        records += [] if isinstance(self.case.record, str) else [self.case.record]
        handled = {language for spec in records for language, _ in spec.handles}
        return handled | {str(self.solution.spec.language)}

    def build(self, solution: Optional[Solution] = None, by: Optional[Builder] = None) -> Runnable:
        """Build a solution (default: the correct one), to be cleaned up after the test."""
        builder = by or self.builder()
        if self.case.compiles and solution is None:
            self.observed()  # first, for it is to find the cache empty
        made = builder.build(self.case.definition, solution or self.solution)
        self._built.append(made)
        return made

    def build_good(self, by: Optional[Builder] = None) -> Runnable:
        """Build the correct solution; skip the test if that fails, which another test reports."""
        from flashinfer_bench.compile import Runnable

        builder = by or self.builder()
        if not builder.can_build(self.solution):
            pytest.skip("can_build refuses it: see test_can_build_accepts_its_own_language")
        if raised_by(lambda: self.build(by=builder)) or not isinstance(self._built[-1], Runnable):
            pytest.skip(_SEE_BUILD)
        return self._built[-1]

    def error_of(self, solution: Solution, by: Optional[Builder] = None) -> BaseException | None:
        """Return what building `solution` raises; None if it does not."""
        builder = by or self.builder()
        return raised_by(lambda: self.build(solution, builder))

    def garbage_error(self) -> BuildError:
        """Return the BuildError of what is no program; skip the test if it is something else."""
        error = self.error_of(self.garbage)
        if not isinstance(error, BuildError):
            pytest.skip("there is no BuildError to look at: see test_garbage_is_a_build_error")
        return error

    def close_all(self) -> None:
        """Clean up all builds; `test_cleaning_up` reports what that raises."""
        for runnable in self._built:
            raised_by(runnable.cleanup)

    # ------------------------------------------------------------------ outputs

    def difference(self, actual: Optional[Sequence[Any]]) -> str:
        """Return how outputs differ from the reference's; empty if they do not, or are missing."""
        import torch

        case = self.case
        expected = self.keep("expected", lambda: run_reference(case.definition, case.make_inputs()))
        if actual is None:
            return ""
        if len(actual) != len(expected):
            return f"{len(actual)} outputs in place of {len(expected)}"
        for name, ours, theirs in zip(case.definition.outputs, actual, expected, strict=True):
            try:
                torch.testing.assert_close(
                    torch.as_tensor(ours).cpu(),
                    torch.as_tensor(theirs).cpu(),
                    rtol=case.rtol,
                    atol=case.atol,
                    equal_nan=True,
                )
            except AssertionError as error:
                return f"output {name!r}: {' '.join(str(error).split())}"
        return ""

    def arguments(self) -> list[Any]:
        """Return inputs, and poisoned outputs after them."""
        inputs = self.case.make_inputs()
        return [*inputs, *self.case.make_outputs(inputs)]

    def outputs_of(self, runnable: Runnable) -> list[Any]:
        """Call a runnable with inputs and outputs, and return the outputs."""
        arguments = self.arguments()
        runnable.call_destination_passing(*arguments)
        return arguments[len(self.case.definition.inputs) :]

    # ---------------------------------------------------------------- processes

    def task(self, **fields: Any) -> ChildTask:
        """Return what a process is to build: the correct solution, but for `fields`."""
        case = self.case
        given = {"definition": case.definition, "solution": self.solution, "cache": self.cache}
        return ChildTask(
            factory=case.factory, env=self._env, sys_path=self._sys_path, **{**given, **fields}
        )

    def run(self, *tasks: ChildTask, together: bool = False) -> list[ChildReport]:
        """Return what processes of their own did with `tasks`, all at the same time."""
        folder = self._folders.mktemp("conformance-children")
        return run_children(folder, tasks, self.arguments(), together=together)

    def observed(self) -> list[ChildReport]:
        """Return what two processes of their own did that first built it, at the same time."""
        # What a compiler made is used by all tests of the class; other builds leave nothing to use.
        first = self.case.compiles
        cache = self.cache if first else self.cache.with_name(f"{self.cache.name}-cold")
        self.builder()
        task = self.task(cache=cache, compile_first=first)
        reports: list[ChildReport] = self.keep("first", lambda: self.run(task, task, together=True))
        return reports

    def observed_again(self) -> ChildReport:
        """Return what another process did when it found everything in the cache."""
        self.observed()
        report: ChildReport = self.keep("again", lambda: self.run(self.task())[0])
        return report

    def observed_to_the_end(self) -> ChildReport:
        """Return the report of a process that came to the end; skip the test if none did."""
        self.build_good()
        reports = self.observed()
        done = [report for report in reports if not report.problem]
        if not done:
            pytest.skip(
                f"no build in a process of its own succeeded ({reports[0].headline}): see "
                "test_a_process_of_its_own"
            )
        return done[0]
