"""The part of a dataset that options or arguments name."""

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
    """Which part of a dataset to look at; an empty tuple selects everything.

    Parameters
    ----------
    definitions, solutions, op_types, authors, workloads : tuple of str
        Names, or patterns such as ``rmsnorm_*``.
    hardware : tuple of str
        Parts of the names of devices, upper and lower case being the same.
    """

    definitions: tuple[str, ...] = ()
    solutions: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()

    def check_names(self, trace_set: TraceSet) -> None:
        """Refuse names that the dataset does not have.

        Raises
        ------
        UnknownNameError
            With the unknown names in ``unknown``, and what is close to them in the hint.
        """
        solutions = [one for group in trace_set.solutions.values() for one in group]
        names = {one.name for one in solutions}
        if not names.issuperset(self.solutions):  # of traces whose solution is gone
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
        """Return the part of a dataset that is wanted, with its root and all traces.

        Raises
        ------
        UnknownNameError
            As of `check_names`.
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
        """Return whether results of this definition are wanted."""
        return _wanted(name, self.definitions) and _wanted(op_type, self.op_types)

    def wants_solution(self, name: str, author: str) -> bool:
        """Return whether results of this solution are wanted."""
        return _wanted(name, self.solutions) and _wanted(author, self.authors)

    def wants_workload(self, uuid: str) -> bool:
        """Return whether results on this workload are wanted."""
        return _wanted(uuid, self.workloads)

    def wants_hardware(self, name: str) -> bool:
        """Return whether results from this device are wanted."""
        parts = self.hardware
        return not parts or any(part.lower() in name.lower() for part in parts)


def _wanted(name: str, names: tuple[str, ...]) -> bool:
    return not names or name in names or any(fnmatchcase(name, each) for each in names)


def _refuse_unknown(kind: str, wanted: Sequence[str], known: set[str]) -> None:
    if unknown := [name for name in wanted if name not in known and not matching(known, name)]:
        raise UnknownNameError.of(kind, unknown, known)
