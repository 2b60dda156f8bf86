"""Recorded runs as rows, which rankings, reports and `flashinfer_bench.apply` read.

A row has all data of a run except its log and samples. Rows of a dataset folder come from its index
(see `flashinfer_bench.data.index`); others are made from traces in memory.
"""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Protocol

import msgspec

from flashinfer_bench.data.trace import Correctness, EvaluationStatus, Performance, dropped_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from flashinfer_bench.data.trace import Trace


class Clock(NamedTuple):
    """How the latency of a run was measured; values missing in its trace are empty.

    Attributes
    ----------
    timer : str
        Name of the timer.
    cache : str
        State of the device's caches before each call: ``cold`` or ``warm``.
    stop_rule : str
        The rule that decided how many calls were timed.
    reference : str
        When the reference was timed: ``beside`` the solution, ``before`` it, or ``not``.
    """

    timer: str = ""
    cache: str = ""
    stop_rule: str = ""
    reference: str = ""

    @classmethod
    def of(cls, timer: Any, stop_rule: Any, timing: Any) -> Clock:
        """Return the clock described by the provenance of a run."""
        told = timing if isinstance(timing, dict) else {}
        words = (timer, told.get("cache"), stop_rule, told.get("reference"))
        return cls(*(word if isinstance(word, str) else "" for word in words))


Ends = tuple[float, float]
"""Both ends of an interval."""


class Task(msgspec.Struct, eq=False, gc=False):
    """A solution on a workload, shared by several rows.

    `workload` is the uuid of the workload, `axes` its axes, `text` all of it as JSON.
    """

    definition: str
    solution: str
    workload: str
    axes: dict[str, int]
    text: str = ""


class Origin(msgspec.Struct, array_like=True, eq=False, gc=False):
    """Where runs were made, and how they were timed and judged, shared by many rows.

    `is_judged` is whether the evaluator is recorded, `solution_hash` the digest of the solution
    that was run, if recorded.
    """

    hardware: str
    libs: dict[str, str] = {}
    clock: Clock = Clock()
    is_judged: bool = False
    solution_hash: Optional[str] = None


class RunDetails(NamedTuple):
    """Details of a run that rows do not have, because they are large and rarely needed.

    Attributes
    ----------
    log : str
        The log of the trace.
    counted_ms, dropped_ms : tuple of float
        The samples that count and those that do not, in milliseconds, in the order taken.
    timing : mapping
        How the samples were taken: ``provenance.timing`` of the trace.
    """

    log: str = ""
    counted_ms: tuple[float, ...] = ()
    dropped_ms: tuple[float, ...] = ()
    timing: Mapping[str, Any] = {}

    @classmethod
    def of(cls, trace: Trace) -> RunDetails:
        """Return the details of a run."""
        run = trace.evaluation
        if run is None:
            return cls()
        times, timing = run.performance or Performance(), run.provenance and run.provenance.timing
        taken = times.samples_ms or []
        dropped = [taken[number] for number in sorted(dropped_numbers(times.dropped, len(taken)))]
        return cls(run.log, tuple(times.counted_ms), tuple(dropped), timing or {})


class Source(Protocol):
    """A source of rows: a file, or traces in memory."""

    def read(self, rows: Iterable[RunRow]) -> Iterable[Trace]:
        """Return the traces of some rows of this source, in the same order."""


