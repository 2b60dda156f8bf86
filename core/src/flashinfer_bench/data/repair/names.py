"""The definitions and solutions of a dataset, and the names that nothing answers to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data import layout
from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.data.loader import load_definition
from flashinfer_bench.data.repair.issues import Issue, Kind, issue, not_listed
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flashinfer_bench.data.trace import Trace


class Names:
    """Reads what can be named, and judges the names in records.

    Parameters
    ----------
    root : Path
        The dataset.

    Attributes
    ----------
    issues : list of Issue
        What is wrong with the files of definitions and solutions.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.issues: list[Issue] = []
        self.definitions: dict[str, Path] = {}
        self._read(layout.DEFINITIONS, self._add_definition)
        # An orphan for sure is only what no broken definition may have been the parent of.
        self._doubt = "a definition that cannot be read may be missing; mend that first"
        self._is_sure = not self.issues
        self.solutions: dict[str, tuple[Path, str]] = {}
        self._read(layout.SOLUTIONS, self._add_solution)
        self._unknown: dict[str, tuple[Path, Optional[int], int]] = {}

    def _read(self, folder: str, add: Callable[[Path], None]) -> None:
        on_error = not_listed(self._root, self.issues)
        for path in layout.files(self._root / folder, ".json", on_error=on_error):
            try:
                add(path)
            except DataError as error:
                at = f"{error.field}: " if error.field else ""
                self._add(Kind.INVALID_FILE, path, at + error.message)
            except FileNotFoundError:  # deleted since it was listed
                continue
            except OSError as error:
                self._add(Kind.UNREADABLE, path, f"cannot be read: {error.strerror or error}")

    def _add(self, kind: Kind, path: Path, message: str, hint: Optional[str] = None) -> None:
        self.issues.append(issue(kind, path.relative_to(self._root), message, hint=hint))

    def _add_definition(self, path: Path) -> None:
        name = load_definition(path, self._root).name
        if self.definitions.setdefault(name, path) is not path:
            self._tell_twice("definition", name, path, self.definitions[name])

    def _add_solution(self, path: Path) -> None:
        solution = decode(Solution, path.read_bytes(), path=path)
        known, _ = self.solutions.setdefault(solution.name, (path, solution.definition))
        if known is not path:
            self._tell_twice("solution", solution.name, path, known)
        if solution.definition not in self.definitions:
            relative = path.relative_to(self._root)
            self.issues.append(
                self._orphan(Kind.ORPHAN_SOLUTION, relative, None, solution.definition)
            )

    def _tell_twice(self, what: str, name: str, path: Path, first: Path) -> None:
        other = first.relative_to(self._root)
        message = f"there is another {what} named {name!r}: {other}"
        self._add(Kind.DUPLICATE_NAME, path, message, hint="rename or remove one of the two")

    def _orphan(self, kind: Kind, path: Path, line: Optional[int], name: str) -> Issue:
        return issue(
            kind,
            path,
            f"there is no definition {name!r} in the dataset",
            line=line,
            hint=None if self._is_sure else self._doubt,
            by_hand=not self._is_sure or (kind is Kind.ORPHAN_TRACE and line is None),
        )

    def judge(self, trace: Trace, path: Path, line: Optional[int]) -> Optional[Issue]:
        """Return what is wrong with the names in a record; unknown solutions are told later."""
        if trace.definition not in self.definitions:
            return self._orphan(Kind.ORPHAN_TRACE, path, line, trace.definition)
        if trace.solution is None:
            return None
        known = self.solutions.get(trace.solution)
        if known is None:
            first_path, first_line, count = self._unknown.get(trace.solution, (path, line, 0))
            self._unknown[trace.solution] = first_path, first_line, count + 1
            return None
        if known[1] == trace.definition:
            return None
        message = f"{trace.solution!r} is a solution of {known[1]!r}, not of {trace.definition!r}"
        return issue(Kind.WRONG_SOLUTION, path, message, line=line)

    def unknown_solutions(self) -> Iterator[Issue]:
        """Yield one issue for each solution that traces name and nobody has."""
        for name, (path, line, count) in self._unknown.items():
            traces = "this is the only trace" if count == 1 else f"this is one of {count} traces"
            message = f"there is no solution {name!r} in the dataset; {traces} of it"
            yield issue(Kind.UNKNOWN_SOLUTION, path, message, line=line)
