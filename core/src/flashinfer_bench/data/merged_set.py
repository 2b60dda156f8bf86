"""Several dataset folders as one, without reading their traces: from their indexes."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data.index import StaleIndexError
from flashinfer_bench.data.index.runs import by_file
from flashinfer_bench.data.json_codec import digest_of
from flashinfer_bench.data.ranking import Runs
from flashinfer_bench.data.run_source import MemoryRuns, RunColumns, RunDetails, RunRow
from flashinfer_bench.data.trace import EvaluationStatus
from flashinfer_bench.data.trace_set import TraceSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flashinfer_bench.data.definition import Definition
    from flashinfer_bench.data.index import TraceIndex
    from flashinfer_bench.data.run_source import RunSource
    from flashinfer_bench.data.solution import Solution
    from flashinfer_bench.data.trace import Trace
    from flashinfer_bench.errors import DataError

_logger = logging.getLogger(__name__)
Records = dict[str, "list[Trace]"]


_Place = tuple[int, int]
"""A run: number of its source, and its number in there."""


class MergedRuns:
    """The runs of several datasets, equal ones once: the first that is met.

    Only runs that have solution, workload, time stamp and latency in common with another are
    looked at in the files.

    Parameters
    ----------
    sources : sequence of TraceIndex
        The datasets.
    workloads : dict of str to list of Trace
        The workload traces of all of them.
    """

    def __init__(self, sources: Sequence[TraceIndex], workloads: Records) -> None:
        self._sources = list(sources)
        self._workloads = workloads
        self._kept: dict[str, list[Sequence[int]]] = {}
        self._counts: dict[str, tuple[int, int]] = {}

    def names(self) -> list[str]:
        """Return the definitions that have runs, in the order in which they are met."""
        return list(dict.fromkeys(chain.from_iterable(one.names() for one in self._sources)))

    def counts(self, definition: str) -> tuple[int, int]:
        """Return the number of runs, and of those that passed."""
        if definition not in self._counts:
            self.columns(definition)
        return self._counts[definition]

    def runs(self, definition: str) -> Runs:
        """Return the runs, digested; errors as of `ranking.digest_runs`."""
        whole = Runs({}, set())
        for one in (source.runs(definition) for source in self._sources):
            whole.failed.update(one.failed)
            for solution, times in one.best_ms.items():
                mine = whole.best_ms.setdefault(solution, {})
                for uuid, latency in times.items():
                    mine[uuid] = min(latency, mine.get(uuid, latency))
        return whole

    def best(
        self, definition: str, axes: Optional[Mapping[str, int]], atol: float, rtol: float
    ) -> Optional[Trace]:
        """Return the trace with the highest speedup factor; of equals the first."""
        found = [one.best(definition, axes, atol, rtol) for one in self._sources]
        return max((one for one in found if one is not None), key=_speedup, default=None)

    def filtered(self, definition: str, atol: float, rtol: float) -> list[Trace]:
        """Return the traces that passed within both tolerances."""
        found: dict[bytes, Trace] = {}
        for source in self._sources:
            for trace in source.filtered(definition, atol, rtol):
                found.setdefault(digest_of(trace), trace)
        return list(found.values())

    def columns(self, definition: str) -> RunColumns:
        """Return the runs without making traces.

        Raises
        ------
        StaleIndexError
            If a dataset was changed meanwhile.
        """
        groups = [one.columns(definition) for one in self._sources]
        if definition not in self._kept:
            self._kept[definition] = self._without_duplicates(definition, groups)
        chosen = [
            group if len(numbers) == len(group) else group.take(numbers)
            for group, numbers in zip(groups, self._kept[definition], strict=True)
            if numbers
        ]
        whole = chosen[0] if len(chosen) == 1 else _joined(chosen)
        passed = sum(one is EvaluationStatus.PASSED for one in whole.status)
        self._counts[definition] = (len(whole), passed)
        return whole

    def workload_uuids(self, definition: str) -> list[str]:
        """Return the uuid of each workload trace, in their order."""
        return [trace.workload.uuid for trace in self._workloads.get(definition, ())]

    def traces(self) -> Records:
        """Return all runs, by definition.

        Raises
        ------
        StaleIndexError
            If a dataset was changed meanwhile.
        """
        found: Records = {}
        for name in self.names():
            self.columns(name)
            pairs = zip(self._sources, self._kept[name], strict=True)
            found[name] = [*chain.from_iterable(one.traces(name, some) for one, some in pairs)]
        return found

    def _without_duplicates(
        self, definition: str, groups: Sequence[RunColumns]
    ) -> list[Sequence[int]]:
        """Return for each source the numbers of the runs that were not met before."""
        keys = [list(_keys(group)) for group in groups]
        met = Counter(chain.from_iterable(keys))
        again: set[_Place] = set()
        texts: set[bytes] = set()
        alike: dict[object, list[_Place]] = {}
        for source, mine in enumerate(keys):
            numbers = [number for number, key in enumerate(mine) if met[key] > 1]
            lines = self._sources[source].texts(definition, numbers)
            for number, text in zip(numbers, lines, strict=True):
                digest = hashlib.sha256(text).digest()[:16]  # the quickest where it is built in
                if digest in texts:
                    again.add((source, number))
                else:
                    texts.add(digest)
                    alike.setdefault(mine[number], []).append((source, number))
        for places in alike.values():
            again.update(self._repeated(definition, places))
        return [
            [number for number in range(len(group)) if (source, number) not in again]
            for source, group in enumerate(groups)
        ]

    def _repeated(self, definition: str, places: list[_Place]) -> Iterator[_Place]:
        """Yield those of some runs that are, written in another way, equal to one before."""
        if len(places) == 1:
            return
        seen: set[bytes] = set()
        for source, number in places:
            (trace,) = self._sources[source].traces(definition, [number])
            content = digest_of(trace)
            if content in seen:
                yield source, number
            seen.add(content)


def _joined(groups: Sequence[RunColumns]) -> RunColumns:
    """Return the runs of several groups."""
    lines = [range(len(group)) for group in groups]

    def details(numbers: Sequence[int]) -> list[RunDetails]:
        places = by_file(lines, numbers)
        return [*chain.from_iterable(groups[place].details(some) for place, some in places)]

    columns = [
        [*chain.from_iterable(getattr(group, name) for group in groups)] for name in RunRow._fields
    ]
    counts = [*chain.from_iterable(group.sample_counts for group in groups)]
    return RunColumns(*columns, sample_counts=counts, details=details)


def _keys(group: RunColumns) -> Iterator[object]:
    """Yield of each run what equal runs have in common."""
    return zip(group.solution, group.workload, group.timestamp, group.latency_ms, strict=True)


def _speedup(trace: Trace) -> float:
    assert trace.evaluation is not None
    assert trace.evaluation.performance is not None
    return trace.evaluation.performance.speedup_factor


class MergedTraceSet(TraceSet):
    """Several dataset folders as one set in memory; its runs are read when they are asked for.

    Parameters
    ----------
    definitions : dict of str to Definition
        By name.
    solutions : dict of str to list of Solution
        By definition.
    workloads : dict of str to list of Trace
        Workload traces by definition.
    runs : MergedRuns
        Where runs come from.
    again : callable
        Returns workload traces and runs anew, for when a dataset was changed meanwhile.
    """

    def __init__(
        self,
        definitions: dict[str, Definition],
        solutions: dict[str, list[Solution]],
        workloads: Records,
        runs: MergedRuns,
        again: Callable[[], tuple[Records, Records]],
    ) -> None:
        super().__init__(definitions=definitions, solutions=solutions, workloads=workloads)
        self._runs, self._again = runs, again
        self._unread = True

    def __reduce__(self) -> tuple[Any, ...]:
        self._read()
        fields = (self.root, self.definitions, self.solutions, self._workloads, self._traces)
        return TraceSet, fields

    def _read(self) -> None:
        if not self._unread:
            return
        try:
            self._traces = self._runs.traces()
        except StaleIndexError as error:
            _logger.debug("%s; all datasets are read anew", error)
            self._workloads, self._traces = self._again()
        self._unread = False

    @property
    def run_source(self) -> RunSource:
        """Where the runs are to be had: from the indexes, until they are in memory."""
        return self._runs if self._unread else MemoryRuns(self.traces, self.workloads)

    def _all_errors(self) -> list[DataError]:
        return []

    def _add(self, *given: Any, **options: Any) -> None:
        self._read()
        super()._add(*given, **options)
