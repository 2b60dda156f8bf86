"""What the service shows of a dataset: read again where files change, and ranked in advance."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar

from fib_report.results import latest_results, result_of, with_intervals
from fib_report.roofline import Rooflines
from fib_report.scores import score_solutions
from flashinfer_bench.data import Definition, Solution, layout
from flashinfer_bench.data.index import DataFile, TraceIndex
from flashinfer_bench.data.json_codec import load_json_file
from flashinfer_bench.data.jsonl import read_records
from flashinfer_bench.data.loader import load_definition
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from fib_report.results import Result
    from fib_report.scores import SolutionScore
    from flashinfer_bench.data import Trace
    from flashinfer_bench.data.run_source import RunRow
    from flashinfer_bench.data.workload import Workload

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)
_MAX_AGE_S = 1.0
_WORTH_PACKING = 4 << 10  # bytes
# In datasets of 2025 workloads are among the traces of runs, most of which need not be decoded.
_IS_WORKLOAD = re.compile(rb'"solution"\s*:\s*null|^(?!.*"solution"\s*:)')


@dataclass(frozen=True)
class Rendered:
    """A leaderboard as JSON, as it is sent.

    Attributes
    ----------
    plain : bytes
        The JSON.
    packed : bytes, optional
        The same, compressed by gzip; None if that is not worthwhile.
    etag : str
        Changes with the content.
    """

    plain: bytes
    packed: Optional[bytes]
    etag: str

    @classmethod
    def of(cls, parts: Iterable[bytes]) -> Rendered:
        """Return a JSON list of the elements, given as JSON with commas between."""
        plain = b"[" + b",".join(part for part in parts if part) + b"]"
        packed = gzip.compress(plain, 5) if len(plain) >= _WORTH_PACKING else None
        return cls(plain, packed, f'"{hashlib.sha256(plain).hexdigest()[:20]}"')


class _Files(Generic[_T]):
    """Contents of files, which are read again only after a change."""

    def __init__(self, read: Callable[[Path], _T]) -> None:
        self._read = read
        self._known: dict[Path, tuple[tuple[int, ...], Optional[_T]]] = {}

    def update(self, paths: Iterable[Path]) -> tuple[list[_T], set[Path]]:
        """Return the contents, without invalid ones, and which files have changed."""
        now: dict[Path, tuple[tuple[int, ...], Optional[_T]]] = {}
        changed = set()
        for path in paths:
            try:
                state = _identity(path)
                known = self._known.get(path)
                if known is None or known[0] != state:
                    changed.add(path)
                    known = state, self._content(path)
                now[path] = known
            except FileNotFoundError:
                continue
        changed |= self._known.keys() - now.keys()
        self._known = now
        return [content for _, content in now.values() if content is not None], changed

    def _content(self, path: Path) -> Optional[_T]:
        try:
            return self._read(path)
        except FileNotFoundError:
            raise
        except (DataError, OSError) as error:
            _logger.warning("left out: %s", error)
            return None


def _identity(path: Path) -> tuple[int, ...]:
    info = path.stat()
    return info.st_size, info.st_mtime_ns, info.st_ino


@dataclass
class _Board:
    """The ranking of one definition."""

    rows: list[dict[str, Any]]
    elements: bytes  # of a JSON list
    rendered: Rendered
    sources: set[Path]


@dataclass(frozen=True)
class _Snapshot:
    """The dataset at one time."""

    definitions: Mapping[str, Definition] = field(default_factory=dict)
    solutions: Mapping[str, Solution] = field(default_factory=dict)
    workloads: Mapping[str, Mapping[str, Workload]] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)  # definition by uuid
    boards: Mapping[str, _Board] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    rendered: Rendered = field(default_factory=lambda: Rendered.of(()))


class DatasetView:
    """A dataset as the service shows it.

    It is looked at again in the background, at most once a second, when someone asks for something;
    what was known before is returned meanwhile. Only the rankings of definitions whose files have
    changed are made anew.

    Parameters
    ----------
    root : Path
        The folder of the dataset.

    Raises
    ------
    DatasetNotFoundError
        If there is no such folder.
    """

    def __init__(self, root: Path) -> None:
        layout.require_folder(root)
        self.root = root
        self._lock = threading.Lock()
        self._now: Optional[_Snapshot] = None
        self._partial = True  # whether a look has ended early, so that changes may be lost
        self._looked = -float("inf")
        self._in_background = threading.Lock()
        self._traces = TraceReader()
        self._definitions = _Files(lambda path: load_definition(path, root))
        self._solutions = _Files(lambda path: load_json_file(Solution, path))
        self._workloads = _Files(self._read_workloads)
        self._runs: dict[Path, tuple[int, ...]] = {}

    # ------------------------------------------------------------------------------- reading

    @property
    def ready(self) -> bool:
        """Whether it has been read, so that no method has to wait for that."""
        return self._now is not None

    def refresh(self) -> None:
        """Read what has changed, and rank it; this takes up to seconds."""
        with self._lock:
            self._looked = time.monotonic()
            whole, self._partial = self._partial, True
            try:
                self._now = self._look(self._now or _Snapshot(), whole=whole)
                self._partial = False
            finally:
                self._looked = time.monotonic()

    def refresh_soon(self) -> None:
        """Read what has changed in a thread, unless that is done already."""
        if self._in_background.acquire(blocking=False):
            threading.Thread(target=self._refresh_once, name="fib-serve-dataset").start()

    def _refresh_once(self) -> None:
        try:
            self.refresh()
        except Exception:  # the thread's boundary; what was known is kept
            _logger.exception("the dataset %s cannot be read", self.root)
        finally:
            self._in_background.release()

    def _current(self) -> _Snapshot:
        if self._now is None:
            with suppress(OSError):
                self.refresh()
        elif time.monotonic() - self._looked > _MAX_AGE_S:
            self.refresh_soon()
        return self._now or _Snapshot()

    def _find(self, get: Callable[[_Snapshot], Optional[_T]]) -> Optional[_T]:
        """Return what is asked for, also if it has been added since the last look."""
        found = get(self._current())
        if found is None and time.monotonic() - self._looked > _MAX_AGE_S / 4:
            self.refresh()
            found = get(self._current())
        return found

    def _look(self, before: _Snapshot, *, whole: bool) -> _Snapshot:
        root, redo = self.root, set[str]()
        paths = {
            name: list(layout.files(root / name, *suffixes))
            for name, suffixes in (
                (layout.DEFINITIONS, [".json"]),
                (layout.SOLUTIONS, [".json"]),
                (layout.WORKLOADS, [".jsonl", ".json"]),
                (layout.TRACES, [".jsonl", ".json"]),
            )
        }
        read, changed = self._definitions.update(paths[layout.DEFINITIONS])
        definitions = before.definitions
        if changed or whole:
            definitions = dict(sorted((one.name, one) for one in reversed(read)))
            redo |= definitions.keys()  # few, and they seldom change
        made, changed = self._solutions.update(paths[layout.SOLUTIONS])
        solutions = before.solutions
        if changed or whole:
            solutions = {one.name: one for one in reversed(made)}
            redo |= {
                one.definition
                for name in solutions.keys() | before.solutions.keys()
                for one in (solutions.get(name), before.solutions.get(name))
                if one is not None and solutions.get(name) is not before.solutions.get(name)
            }
        runs = {}
        for path in (*paths[layout.WORKLOADS], *paths[layout.TRACES]):
            with suppress(FileNotFoundError):
                runs[path] = _identity(path)
        altered = {
            path
            for path in runs.keys() | self._runs.keys()
            if runs.get(path) != self._runs.get(path)
        }
        if not (redo or altered or whole):
            return before
        index = TraceIndex.open(root)
        redo |= self._affected(altered, definitions, before.boards)
        workloads, places = before.workloads, before.places
        if altered or whole:
            workloads = self._all_workloads(index, definitions, paths)
            places = {uuid: name for name, some in workloads.items() for uuid in some}
        boards = {name: one for name, one in before.boards.items() if name in definitions}
        rooflines = Rooflines(definitions, root)
        for name in definitions:
            if name in redo or name not in boards:
                rows = index.rows(name)
                ranked = _ranked(definitions[name], solutions, rows, rooflines)
                elements = json.dumps(ranked, ensure_ascii=False).encode("utf-8", "replace")[1:-1]
                files: Iterable[object] = {id(one.source): one.source for one in rows}.values()
                sources = {one.path for one in files if isinstance(one, DataFile)}
                boards[name] = _Board(ranked, elements, Rendered.of([elements]), sources)
        boards = {name: boards[name] for name in definitions}
        self._runs = runs
        return _Snapshot(
            definitions,
            solutions,
            workloads,
            places,
            boards,
            [row for one in boards.values() for row in one.rows],
            Rendered.of(one.elements for one in boards.values()),
        )

    def _affected(
        self,
        altered: set[Path],
        definitions: Mapping[str, Definition],
        boards: Mapping[str, _Board],
    ) -> set[str]:
        """Return the definitions of which some files may have runs."""
        own: dict[Path, str] = {}
        for one in definitions.values():
            own[layout.traces_file(self.root, one.op_type, one.name)] = one.name
            own[layout.workloads_file(self.root, one.op_type, one.name)] = one.name
        if not altered <= own.keys():
            return set(definitions)
        there = {name for name, one in boards.items() if one.sources & altered}
        return {own[path] for path in altered} | there

    def _read_workloads(self, path: Path) -> list[Trace]:
        found = []
        for line, text in read_records(path):
            if _IS_WORKLOAD.search(text):
                try:
                    trace = self._traces.read(text, path=path, line=line)
                except DataError as error:
                    _logger.warning("left out: %s", error)
                    continue
                if trace.solution is None:
                    found.append(trace)
        return found

    def _all_workloads(
        self,
        index: TraceIndex,
        definitions: Mapping[str, Definition],
        paths: Mapping[str, list[Path]],
    ) -> dict[str, dict[str, Workload]]:
        files = paths[layout.WORKLOADS]
        found = _by_definition(self._workloads.update(files)[0])
        if any(
            not found.get(name, {}).keys() >= set(index.workload_uuids(name))
            for name in definitions
        ):
            found = _by_definition(self._workloads.update([*files, *paths[layout.TRACES]])[0])
        return found

    # ------------------------------------------------------------------------------- records

    def definitions(self) -> list[Definition]:
        """Return all definitions by name."""
        return list(self._current().definitions.values())

    def definition(self, name: str) -> Optional[Definition]:
        """Return a definition; None if there is none of that name."""
        return self._find(lambda now: now.definitions.get(name))

    def workloads(self, definition: str) -> list[Workload]:
        """Return the workloads of a definition, in order; also hidden ones."""
        found = self._find(lambda now: now.workloads.get(definition))
        return list(found.values()) if found else []

    def workload(self, uuid: str) -> Optional[tuple[str, Workload]]:
        """Return the definition and the workload of a uuid; None if there is none."""

        def get(now: _Snapshot) -> Optional[tuple[str, Workload]]:
            name = now.places.get(uuid)
            return None if name is None else (name, now.workloads[name][uuid])

        return self._find(get)

    def solution(self, name: str) -> Optional[Solution]:
        """Return a solution; None if there is none of that name."""
        return self._find(lambda now: now.solutions.get(name))

    # --------------------------------------------------------------------------- leaderboard

    def leaderboard(self, definition: Optional[str] = None) -> list[dict[str, Any]]:
        """Return the results of all solutions of a definition, or of all, the best first.

        Each device, timer and cache mode has a ranking of its own. Solutions that did not pass on
        every workload, or not on as many as others, have no rank; nor have disputed results and
        those that may come from memory.

        Parameters
        ----------
        definition : str, optional
            Its name.

        Returns
        -------
        list of dict
            The same object until something changes. ``rank`` is None for those without one;
            ``tied`` says whether others have it, too.
        """
        now = self._current()
        if definition is None:
            return now.rows
        board = now.boards.get(definition)
        return board.rows if board is not None else []

    def rendered(self, definition: Optional[str] = None) -> Optional[Rendered]:
        """Return a leaderboard as JSON; None if there is no such definition."""
        now = self._current()
        if definition is None:
            return now.rendered
        board = now.boards.get(definition)
        return board.rendered if board is not None else None


def _by_definition(traces: Iterable[Iterable[Trace]]) -> dict[str, dict[str, Workload]]:
    found: dict[str, dict[str, Workload]] = {}
    for some in traces:
        for one in some:
            found.setdefault(one.definition, {}).setdefault(one.workload.uuid, one.workload)
    return found


def _ranked(
    definition: Definition,
    solutions: Mapping[str, Solution],
    rows: Iterable[RunRow],
    rooflines: Rooflines,
) -> list[dict[str, Any]]:
    """Return the rows of a definition's leaderboard."""
    op_type = definition.op_type
    latest = latest_results(result_of(row, op_type, solutions.get(row.solution)) for row in rows)
    with suppress(DataError):  # a file was replaced just now; the next look finds that
        latest = with_intervals(latest)
    by_key: dict[tuple[str, ...], list[Result]] = {}
    for one in latest:
        by_key.setdefault(one.key, []).append(one)
    # What may come from memory tells nothing; a solution without other results has no rank.
    scores = score_solutions(one for one in latest if not one.replayable)
    known = {score.key for score in scores}
    rest = [one for one in score_solutions(latest) if one.key not in known]
    return [
        _row(score, by_key.get(score.key, []), rooflines, ranked=number < len(scores))
        for number, score in enumerate((*scores, *rest))
    ]


def _row(
    score: SolutionScore, results: list[Result], rooflines: Rooflines, *, ranked: bool
) -> dict[str, Any]:
    label = score.rank if ranked else None
    return {
        "rank": int(label.lstrip("=")) if label else None,
        "tied": label is not None and label.startswith("="),
        "solution": score.solution,
        "author": score.author,
        "definition": score.definition,
        "op_type": score.op_type,
        "language": score.language,
        "hardware": score.hardware,
        "timer": score.timer,
        "cache": score.cache,
        "workloads": score.workloads,
        "passed": score.passed,
        "latency_ms": score.latency.value if score.latency else None,
        "latency_interval_ms": score.latency.ends if score.latency else None,
        "speedup": score.speedup.value if score.speedup else None,
        "share": rooflines.mean_share(results),
        "disputed": score.disputed,
        "replayable": sum(one.replayable for one in results),
        "loose": score.loose,
        "date": max((one.timestamp for one in results), default=None),
    }
