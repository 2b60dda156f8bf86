"""Selecting a part of a dataset by names."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import filter as matching
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from flashinfer_bench.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.data.trace_set import TraceSet

UNKNOWN_AUTHOR = "(unknown)"
"""Author shown for a trace whose solution is not in the dataset."""


@dataclass(frozen=True)
class Selection:
    """A part of a dataset; an empty tuple selects everything.

    Parameters
    ----------
    definitions, solutions, op_types, authors, workloads : tuple of str
        Names, or patterns such as ``rmsnorm_*``.
    hardware : tuple of str
        Parts of device names, case-insensitive.
    """

    definitions: tuple[str, ...] = ()
    solutions: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()

    def check_names(self, trace_set: TraceSet) -> None:
        """Check that the dataset has all names.

        Raises
        ------
        UnknownNameError
            With the unknown names in ``unknown``, and similar names in the hint.
        """
        solutions = [one for group in trace_set.solutions.values() for one in group]
        names = {one.name for one in solutions}
        if not names.issuperset(self.solutions):  # also accept solutions that only traces name
            names.update(row.solution for row in trace_set.run_rows())
        op_types = {one.op_type for one in trace_set.definitions.values()}
        _refuse_unknown("definition", self.definitions, set(trace_set.definitions))
        _refuse_unknown("solution", self.solutions, names)
        _refuse_unknown("op_type", self.op_types, op_types)
        if self.workloads:
            uuids = {u for name in trace_set.definitions for u in trace_set.workload_uuids(name)}
            _refuse_unknown("workload", self.workloads, uuids)
        _refuse_unknown("author", self.authors, {UNKNOWN_AUTHOR, *(s.author for s in solutions)})

    def narrow(self, trace_set: TraceSet) -> TraceSet:
        """Return the selected part of a dataset, with its root and all traces.

        Raises
        ------
        UnknownNameError
            As for `check_names`.
        """
        if self == Selection():
            return trace_set
        self.check_names(trace_set)
        solutions, workloads = trace_set.solutions, trace_set.workloads
        parts = {
            name: (
                [s for s in solutions.get(name, ()) if self.wants_solution(s.name, s.author)],
                [w for w in workloads.get(name, ()) if self.wants_workload(w.workload.uuid)],
            )
            for name, one in trace_set.definitions.items()
            if self.wants_definition(name, one.op_type)
        }
        left = {name: both for name, both in parts.items() if all(both)}
        return type(trace_set)(
            trace_set.root,
            {name: trace_set.definitions[name] for name in left},
            {name: both[0] for name, both in left.items()},
            {name: both[1] for name, both in left.items()},
            trace_set.traces,
        )

    def wants_definition(self, name: str, op_type: str) -> bool:
        """Return whether the definition is selected."""
        return _wanted(name, self.definitions) and _wanted(op_type, self.op_types)

    def wants_solution(self, name: str, author: str) -> bool:
        """Return whether the solution is selected."""
        return _wanted(name, self.solutions) and _wanted(author, self.authors)

    def wants_workload(self, uuid: str) -> bool:
        """Return whether the workload is selected."""
        return _wanted(uuid, self.workloads)

    def wants_hardware(self, name: str) -> bool:
        """Return whether the device is selected."""
        parts = self.hardware
        return not parts or any(part.lower() in name.lower() for part in parts)


def _wanted(name: str, names: tuple[str, ...]) -> bool:
    return not names or name in names or any(fnmatchcase(name, each) for each in names)


def _refuse_unknown(kind: str, wanted: Sequence[str], known: set[str]) -> None:
    if unknown := [name for name in wanted if name not in known and not matching(known, name)]:
        raise UnknownNameError.of(kind, unknown, known)
