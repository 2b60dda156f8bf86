"""Definitions that lack workloads, solutions or evaluations on a device."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fib_report.results import collect_results, grouped
from fib_report.scores import natural_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fib_report.results import Result
    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.data.selection import Selection


@dataclass(frozen=True)
class DefinitionCoverage:
    """Counts for one definition, and what is missing.

    Attributes
    ----------
    solutions, workloads : int
        Number in the dataset. Those that only traces name do not count.
    evaluated : mapping of str to int
        Evaluated pairs of solution and workload, by device.
    pairs : int
        All pairs of solution and workload.
    unsolved : tuple of str
        Devices with evaluations of which none passed.
    missing : tuple of str
        The gaps in words: ``no workloads``, ``no solutions``, ``not on NVIDIA H200``,
        ``12 of 40 evaluations on NVIDIA H200``, ``no solution by baseline``.
    """

    definition: str
    op_type: str
    solutions: int
    workloads: int
    pairs: int
    evaluated: Mapping[str, int]
    unsolved: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing


def find_gaps(
    trace_set: TraceSet, selection: Selection, baseline_author: str = "baseline"
) -> list[DefinitionCoverage]:
    """Return what is in the dataset for each definition, and what is missing.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    selection : Selection
        The definitions, op types and devices to look at. A device that was used for one definition
        is expected for all.
    baseline_author : str
        Author expected to have a solution of each definition, if they have any solution.

    Returns
    -------
    list of DefinitionCoverage
        In natural order of the names of the definitions.

    Raises
    ------
    UnknownNameError
        If the selection names what the dataset does not have.
    """
    chosen = replace(selection, solutions=(), authors=(), workloads=())
    runs = grouped(collect_results(trace_set, chosen), "definition")
    devices = sorted({one.hardware for group in runs.values() for one in group})
    authors = {one.author for group in trace_set.solutions.values() for one in group}
    expected = baseline_author if baseline_author in authors else ""
    names = [
        name
        for name, definition in trace_set.definitions.items()
        if chosen.wants_definition(name, definition.op_type)
    ]
    return [
        _cover(trace_set, name, runs.get(name, []), devices, expected)
        for name in sorted(names, key=natural_order)
    ]


def _cover(
    trace_set: TraceSet,
    name: str,
    runs: Sequence[Result],
    devices: Sequence[str],
    baseline_author: str,
) -> DefinitionCoverage:
    solutions = {one.name: one.author for one in trace_set.solutions.get(name, ())}
    workloads = set(trace_set.workload_uuids(name))
    pairs = len(solutions) * len(workloads)
    done = {
        (one.hardware, one.solution, one.workload)
        for one in runs
        if one.solution in solutions and one.workload in workloads
    }
    counts = Counter(hardware for hardware, _, _ in done)
    passed = {one.hardware for one in runs if one.passed}
    missing = []
    if not workloads:
        missing.append("no workloads")
    if not solutions:
        missing.append("no solutions")
    elif baseline_author and baseline_author not in solutions.values():
        missing.append(f"no solution by {baseline_author}")
    if pairs and not devices:
        missing.append("never evaluated")
    for device in devices if pairs else ():
        if not counts[device]:
            missing.append(f"not on {device}")
        elif counts[device] < pairs:
            missing.append(f"{pairs - counts[device]} of {pairs} evaluations on {device}")
    return DefinitionCoverage(
        definition=name,
        op_type=trace_set.definitions[name].op_type,
        solutions=len(solutions),
        workloads=len(workloads),
        pairs=pairs,
        evaluated={device: counts[device] for device in devices},
        unsolved=tuple(one for one in devices if counts[one] and one not in passed),
        missing=tuple(missing),
    )
