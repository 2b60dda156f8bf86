"""What a run has to do: which solutions on which workloads, and which cannot be evaluated."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, Optional

from flashinfer_bench.bench.resume import Done
from flashinfer_bench.errors import CapabilityError, SelectionError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.data import Definition, Solution, TraceSet, Workload
    from flashinfer_bench.plugins import Catalog

logger = logging.getLogger(__name__)

SkipKind = Literal["capability", "reference", "workload"]


@dataclass(frozen=True)
class Skipped:
    """Evaluations that cannot take place, for a reason that is not the solution's fault.

    Nothing is recorded about them, so a later run tries again.

    Attributes
    ----------
    kind : str
        ``capability``: this machine lacks something, such as the solution's builder.
        ``reference``: the definition's reference fails. ``workload``: its inputs cannot be made.
    definition : str
        Name of the definition.
    solution : str
        Name of the solution.
    workload : str, optional
        Uuid of the workload; None means all of the definition's.
    count : int
        Number of evaluations that do not take place.
    reason : str
        What to tell the user.
    """

    kind: SkipKind
    definition: str
    solution: str
    workload: Optional[str]
    count: int
    reason: str


@dataclass(frozen=True)
class WorkItem:
    """Solutions to evaluate on one workload.

    Attributes
    ----------
    definition, workload
        The problem.
    solutions : tuple of Solution
        At least one.
    """

    definition: Definition
    workload: Workload
    solutions: tuple[Solution, ...]

    def without(self, finished: Collection[str]) -> Optional[WorkItem]:
        """Return what is left when the named solutions are done; None if nothing is."""
        left = tuple(item for item in self.solutions if item.name not in finished)
        return replace(self, solutions=left) if left else None


@dataclass(frozen=True)
class Plan:
    """What a run has to do.

    Attributes
    ----------
    items : tuple of WorkItem
        Workload by workload.
    skipped : tuple of Skipped
        What is known beforehand not to be possible.
    resumed : int
        Evaluations left out because an earlier run has decided them.
    """

    items: tuple[WorkItem, ...]
    skipped: tuple[Skipped, ...]
    resumed: int

    @property
    def total(self) -> int:
        """Number of evaluations to do."""
        return sum(len(item.solutions) for item in self.items)


def make_plan(
    trace_set: TraceSet, config: BenchmarkConfig, catalog: Catalog, done: Collection[Done] = ()
) -> Plan:
    """Work out what there is to do.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    config : BenchmarkConfig
        ``definitions`` and ``solutions`` restrict the run.
    catalog : Catalog
        Tells which solutions can be built.
    done : collection of Done
        Evaluations not to repeat.

    Raises
    ------
    UnknownNameError
        If a filter names something that does not exist.
    SelectionError
        If there is nothing to evaluate at all.
    CapabilityError
        If references cannot be built.
    """
    definitions = _selected_definitions(trace_set, config.definitions)
    solutions = _selected_solutions(trace_set, definitions, config.solutions)
    problems = list(_problems(trace_set, definitions, solutions))
    everything = [
        (definition, workload, solution)
        for definition in definitions
        for workload in _workloads(trace_set, definition)
        for solution in solutions[definition.name]
    ]
    if not everything:
        raise SelectionError(
            "there is nothing to evaluate" + "".join(f"; {text}" for text in problems),
            hint="a run needs a definition with at least one workload and one solution",
        )
    for text in problems:
        logger.warning("%s", text)
    catalog.select_builder("python", None)  # references are Python
    unbuildable = _unbuildable(solutions, catalog)
    open_ones = [entry for entry in everything if entry[2].name not in unbuildable]
    left = [entry for entry in open_ones if _identity(entry) not in done]
    return Plan(
        items=tuple(_grouped(left)),
        skipped=tuple(_skips(everything, unbuildable)),
        resumed=len(open_ones) - len(left),
    )


def _workloads(trace_set: TraceSet, definition: Definition) -> list[Workload]:
    """Return the workloads of a definition, each once even if it is stored twice."""
    traces = trace_set.workloads.get(definition.name, [])
    return list({trace.workload.uuid: trace.workload for trace in traces}.values())


_Entry = tuple["Definition", "Workload", "Solution"]


def _identity(entry: _Entry) -> Done:
    definition, workload, solution = entry
    return Done(definition.name, solution.name, workload.uuid)


def _grouped(entries: Iterable[_Entry]) -> Iterator[WorkItem]:
    """Join the solutions of each workload, so that they share one pass of the reference."""
    groups: dict[tuple[str, str], list[_Entry]] = {}
    for entry in entries:
        groups.setdefault((entry[0].name, entry[1].uuid), []).append(entry)
    for group in groups.values():
        definition, workload, _ = group[0]
        yield WorkItem(definition, workload, tuple(solution for _, _, solution in group))


def _selected_definitions(trace_set: TraceSet, names: Optional[Sequence[str]]) -> list[Definition]:
    if names is None:
        return list(trace_set.definitions.values())
    _require_known("definition", names, trace_set.definitions)
    wanted = set(names)
    return [item for name, item in trace_set.definitions.items() if name in wanted]


def _selected_solutions(
    trace_set: TraceSet, definitions: Iterable[Definition], names: Optional[Sequence[str]]
) -> dict[str, list[Solution]]:
    if names is not None:
        known = {item.name for group in trace_set.solutions.values() for item in group}
        _require_known("solution", names, known)
    wanted = None if names is None else set(names)
    return {
        definition.name: [
            item
            for item in trace_set.solutions.get(definition.name, [])
            if wanted is None or item.name in wanted
        ]
        for definition in definitions
    }


def _require_known(kind: str, names: Sequence[str], known: Collection[str]) -> None:
    unknown = tuple(name for name in names if name not in known)
    if not unknown:
        return
    near = [match for name in unknown for match in get_close_matches(name, known, n=3)]
    listed = ", ".join(repr(name) for name in unknown)
    hint = f"did you mean {', '.join(dict.fromkeys(near))}?" if near else _some_of(known)
    raise UnknownNameError(f"no {kind} is called {listed}", hint=hint, unknown=unknown)


def _some_of(known: Collection[str]) -> str:
    names = sorted(known)
    return f"there are: {', '.join(names[:10])}{', …' if len(names) > 10 else ''}"


def _problems(
    trace_set: TraceSet, definitions: Iterable[Definition], solutions: dict[str, list[Solution]]
) -> Iterator[str]:
    for definition in definitions:
        lacking = [] if solutions[definition.name] else ["solution"]
        if not trace_set.workloads.get(definition.name):
            lacking.append("workload")
        if lacking:
            yield f"definition {definition.name!r} has no {' and no '.join(lacking)}"


def _unbuildable(solutions: dict[str, list[Solution]], catalog: Catalog) -> dict[str, str]:
    """Return the reason for each solution that no installed builder handles."""
    reasons: dict[str, str] = {}
    for group in solutions.values():
        for solution in group:
            try:
                catalog.select_builder(
                    solution.spec.language, solution.spec.binding, solution=solution.name
                )
            except CapabilityError as error:
                reasons[solution.name] = str(error)
    return reasons


def _skips(entries: Iterable[_Entry], reasons: dict[str, str]) -> Iterator[Skipped]:
    counts: dict[tuple[str, str], int] = {}
    for definition, _, solution in entries:
        if solution.name in reasons:
            key = (definition.name, solution.name)
            counts[key] = counts.get(key, 0) + 1
    for (definition_name, name), count in counts.items():
        yield Skipped("capability", definition_name, name, None, count, reasons[name])
