"""A part of a dataset that can stand alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.errors import SelectionError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.data.trace import Trace


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

    @property
    def is_everything(self) -> bool:
        """Whether no filter is set."""
        return not (self.definitions or self.solutions or self.op_types)

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
        if self.is_everything:
            return self._whole(trace_set)
        self._check_names(trace_set)
        names = self._definitions_of(trace_set)
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

    def _check_names(self, trace_set: TraceSet) -> None:
        solutions = [one.name for group in trace_set.solutions.values() for one in group]
        op_types = [one.op_type for one in trace_set.definitions.values()]
        _refuse_unknown("definition", self.definitions, trace_set.definitions)
        _refuse_unknown("solution", self.solutions, solutions)
        _refuse_unknown("op type", self.op_types, op_types)

    def _definitions_of(self, trace_set: TraceSet) -> list[str]:
        names = [
            name
            for name, one in trace_set.definitions.items()
            if (not self.definitions or name in self.definitions)
            and (not self.op_types or one.op_type in self.op_types)
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


def _refuse_unknown(kind: str, wanted: tuple[str, ...], known: Iterable[str]) -> None:
    from difflib import get_close_matches

    there = sorted(set(known))
    unknown = tuple(name for name in wanted if name not in there)
    if not unknown:
        return
    near = get_close_matches(unknown[0], there) or there[:8]
    raise UnknownNameError(
        f"the dataset has no {kind} {', '.join(map(repr, unknown))}",
        hint=f"there is {', '.join(near)}" if near else f"it has no {kind} at all",
        unknown=unknown,
    )
