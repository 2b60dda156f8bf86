"""A part of a dataset that can stand alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.errors import SelectionError

if TYPE_CHECKING:
    from flashinfer_bench.data.trace import Trace
    from flashinfer_bench.report import Selection


@dataclass(frozen=True)
class Subset:
    """What of a dataset to take; an empty tuple takes everything.

    Parameters
    ----------
    definitions, solutions, op_types : tuple of str
        Exact names. With `solutions`, only their definitions are taken.
    traces : bool
        Whether traces of runs are taken; workloads always are.
    """

    definitions: tuple[str, ...] = ()
    solutions: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    traces: bool = True

    def of(self, trace_set: TraceSet) -> TraceSet:
        """Return this part of a dataset; records are shared, not copied.

        Without a filter, solutions and traces of definitions that are missing are taken, too.

        Raises
        ------
        UnknownNameError
            If the dataset does not have what is named.
        SelectionError
            If nothing is left.
        """
        if not (self.definitions or self.solutions or self.op_types):
            return self._whole(trace_set)
        from flashinfer_bench.report import Selection

        selection = Selection(self.definitions, self.solutions, self.op_types)
        selection.check_names(trace_set)
        names = self._definitions_of(trace_set, selection)
        solutions = {
            name: [one for one in trace_set.solutions.get(name, ()) if self._wants(one.name)]
            for name in names
        }
        return TraceSet(
            trace_set.root,
            definitions={name: trace_set.definitions[name] for name in names},
            solutions={name: group for name, group in solutions.items() if group},
            workloads=_of(trace_set.workloads, names),
            traces=self._traces_of(trace_set, names),
        )

    def _whole(self, trace_set: TraceSet) -> TraceSet:
        if not (trace_set.definitions or trace_set.solutions or trace_set.workloads):
            raise SelectionError(f"there is nothing in the dataset {trace_set.root}")
        return TraceSet(
            trace_set.root,
            definitions=trace_set.definitions,
            solutions=trace_set.solutions,
            workloads=trace_set.workloads,
            traces=trace_set.traces if self.traces else {},
        )

    def _definitions_of(self, trace_set: TraceSet, selection: Selection) -> list[str]:
        names = [
            name
            for name, one in trace_set.definitions.items()
            if selection.wants_definition(name, one.op_type)
            and (not self.solutions or self._has_wanted(trace_set, name))
        ]
        if not names:
            raise SelectionError("the filters leave no definition", hint="widen the filters")
        return names

    def _has_wanted(self, trace_set: TraceSet, definition: str) -> bool:
        return any(self._wants(one.name) for one in trace_set.solutions.get(definition, ()))

    def _wants(self, solution: str | None) -> bool:
        return not self.solutions or solution in self.solutions

    def _traces_of(self, trace_set: TraceSet, names: list[str]) -> dict[str, list[Trace]]:
        if not self.traces:
            return {}
        kept = _of(trace_set.traces, names)
        return {
            name: [trace for trace in traces if self._wants(trace.solution)]
            for name, traces in kept.items()
        }


def _of(groups: dict[str, list[Trace]], names: list[str]) -> dict[str, list[Trace]]:
    return {name: groups[name] for name in names if name in groups}
