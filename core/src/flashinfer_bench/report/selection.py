"""Which part of a dataset a report is about."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from flashinfer_bench.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flashinfer_bench.data import TraceSet

UNKNOWN_AUTHOR = "(unknown)"
"""Author shown for a trace whose solution is not in the dataset."""


@dataclass(frozen=True)
class Selection:
    """Which part of a dataset to look at; an empty tuple selects everything.

    Parameters
    ----------
    definitions, solutions, op_types, authors : tuple of str
        Exact names.
    hardware : tuple of str
        Parts of the names of devices, upper and lower case being the same.
    """

    definitions: tuple[str, ...] = ()
    solutions: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()

    def check_names(self, trace_set: TraceSet) -> None:
        """Refuse names that the dataset does not have.

        Raises
        ------
        UnknownNameError
            With the unknown names in ``unknown``, and what is close to them in the hint.
        """
        solutions = [s for group in trace_set.solutions.values() for s in group]
        names = [s.name for s in solutions]
        op_types = {d.op_type for d in trace_set.definitions.values()}
        _refuse_unknown("definition", self.definitions, trace_set.definitions)
        _refuse_unknown("solution", self.solutions, {*names, *self._recorded(trace_set)})
        _refuse_unknown("op_type", self.op_types, op_types)
        _refuse_unknown("author", self.authors, {UNKNOWN_AUTHOR, *(s.author for s in solutions)})

    def _recorded(self, trace_set: TraceSet) -> set[str]:
        """Return the solutions of the traces, which may be gone from the dataset."""
        if not self.solutions:
            return set()  # going through all runs is the slow part: not without need
        groups = trace_set.run_columns().values()
        return {name for columns in groups for name in set(columns.solution)}

    def wants_definition(self, name: str, op_type: str) -> bool:
        """Return whether results of this definition are wanted."""
        return _wanted(name, self.definitions) and _wanted(op_type, self.op_types)

    def wants_solution(self, name: str, author: str) -> bool:
        """Return whether results of this solution are wanted."""
        return _wanted(name, self.solutions) and _wanted(author, self.authors)

    def wants_hardware(self, name: str) -> bool:
        """Return whether results from this device are wanted."""
        parts = self.hardware
        return not parts or any(part.lower() in name.lower() for part in parts)


def _wanted(name: str, names: tuple[str, ...]) -> bool:
    return not names or name in names


def _refuse_unknown(kind: str, wanted: Sequence[str], known: Iterable[str]) -> None:
    there = set(known)
    unknown = tuple(name for name in wanted if name not in there)
    if not unknown:
        return
    close = get_close_matches(unknown[0], there, n=3)
    listed = close or sorted(there)[:8]
    label = "did you mean" if close else f"some of the {len(there)} that there are"
    raise UnknownNameError(
        f"the dataset has no {kind} {', '.join(map(repr, unknown))}",
        hint=f"{label}: {', '.join(listed)}" if listed else f"the dataset has no {kind} at all",
        unknown=unknown,
    )
