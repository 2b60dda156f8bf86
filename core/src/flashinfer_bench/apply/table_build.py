"""Making a table: the dataset is read as a whole, and each run decided about."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.apply.candidates import Candidates, Collector
from flashinfer_bench.apply.records import RunReader
from flashinfer_bench.apply.records.kept import Kept
from flashinfer_bench.apply.snapshot import TRACES, WORKLOADS, Snapshot
from flashinfer_bench.apply.source import FolderSource, MemorySource
from flashinfer_bench.apply.table_cache import (
    StoredBar,
    StoredChoice,
    StoredDefinition,
    StoredTable,
    key_builders,
    purpose_of,
    save,
)
from flashinfer_bench.data.loader import paused_gc
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.apply.config import ApplyConfigRegistry
    from flashinfer_bench.apply.hardware import Place
    from flashinfer_bench.apply.keys import ApplyKey
    from flashinfer_bench.apply.records.runs import FileRuns
    from flashinfer_bench.apply.selection import Standing
    from flashinfer_bench.apply.source import Source
    from flashinfer_bench.errors import DataError

_logger = logging.getLogger(__name__)


class Collected(NamedTuple):
    """What a dataset comes to.

    Attributes
    ----------
    source : Source
        The definitions and solutions.
    candidates : dict of str to Candidates
        By definition, also of those that the dataset lacks.
    problems : list of DataError
        What was left out because it cannot be read.
    """

    source: Source
    candidates: dict[str, Candidates]
    problems: list[DataError]


def collect_memory(
    trace_set: TraceSet, configs: ApplyConfigRegistry, place: Place, only: Optional[str] = None
) -> Collected:
    """Decide about each run of a dataset in memory.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    configs : ApplyConfigRegistry
        The bounds on errors.
    place : Place
        Where solutions shall work.
    only : str, optional
        The one definition to look at.

    Raises
    ------
    ConfigError
        If `trace_set` is something else.
    """
    if not isinstance(trace_set, TraceSet):
        raise ConfigError(f"give a TraceSet or a path, not {type(trace_set).__name__}")
    source, reader = MemorySource(trace_set), RunReader()
    collector = Collector(source, configs, place, only)
    with paused_gc():
        for traces in trace_set.traces.values():
            collector.add(reader.of_traces(traces), reader.texts)
        return Collected(source, collector.outcome(), list(trace_set.load_errors))


def collect_folder(
    snapshot: Snapshot, configs: ApplyConfigRegistry, place: Place, only: Optional[str] = None
) -> Collected:
    """Decide about each run of a dataset in a folder; see `collect_memory`."""
    reader, kept = RunReader(), Kept(snapshot.root)
    with paused_gc():
        source = FolderSource.of(snapshot, kept)
        collector = Collector(source, configs, place, only)
        for path in (*snapshot.paths(WORKLOADS), *snapshot.paths(TRACES)):
            runs = _runs_in(path, snapshot, reader, kept)
            if runs is not None:
                collector.add(runs, reader.texts)
        problems = [*snapshot.problems, *reader.problems]
        found = Collected(source, collector.outcome(), problems)
        kept.save()
        return found


def _runs_in(path: str, snapshot: Snapshot, reader: RunReader, kept: Kept) -> Optional[FileRuns]:
    """Return the runs in a file, reading no more of it than is needed; None if it is gone."""
    runs = kept.runs(path, snapshot.digest(path), reader.texts)
    if runs is not None:
        return runs
    data = snapshot.read(path)
    if data is None:
        return None
    digest = snapshot.digest(path)
    runs = kept.runs(path, digest, reader.texts)
    if runs is not None:
        return runs
    beginning = kept.beginning(path, data, reader.texts)
    before = len(reader.problems)
    reading = reader.read(data, snapshot.root / path, *beginning)
    if len(reader.problems) == before:
        kept.add_runs(path, digest, len(data), reading)
    return reading.runs


def table_of_memory(
    trace_set: TraceSet, configs: ApplyConfigRegistry, place: Place
) -> tuple[list[StoredDefinition], str, Source, list[str]]:
    """Return tables, a digest of them and of the chosen solutions, their source, and problems."""
    source, candidates, problems = collect_memory(trace_set, configs, place)
    definitions = _stored(source, candidates)
    choices = (choice for one in definitions for choice in (*one.choices, one.best))
    names = {choice.solution for choice in choices if choice is not None}
    hashes = [(name, source.solution(name).hash()) for name in sorted(names)]
    whole = repr((place.hardware, definitions, hashes)).encode()
    return definitions, hashlib.sha256(whole).hexdigest(), source, [*map(str, problems)]


def build_table(
    snapshot: Snapshot, configs: ApplyConfigRegistry, place: Place
) -> tuple[FolderSource, StoredTable, bytes]:
    """Make the table of a folder, and keep it; return it with its source and its purpose."""
    with paused_gc():  # until all that is needed only here is gone
        return _build(snapshot, configs, place)


def _build(
    snapshot: Snapshot, configs: ApplyConfigRegistry, place: Place
) -> tuple[FolderSource, StoredTable, bytes]:
    _logger.debug("%s: making the table of solutions for %s", snapshot.root, place.hardware)
    source, candidates, problems = collect_folder(snapshot, configs, place)
    assert isinstance(source, FolderSource)
    definitions = _stored(source, candidates)
    table = StoredTable(
        key_builders(sorted({one.op_type for one in definitions})),
        definitions,
        source.definitions,
        source.solutions,
        [str(problem) for problem in problems],
    )
    purpose = purpose_of(snapshot, configs, place)  # files may have changed while they were read
    # What could not be read, or had no key, may be there the next time with no change to see.
    if snapshot.is_complete and not any(_lacks_keys(one) for one in candidates.values()):
        save(purpose, table)
    return source, table, purpose


def _lacks_keys(one: Candidates) -> bool:
    return any("key" in refusals.counts for refusals in one.refusals.values())


def _stored(source: Source, candidates: dict[str, Candidates]) -> list[StoredDefinition]:
    tables = []
    for name in source.definition_names:
        one = candidates.get(name) or Candidates()
        winners = [_choice(key, ranking[0]) for key, ranking in one.rankings.items()]
        best = next(_of_solution(one, one.best), None)
        op_type = source.definition(name).op_type
        barred = [
            StoredBar(key.axes, key.feats, tuple(sorted(solutions)))
            for key, solutions in one.barred.items()
        ]
        tables.append(StoredDefinition(name, op_type, winners, best, barred))
    return tables


def _of_solution(one: Candidates, solution: Optional[str]) -> Iterator[StoredChoice]:
    for key, ranking in one.rankings.items():
        for standing in ranking:
            if standing.solution == solution:
                yield _choice(key, standing)


def _choice(key: ApplyKey, one: Standing) -> StoredChoice:
    return StoredChoice(key.axes, key.feats, one.solution, one.latency_ms, one.workload)
