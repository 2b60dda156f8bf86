"""What the tests of a builder work with: a cache, builders, builds that are cleaned up."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Optional, TypeVar

from flashinfer_bench.errors import BuildError
from flashinfer_bench.testing.records import construct, keep, require_available
from flashinfer_bench.testing.reference import run_reference
from flashinfer_bench.testing.verdict import fail, skip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pytest

    from flashinfer_bench.compile import Builder, Runnable
    from flashinfer_bench.data import Solution
    from flashinfer_bench.testing.builders.case import BuilderCase
    from flashinfer_bench.testing.children import Children, ChildReport, ChildTask

_Made = TypeVar("_Made")
PROCESSES = 2
SEE_BUILD = "the correct solution does not build: see test_the_solution_builds"


class BuilderKit:
    """Everything that a check of a builder needs.

    Parameters
    ----------
    case : BuilderCase
        What the author gives.
    request : pytest.FixtureRequest
        Of the running test.
    cache : Path
        ``FIB_CACHE_PATH``, the same for all tests of a class: what a compiler made is used again.
    children : Children
        Starts processes.
    """

    def __init__(
        self, case: BuilderCase, request: pytest.FixtureRequest, cache: Path, children: Children
    ) -> None:
        self.case = case
        self.cache = cache
        self.children = children
        self._request = request
        self._built: list[Runnable] = []
        # Builders that change the process are watched in children, which start as this one did.
        self._env, self._sys_path = dict(os.environ), list(sys.path)

    @property
    def solution(self) -> Solution:
        """The correct solution."""
        return self.case.solution

    def require_available(self) -> None:
        """Skip the test if the record's probe says that the builder cannot be used here."""
        require_available(self.case, self._request)

    def builder(self) -> Builder:
        """Return a new builder; skip the test if there is none, or it cannot be used here."""
        self.require_available()
        made: Builder = construct(self.case)
        return made

    def languages(self) -> set[str]:
        """Return the languages of all installed records that name this builder."""
        from flashinfer_bench.plugins import Settings, discover

        # What is wrong with other plugins is none of this one's business.
        catalog = discover(replace(Settings.from_env(), strict=False))
        installed = [entry.spec for entry in catalog.builders]
        given = [self.case.spec] if self.case.spec is not None else []
        records = [spec for spec in installed if spec.factory == self.case.factory]
        handled = {language for spec in records + given for language, _ in spec.handles}
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
            skip("can_build refuses it: see test_can_build_accepts_its_own_language")
        try:
            made = self.build(by=builder)
        except (Exception, SystemExit):  # noqa: BLE001 - a plugin's code may raise anything
            skip(SEE_BUILD)
        if not isinstance(made, Runnable):
            skip(SEE_BUILD)
        return made

    def error_of(self, solution: Solution, by: Optional[Builder] = None) -> BaseException | None:
        """Return what building `solution` raises; None if it does not."""
        try:
            self.build(solution, by)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is looked at
            return error
        return None

    def build_error_of(self, solution: Solution, see: str) -> BuildError:
        """Return the BuildError of a broken solution; skip if it is something else."""
        error = self.error_of(solution)
        if not isinstance(error, BuildError):
            skip(f"there is no BuildError to look at: see {see}")
        return error

    def expected(self) -> list[Any]:
        """Return what the definition's reference makes of the inputs; made once for the class."""
        made: list[Any] = keep(self._request, ("expected", *self.key(self.case)), self._expected)
        return made

    def _expected(self) -> list[Any]:
        return run_reference(self.case.definition, self.case.make_inputs())

    def difference(self, actual: Sequence[Any]) -> str:
        """Return how outputs differ from the reference's; empty if they do not."""
        import torch

        expected = self.expected()
        if len(actual) != len(expected):
            return f"{len(actual)} outputs in place of {len(expected)}"
        names = list(self.case.definition.outputs)
        for name, ours, theirs in zip(names, actual, expected, strict=True):
            try:
                torch.testing.assert_close(
                    torch.as_tensor(ours).cpu(),
                    torch.as_tensor(theirs).cpu(),
                    rtol=self.case.rtol,
                    atol=self.case.atol,
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

    def observed(self) -> list[ChildReport]:
        """Return what processes of their own did that first built it, at the same time."""
        # What a compiler made is used by all tests of the class; other builds leave nothing to use.
        cold = self.cache if self.case.compiles else self.cache.with_name(f"{self.cache.name}-cold")
        return self._reports("first", cold, PROCESSES)

    def observed_again(self) -> ChildReport:
        """Return what another process did when it found everything in the cache."""
        self.observed()
        return self._reports("again", self.cache, 1)[0]

    def run(self, tasks: Sequence[ChildTask]) -> list[ChildReport]:
        """Return what processes of their own did with `tasks`, all at the same time."""
        return self.children.build_each(
            self.case.factory, tasks, self.arguments(), env=self._env, sys_path=self._sys_path
        )

    def keep(self, label: str, make: Callable[[], _Made]) -> _Made:
        """Return ``make()``, made once for the class and the case."""
        made: _Made = keep(self._request, (label, *self.key(self.case)), make)
        return made

    def _reports(self, label: str, cache: Path, count: int) -> list[ChildReport]:
        def build() -> list[ChildReport]:
            return self.children.build(
                self.case.factory,
                self.case.definition,
                self.solution,
                self.arguments(),
                cache=cache,
                env=self._env,
                sys_path=self._sys_path,
                processes=count,
                compile_first=self.case.compiles,
            )

        self.builder()
        made: list[ChildReport] = keep(self._request, (label, *self.key(self.case)), build)
        return made

    @staticmethod
    def key(case: BuilderCase) -> tuple[str, ...]:
        """Return what tells cases apart that share a class, as with a parametrized fixture."""
        return (case.factory, case.definition.name, case.solution.hash(), case.device)

    def difference_in(self, report: ChildReport) -> str:
        """Return how the outputs of a child differ from the reference's; empty if they do not."""
        return "" if report.outputs is None else self.difference(report.outputs)

    def close(self, runnable: Runnable) -> None:
        """Clean up one build; `test_cleaning_up` reports what that raises, other tests need not."""
        with suppress(Exception):
            runnable.cleanup()

    def close_all(self) -> None:
        """Clean up all builds."""
        for runnable in self._built:
            self.close(runnable)


def fail_unbuilt(error: BaseException, solution: Solution) -> NoReturn:
    """Fail because a solution that should build does not."""
    log = getattr(error, "log", "")
    fail(
        f"building {solution.name!r} raised {type(error).__name__}: {error}\n{log[-1500:]}",
        why="users get no runnable from a correct solution",
        fix="mend the builder; or the case, if its solution is not correct",
    )
