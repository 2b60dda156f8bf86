"""What a run has to do: which solutions on which workloads, and which cannot be evaluated."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, Optional

from flashinfer_bench.bench.digests import definition_digest
from flashinfer_bench.data import Definition, EvaluationStatus, Solution, Trace, TraceSet, Workload
from flashinfer_bench.errors import CapabilityError, SelectionError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from flashinfer_bench.bench.config import BenchmarkConfig
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
    hardware : str, optional
        Name of the hardware that it is for; None for any.
    """

    definition: Definition
    workload: Workload
    solutions: tuple[Solution, ...]
    hardware: Optional[str] = None

    def without(self, finished: Collection[str]) -> Optional[WorkItem]:
        """Return what is left when the named solutions are done; None if nothing is."""
        left = tuple(item for item in self.solutions if item.name not in finished)
        return replace(self, solutions=left) if left else None


@dataclass(frozen=True, eq=False)
class Build:
    """A solution to build; compared by identity."""

    definition: Definition
    solution: Solution


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

    @classmethod
    def of(cls, plans: Mapping[str, Plan]) -> Plan:
        """Return the plan that does several, each on the hardware of that name."""
        if len(plans) == 1:
            return next(iter(plans.values()))
        builds = {build.solution.name: build for plan in plans.values() for build in plan.builds}
        return cls(
            tuple(
                replace(item, hardware=name) for name, plan in plans.items() for item in plan.items
            ),
            tuple(entry for plan in plans.values() for entry in plan.skipped),
            sum(plan.resumed for plan in plans.values()),
            tuple(builds.values()),
        )


class Done(NamedTuple):
    """An evaluation that need not be repeated."""

    definition: str
    solution: str
    workload: str


