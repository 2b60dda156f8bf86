"""Checks of solutions that must not build."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.errors import BuildError, FibError
from flashinfer_bench.testing.builders.variants import (
    MISSING,
    with_entry_content,
    with_symbol,
    with_unsafe_source,
)
from flashinfer_bench.testing.verdict import bullets, fail, in_short, require, skip

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.data import Solution
    from flashinfer_bench.testing.builders.kit import BuilderKit

_MARK = "fib_conformance_escaped.txt"
_LONGEST_HEADLINE = 2000
_SEE_GARBAGE = "test_garbage_is_a_build_error"


class ErrorChecks:
    """What cannot be built says so in a way that the user, and the judge, can work with."""

    def test_a_missing_entry_symbol_is_a_build_error(self, kit: BuilderKit) -> None:
        """The entry point names a symbol that the sources do not have."""
        kit.build_good()
        error = kit.error_of(with_symbol(kit.solution, MISSING))
        _require_build_error(error, f"a solution whose entry symbol {MISSING!r} does not exist")
        require(
            MISSING in str(error) + getattr(error, "log", ""),
            f"the error does not name the missing symbol: {error}",
            why="the user has to guess what was looked for",
            fix="say which symbol is missing in which file",
        )

    def test_garbage_is_a_build_error(self, kit: BuilderKit) -> None:
        """The entry file is no program."""
        _require_build_error(kit.error_of(self._garbage(kit)), "a solution that is no program")

    def test_a_build_error_names_the_solution_in_one_line(self, kit: BuilderKit) -> None:
        """The message is a headline; the rest belongs into the log."""
        error = kit.build_error_of(self._garbage(kit), _SEE_GARBAGE)
        require(
            "\n" not in error.message and 0 < len(error.message) <= _LONGEST_HEADLINE,
            f"the message has {len(error.message.splitlines())} lines and {len(error.message)} "
            f"characters: {error.message[:300]!r}",
            why="it is shown in a table, beside those of other solutions",
            fix="use toolkit.build_failed(name, what, log): the first error becomes the headline",
        )
        require(
            kit.solution.name in error.message,
            f"the message does not name the solution: {error.message!r}",
            why="in a run of hundreds nobody knows which one failed",
            fix="begin with: solution 'name': …",
        )

    def test_a_build_error_carries_the_log(self, kit: BuilderKit) -> None:
        """Everything that the compiler or importer said is in `BuildError.log`."""
        error = kit.build_error_of(self._garbage(kit), _SEE_GARBAGE)
        require(
            error.log.strip(),
            f"the error of a solution that is no program has an empty log: {error.message}",
            why="the trace of the failed build keeps the log, and it is all that its author gets",
            fix="pass the compiler's whole output, or the traceback, as BuildError(log=…)",
        )

    def test_a_build_error_can_be_pickled(self, kit: BuilderKit) -> None:
        """It arrives in another process as what it was."""
        error = kit.build_error_of(self._garbage(kit), _SEE_GARBAGE)
        try:
            copy = pickle.loads(pickle.dumps(error))
        except Exception as problem:  # noqa: BLE001 - a plugin's class may raise anything
            fail(
                f"the BuildError cannot be pickled and loaded: {in_short(problem)}",
                why="tools that build in worker processes lose the error, or hang",
                fix="raise BuildError itself; a subclass must accept its message alone",
            )
        require(
            (type(copy), str(copy), copy.log) == (type(error), str(error), error.log),
            f"pickled and loaded, the error reads {copy!r} in place of {error!r}",
            why="tools that build in worker processes show something else",
            fix="raise BuildError itself, or keep `args` and `__dict__` as they are",
        )

    def test_paths_that_leave_the_folder_are_refused(self, kit: BuilderKit, tmp_path: Path) -> None:
        """A source file with ``..`` or an absolute path is an error, and is not written."""
        wrong = []
        for path in (f"../{_MARK}", f"a/../../{_MARK}", str(tmp_path / _MARK)):
            solution = with_unsafe_source(kit.solution, path, f"written by way of {path}\n")
            error = kit.error_of(solution)
            if not isinstance(error, FibError):
                wrong.append(f"{path!r}: {'no error' if error is None else in_short(error)}")
        escaped = [*tmp_path.rglob(_MARK), *kit.cache.rglob(_MARK)]
        wrong += [f"it was written to {file}" for file in escaped]
        for file in escaped:
            file.unlink()
        require(
            not wrong,
            "source files outside of the solution's folder:\n" + bullets(wrong),
            why="a solution of a stranger could overwrite any file of the user",
            fix="write sources with toolkit.write_sources, which looks at all paths first",
        )

    def test_a_failed_build_spoils_nothing(self, kit: BuilderKit) -> None:
        """After a failure the same builder builds the correct solution."""
        builder = kit.builder()
        kit.close(kit.build_good(builder))
        for broken in (self._garbage(kit), with_symbol(kit.solution, MISSING)):
            kit.error_of(broken, builder)
            error = kit.error_of(kit.solution, builder)
            require(
                error is None,
                f"after a failed build the correct solution does not build: {error}",
                why="one broken solution takes all later ones with it",
                fix="keep nothing of a failed build, in memory or in the cache",
            )

    def test_the_author_s_failing_solutions(self, kit: BuilderKit) -> None:
        """Each of `BuilderCase.failing` fails with the text that it expects."""
        if not kit.case.failing:
            skip("the case names no further solutions that must fail (failing)")
        kit.build_good()
        wrong = []
        for each in kit.case.failing:
            error = kit.error_of(each.solution)
            told = "" if error is None else f"{error}\n{getattr(error, 'log', '')}"
            if not isinstance(error, BuildError):
                found = "no error" if error is None else in_short(error)
                wrong.append(f"{each.solution.name!r}: {found}, not a BuildError")
            elif each.expect not in told:
                wrong.append(f"{each.solution.name!r}: {each.expect!r} is not in: {error}")
        require(
            not wrong,
            "solutions that must fail:\n" + bullets(wrong),
            why="the case says that users need that text to find their mistake",
            fix="mend the builder, or the text that the case expects",
        )

    def _garbage(self, kit: BuilderKit) -> Solution:
        return with_entry_content(kit.solution, kit.case.garbage)


def _require_build_error(error: Optional[BaseException], what: str) -> None:
    found = "was built" if error is None else f"raised {in_short(error)}"
    require(
        isinstance(error, BuildError),
        f"{what} {found}, where a BuildError was due",
        why="the judge records a BuildError as COMPILE_ERROR, with its log; anything else looks "
        "like a mistake of the builder, and a build that goes through fails later, elsewhere",
        fix="check the exit status and the symbol when building, and raise BuildError "
        "(toolkit.build_failed makes one from a compiler's output)",
    )
