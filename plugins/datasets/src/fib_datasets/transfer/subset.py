"""A self-contained part of a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.selection import Selection
from flashinfer_bench.errors import SelectionError

if TYPE_CHECKING:
    from flashinfer_bench.data import Trace

_R = TypeVar("_R")


@dataclass(frozen=True)
class Subset:
    """A selection from a dataset; an empty tuple selects everything.

    Parameters
    ----------
    definitions, solutions, op_types : tuple of str
        Names or patterns. With `solutions`, only their definitions are included.
    traces : bool
        Whether to include traces of runs; workloads are always included.
    """

    definitions: tuple[str, ...] = ()
    solutions: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    traces: bool = True

    def of(self, trace_set: TraceSet) -> TraceSet:
        """Return this part of a dataset; records are shared, not copied.

        Without a filter, solutions and traces of missing definitions are included.

        Raises
        ------
        UnknownNameError
            If the dataset lacks a name.
        SelectionError
            If nothing matches.
        """
        traces = trace_set.traces if self.traces else {}
        selection = Selection(self.definitions, self.solutions, self.op_types)
        if selection == Selection():
            if not (trace_set.definitions or trace_set.solutions or trace_set.workloads):
                raise SelectionError(f"the dataset {trace_set.root} is empty")
            return TraceSet(
                trace_set.root,
                trace_set.definitions,
                trace_set.solutions,
                trace_set.workloads,
                traces,
            )
        selection.check_names(trace_set)
        solutions = {
            name: [one for one in group if selection.wants_solution(one.name, one.author)]
            for name, group in trace_set.solutions.items()
        }
        definitions = {
            name: one
            for name, one in trace_set.definitions.items()
            if selection.wants_definition(name, one.op_type)
            and (not self.solutions or solutions.get(name))
        }
        if not definitions:
            raise SelectionError("no definition matches the filters", hint="use fewer filters")
        kept: dict[str, list[Trace]] = {
            name: [trace for trace in group if selection.wants_solution(trace.solution or "", "")]
            for name, group in traces.items()
        }

        def only(groups: dict[str, list[_R]]) -> dict[str, list[_R]]:
            return {name: groups[name] for name in definitions if groups.get(name)}

        return TraceSet(
            trace_set.root, definitions, only(solutions), only(trace_set.workloads), only(kept)
        )