def make_plan(
    trace_set: TraceSet,
    config: BenchmarkConfig,
    catalog: Catalog,
    done: Collection[Done] = (),
    *,
    device: Optional[str] = None,
    elsewhere: Optional[Callable[[Solution], Optional[tuple[SkipKind, str]]]] = None,
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
    elsewhere : callable, optional
        If solutions are built on other machines: returns why one cannot be, or None. Nothing is
        then built here.

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
    problems: list[str] = []
    items: list[WorkItem] = []
    for definition in definitions:
        traces = trace_set.workloads.get(definition.name, [])
        # A workload that is stored twice counts once.
        workloads = {trace.workload.uuid: trace.workload for trace in traces}.values()
        group = tuple(solutions[definition.name])
        items += [WorkItem(definition, workload, group) for workload in workloads if group]
        have = {"solution": group, "workload": workloads}
        if lacking := [name for name, found in have.items() if not found]:
            problems.append(f"definition {definition.name!r} has no {' and no '.join(lacking)}")
    if not items:
        raise SelectionError(
            "there is nothing to evaluate" + "".join(f"; {text}" for text in problems),
            hint="a run needs a definition with at least one workload and one solution",
        )
    for text in problems:
        logger.warning("%s", text)
    if elsewhere is None:
        catalog.select_builder("python", None, device=device)  # references are Python
    find_obstacle = elsewhere or partial(obstacle, catalog=catalog, device=device)
    obstacles = {
        one.name: found
        for group in solutions.values()
        for one in group
        if (found := find_obstacle(one)) is not None
    }
    open_ones: list[WorkItem] = []
    hindered: Counter[tuple[str, str]] = Counter()
    resumed = 0
    for item in items:
        definition_name, uuid = item.definition.name, item.workload.uuid
        names = {one.name for one in item.solutions}
        hindered.update((definition_name, name) for name in names & obstacles.keys())
        names -= obstacles.keys()
        decided = {name for name in names if Done(definition_name, name, uuid) in done}
        resumed += len(decided)
        left = item.without(decided | obstacles.keys())
        if left is not None:
            open_ones.append(left)
    skipped = tuple(
        Skipped(obstacles[name][0], definition, name, None, count, obstacles[name][1])
        for (definition, name), count in hindered.items()
    )
    # Runners begin with the definition that has most to do.
    size = Counter(item.definition.name for item in open_ones)
    builds = {one.name: Build(item.definition, one) for item in open_ones for one in item.solutions}
    ahead = [
        build
        for build in sorted(builds.values(), key=lambda build: -size[build.definition.name])
        if elsewhere is None and compiles_ahead(build.solution, catalog, device)
    ]
    return Plan(tuple(open_ones), skipped, resumed, tuple(ahead))


def obstacle(
    solution: Solution, catalog: Catalog, device: Optional[str]
) -> Optional[tuple[SkipKind, str]]:
    """Return why a solution is not for this device, or cannot be built here; None if it may be."""
    elsewhere = meant_for_other_device(solution, catalog, device)
    if elsewhere:
        return "device", elsewhere
    spec = solution.spec
    try:
        catalog.select_builder(spec.language, spec.binding, solution=solution.name, device=device)
    except CapabilityError as error:
        return "capability", str(error)
    return None


def compiles_ahead(solution: Solution, catalog: Catalog, device: Optional[str]) -> bool:
    """Return whether a builder for `solution` leaves on disk what other processes load.

    Parameters
    ----------
    solution : Solution
        What is to be built.
    catalog : Catalog
        What is installed.
    device : str, optional
        Where it shall work.
    """
    spec = solution.spec
    builders = catalog.builders_for(spec.language, spec.binding, device=device)
    return any(entry.spec.compiles and entry.availability() for entry in builders)


def selected_definitions(trace_set: TraceSet, names: Optional[Sequence[str]]) -> list[Definition]:
    """Return the definitions of a dataset, or those that are named.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    names : sequence of str, optional
        None for all.

    Raises
    ------
    UnknownNameError
        If there is no definition of one of the names.
    """
    if names is None:
        return list(trace_set.definitions.values())
    _require_known("definition", names, trace_set.definitions)
    return [item for name, item in trace_set.definitions.items() if name in names]


def selected_solutions(
    trace_set: TraceSet, definitions: Iterable[Definition], names: Optional[Sequence[str]]
) -> dict[str, list[Solution]]:
    """Return the solutions of `definitions`, or those of them that are named.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    definitions : iterable of Definition
        Some of its definitions.
    names : sequence of str, optional
        None for all.

    Returns
    -------
    dict of str to list of Solution
        By the name of the definition; each of `definitions` is a key.

    Raises
    ------
    UnknownNameError
        If there is no solution of one of the names in the whole dataset.
    """
    if names is not None:
        known = {item.name for group in trace_set.solutions.values() for item in group}
        _require_known("solution", names, known)
    return {
        definition.name: [
            item
            for item in trace_set.solutions.get(definition.name, [])
            if names is None or item.name in names
        ]
        for definition in definitions
    }


def meant_for_other_device(
    solution: Solution, catalog: Catalog, device: Optional[str]
) -> Optional[str]:
    """Say why a solution has no business on a device, or return None if it may have.

    Compiled code for the CPU would take a GPU's address for one of its own.

    Parameters
    ----------
    solution : Solution
        Names the hardware that it is written for. Only ``cpu`` alone is taken at its word: files
        that name some GPU are also evaluated on machines without one.
    catalog : Catalog
        Knows on which devices the builders' results work.
    device : str, optional
        Where the solution would work; None for anywhere.
    """
    if device is None:
        return None
    spec, kind = solution.spec, device.partition(":")[0]
    wanted = {name.strip().lower() for name in spec.target_hardware}
    if wanted == {"cpu"} and kind != "cpu":
        return f"it targets the CPU (target_hardware), and this run uses {device}"
    anywhere = catalog.builders_for(spec.language, spec.binding)
    if not anywhere or catalog.builders_for(spec.language, spec.binding, device=device):
        return None
    others = sorted({name for entry in anywhere for name in entry.spec.devices})
    return f"{spec.language} solutions need {' or '.join(others)}; this run uses {device}"


def _require_known(kind: str, names: Sequence[str], known: Collection[str]) -> None:
    if unknown := [name for name in names if name not in known]:
        raise UnknownNameError.of(kind, unknown, known)


def is_final(trace: Trace) -> bool:
    """Return whether another try would end the same: not after a time-out or a crash."""
    evaluation = trace.evaluation
    if evaluation is None or evaluation.status == EvaluationStatus.TIMEOUT:
        return False
    return evaluation.provenance is None or not evaluation.provenance.transient


def finished(trace_set: TraceSet, hardware: Collection[str]) -> set[Done]:
    """Return the evaluations that the traces of a dataset decide for good.

    A trace that was taken of another content of the solution, workload or definition of the same
    name does not count; what a trace does not tell is taken to be the same.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    hardware : collection of str
        Names of the devices that the run would use; a trace from elsewhere does not count.
    """
    solutions = {one.name: one.hash() for group in trace_set.solutions.values() for one in group}
    definitions = {name: definition_digest(one) for name, one in trace_set.definitions.items()}
    workloads = {
        (name, one.workload.uuid): one.workload
        for name, group in trace_set.workloads.items()
        for one in group
    }
    done: set[Done] = set()
    for trace in (one for group in trace_set.traces.values() for one in group):
        evaluation = trace.evaluation
        if evaluation is None or evaluation.environment.hardware not in hardware:
            continue
        of = evaluation.provenance
        taken = of.extra.get("solution_hash") if of is not None else None
        this = Done(trace.definition, str(trace.solution), trace.workload.uuid)
        if not (
            (not isinstance(taken, str) or taken == solutions.get(this.solution))
            and (of is None or of.definition_hash in (None, definitions.get(this.definition)))
            and workloads.get((this.definition, this.workload)) == trace.workload
        ):
            done.discard(this)  # reports show the latest, which shall be one of the present content
        elif is_final(trace):
            done.add(this)
    return done
