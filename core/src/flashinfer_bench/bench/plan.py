"""What a run has to do: which solutions on which workloads, and which cannot be evaluated."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Optional

from flashinfer_bench.bench.builds import Build, compiles_ahead, solution_key
from flashinfer_bench.bench.resume import Done
from flashinfer_bench.bench.selection import (
    meant_for_other_device,
    selected_definitions,
    selected_solutions,
)
from flashinfer_bench.errors import CapabilityError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.data import Definition, Solution, TraceSet, Workload
    from flashinfer_bench.plugins import Catalog

logger = logging.getLogger(__name__)

SkipKind = Literal["capability", "device", "reference", "workload"]


@dataclass(frozen=True)
class Skipped:
    """Evaluations that cannot take place, for a reason that is not the solution's fault.

    Nothing is recorded about them, so a later run tries again.

    Attributes
    ----------
    kind : str
        ``capability``: this machine lacks something, such as the solution's builder, or room on
        the disk. ``device``: the solution is for another kind of device than the run's.
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
    builds : tuple of Build
        The solutions in `items` that can be compiled ahead of their evaluation.
    """

    items: tuple[WorkItem, ...]
    skipped: tuple[Skipped, ...]
    resumed: int
    builds: tuple[Build, ...] = ()

    @property
    def total(self) -> int:
        """Number of evaluations to do."""
        return sum(len(item.solutions) for item in self.items)


def make_plan(
    trace_set: TraceSet,
    config: BenchmarkConfig,
    catalog: Catalog,
    done: Collection[Done] = (),
    *,
    device: Optional[str] = None,
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
    device : str, optional
        Where it is to be done: leave out what is only built for others.

    Raises
    ------
    UnknownNameError
        If a filter names something that does not exist.
    SelectionError
        If there is nothing to evaluate at all.
    CapabilityError
        If references cannot be built.
    """
    definitions = selected_definitions(trace_set, config.definitions)
    solutions = selected_solutions(trace_set, definitions, config.solutions)
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
    catalog.select_builder("python", None, device=device)  # references are Python
    unfit = _unfit(solutions, catalog, device)
    open_ones = [entry for entry in everything if entry[2].name not in unfit]
    left = [entry for entry in open_ones if _identity(entry) not in done]
    return Plan(
        items=tuple(_grouped(left)),
        skipped=tuple(_skips(everything, unfit)),
        resumed=len(open_ones) - len(left),
        builds=tuple(_compiled(left, catalog, device)),
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


def _problems(
    trace_set: TraceSet, definitions: Iterable[Definition], solutions: dict[str, list[Solution]]
) -> Iterator[str]:
    for definition in definitions:
        lacking = [] if solutions[definition.name] else ["solution"]
        if not trace_set.workloads.get(definition.name):
            lacking.append("workload")
        if lacking:
            yield f"definition {definition.name!r} has no {' and no '.join(lacking)}"


_Reason = tuple[SkipKind, str]


def _unfit(
    solutions: dict[str, list[Solution]], catalog: Catalog, device: Optional[str]
) -> dict[str, _Reason]:
    """Return why, for each solution that is for another device or that nothing here can build."""
    reasons: dict[str, _Reason] = {}
    for group in solutions.values():
        for solution in group:
            spec, name = solution.spec, solution.name
            elsewhere = meant_for_other_device(solution, catalog, device)
            if elsewhere:
                reasons[name] = ("device", elsewhere)
                continue
            try:
                catalog.select_builder(spec.language, spec.binding, solution=name, device=device)
            except CapabilityError as error:
                reasons[name] = ("capability", str(error))
    return reasons


def _compiled(
    entries: Iterable[_Entry], catalog: Catalog, device: Optional[str]
) -> Iterator[Build]:
    """Yield each solution that a builder can compile ahead, once, in the order of evaluation."""
    seen = set()
    for definition, _, solution in entries:
        if (key := solution_key(solution)) not in seen:
            seen.add(key)
            if compiles_ahead(solution, catalog, device):
                yield Build(definition, solution)


def _skips(entries: Iterable[_Entry], reasons: dict[str, _Reason]) -> Iterator[Skipped]:
    counts: dict[tuple[str, str], int] = {}
    for definition, _, solution in entries:
        if solution.name in reasons:
            key = (definition.name, solution.name)
            counts[key] = counts.get(key, 0) + 1
    for (definition_name, name), count in counts.items():
        kind, reason = reasons[name]
        yield Skipped(kind, definition_name, name, None, count, reason)