class RunRow(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A run without its log and samples, for tables and rankings.

    Times are in milliseconds. They are None unless the run passed; the errors are None if outputs
    were not compared. ``sample_total`` is the number of all samples, ``dropped`` of those that do
    not count. ``note`` has remarks of the evaluator; see `note_of`.
    """

    source: Source
    task: Task
    origin: Origin
    status: EvaluationStatus
    timestamp: str
    latency_ms: Optional[float] = None
    reference_latency_ms: Optional[float] = None
    speedup_factor: Optional[float] = None
    max_absolute_error: Optional[float] = None
    max_relative_error: Optional[float] = None
    interval_ms: Optional[Ends] = None
    speedup_interval: Optional[Ends] = None
    sample_total: int = 0
    dropped: int = 0
    note: Optional[str] = None
    place: int = 0
    length: int = 0

    @property
    def definition(self) -> str:
        """Name of the definition."""
        return self.task.definition

    @property
    def solution(self) -> str:
        """Name of the solution."""
        return self.task.solution

    @property
    def workload(self) -> str:
        """The uuid of the workload."""
        return self.task.workload

    @property
    def axes(self) -> Mapping[str, int]:
        """Axes of the workload."""
        return self.task.axes

    @property
    def hardware(self) -> str:
        """The device."""
        return self.origin.hardware

    @property
    def clock(self) -> Clock:
        """How the latency was measured."""
        return self.origin.clock

    @property
    def passed(self) -> bool:
        """Whether the solution passed."""
        return self.status is EvaluationStatus.PASSED

    @property
    def disputed(self) -> bool:
        """Whether the latency is disputed: it is then neither ranked nor used by apply."""
        return self.note is not None and '"disputed": ' in self.note

    @property
    def replayable(self) -> bool:
        """Whether timed calls could be answered from memory, because all inputs are alike."""
        return self.note is not None and '"replayable": true' in self.note

    @property
    def speedup(self) -> Optional[float]:
        """Latency of the reference over that of the solution; None if either was not timed.

        Recomputed, because releases wrote different values where the reference was not timed.
        """
        latency, reference = self.latency_ms, self.reference_latency_ms
        if not latency or not reference or math.inf in (latency, reference):
            return None
        return reference / latency

    @property
    def loose(self) -> bool:
        """Whether it passed within 0.01, but would fail with ``--tolerance dtype``."""
        return self.note is not None and '"loose_tolerance": true' in self.note


def read_traces(rows: Iterable[RunRow]) -> Iterator[tuple[RunRow, Trace]]:
    """Yield rows with their traces, source by source, so that each file is opened once.

    Raises
    ------
    DataError
        If a file of the dataset has been rewritten since.
    """
    by_source: dict[int, list[RunRow]] = {}
    for row in rows:
        by_source.setdefault(id(row.source), []).append(row)
    for some in by_source.values():
        yield from zip(some, some[0].source.read(some), strict=True)


def read_details(rows: Iterable[RunRow]) -> list[RunDetails]:
    """Return logs and samples of rows, in the same order; raises like `read_traces`."""
    wanted = list(rows)
    found = {id(row): RunDetails.of(trace) for row, trace in read_traces(wanted)}
    return [found[id(row)] for row in wanted]


_NO_TIMES: Any = SimpleNamespace(**dict.fromkeys(Performance.model_fields))
_NO_ERRORS: Any = SimpleNamespace(**dict.fromkeys(Correctness.model_fields))


class RowMaker:
    """Makes rows of traces, or of decoded lines.

    Parameters
    ----------
    source : Source
        Source of the rows.
    rows : sequence of RunRow
        Existing rows; new ones share equal parts with them.

    Attributes
    ----------
    rows : list of RunRow
        Existing and new rows.
    workloads : list of (str, str)
        Definition and uuid of each workload trace.
    """

    def __init__(self, source: Source, rows: Sequence[RunRow] = ()) -> None:
        self._source = source
        self.rows = list(rows)
        self.workloads: list[tuple[str, str]] = []
        self._texts: dict[int, tuple[str, Any]] = {}
        tasks = (row.task for row in rows)
        self._tasks = {(one.definition, one.solution, one.text): one for one in tasks}
        self._origins: dict[tuple[Any, ...], tuple[Origin, Any]] = {}

    def add(self, trace: Any, place: int = 0, length: int = 0) -> None:
        """Add a trace, with its place in the source."""
        run = trace.evaluation
        if run is None:
            self.workloads.append((trace.definition, trace.workload.uuid))
            return
        times, errors = run.performance or _NO_TIMES, run.correctness or _NO_ERRORS
        count = len(times.samples_ms or ())
        dropped = len(dropped_numbers(times.dropped, count))
        note = note_of(errors.extra) if errors.extra else None
        self.rows.append(RunRow(
            self._source, self._task(trace), self._origin(run), run.status, run.timestamp,
            times.latency_ms, times.reference_latency_ms, times.speedup_factor,
            errors.max_absolute_error, errors.max_relative_error,
            times.interval_ms, times.speedup_interval, count, dropped, note, place, length,
        ))  # fmt: skip

    def _task(self, trace: Any) -> Task:
        workload = trace.workload
        known = self._texts.get(id(workload))
        if known is None:  # the workload is kept, so that its id stays unique
            known = self._texts[id(workload)] = workload.model_dump_json(), workload
        key = trace.definition, trace.solution, known[0]
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = Task(*key[:2], workload.uuid, workload.axes, key[2])
        return task

    def _origin(self, run: Any) -> Origin:
        where, how = run.environment, run.provenance
        key: tuple[Any, ...] = (id(where),)
        if how is not None:
            content = how.extra.get("solution_hash")
            key += (
                Clock.of(how.timer, how.stop_rule, how.timing),
                bool(how.evaluator),
                content if isinstance(content, str) else None,
            )
        known = self._origins.get(key)
        if known is None:  # the environment is kept, so that its id stays unique
            known = self._origins[key] = Origin(where.hardware, where.libs, *key[1:]), where
        return known[0]


def note_of(extra: Mapping[str, Any]) -> Optional[str]:
    """Return the evaluator's remarks on the reliability of a run.

    Parameters
    ----------
    extra : mapping
        ``correctness.extra``.

    Returns
    -------
    str or None
        A JSON list: the share of matching elements (null if missing or invalid), and
        ``integrity``. None if there is neither.
    """
    ratio, integrity = extra.get("matched_ratio"), extra.get("integrity")
    if isinstance(ratio, bool) or not (isinstance(ratio, (int, float)) and 0 <= ratio <= 1):
        ratio = None
    return None if ratio is integrity is None else json.dumps([ratio, integrity])
