"""A dataset: definitions, solutions, workloads and traces."""

from __future__ import annotations

import itertools
import logging
import shutil
import threading
import time
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench import env
from flashinfer_bench._lazy import OldAttributes, old_names, old_parameters
from flashinfer_bench.data import layout
from flashinfer_bench.data.index import TraceIndex
from flashinfer_bench.data.json_codec import append_jsonl_file
from flashinfer_bench.data.loader import (
    OnError,
    Problems,
    load_definitions,
    load_solutions,
    load_traces,
    paused_gc,
)
from flashinfer_bench.data.run_source import RunRow, read_traces
from flashinfer_bench.errors import ConfigError, DataError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any as Ranking  # these three are of fib-report
    from typing import Any as SpeedupMetrics
    from typing import Any as TraceSetSummary

    import torch

    from flashinfer_bench.data.definition import Definition
    from flashinfer_bench.data.solution import Solution
    from flashinfer_bench.data.trace import Trace

__getattr__ = old_names(__name__)

_logger = logging.getLogger(__name__)
_TRIES = 2

# Only one thread reads. The lock is shared by all sets, because a set with a lock cannot be copied.
_reading = threading.RLock()


class TraceSet(OldAttributes):
    """Definitions, solutions, workloads and traces, in plain dicts by the name of the definition.

    A set made by `from_path` belongs to a folder: added traces are also written there. A set made
    otherwise is in memory only, unless `root` is given.

    Workloads and traces of a folder are read on first use. Traces with equal workloads or
    environments share these objects: do not modify them in place.

    Parameters
    ----------
    root : str or Path, optional
        Folder of the dataset; None for a set in memory.
    definitions : dict of str to Definition, optional
        By name.
    solutions : dict of str to list of Solution, optional
        By definition.
    workloads : dict of str to list of Trace, optional
        Workload traces by definition.
    traces : dict of str to list of Trace, optional
        Traces of runs by definition.
    """

    @old_parameters
    def __init__(
        self,
        root: Optional[Union[str, Path]] = None,
        definitions: Optional[dict[str, Definition]] = None,
        solutions: Optional[dict[str, list[Solution]]] = None,
        workloads: Optional[dict[str, list[Trace]]] = None,
        traces: Optional[dict[str, list[Trace]]] = None,
    ) -> None:
        self.root = None if root is None else Path(root)
        self.definitions = {} if definitions is None else definitions
        self.solutions = {} if solutions is None else solutions
        self._workloads = {} if workloads is None else workloads
        self._traces = {} if traces is None else traces
        self._problems = Problems()
        self._unread = False
        self._index: Optional[TraceIndex] = None

    def __repr__(self) -> str:
        counts = f"{len(self.definitions)} definitions"
        counts += f", {sum(map(len, self.solutions.values()))} solutions"
        if self._unread:
            return f"TraceSet(root={str(self.root)!r}, {counts}, traces not read yet)"
        counts += f", {sum(map(len, self._workloads.values()))} workloads"
        counts += f", {sum(map(len, self._traces.values()))} traces"
        return f"TraceSet(root={str(self.root) if self.root else None!r}, {counts})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_index": None}

    # ------------------------------------------------------------------------------- reading

    @classmethod
    def from_path(
        cls, path: Optional[Union[str, Path]] = None, *, on_error: OnError = "raise"
    ) -> TraceSet:
        """Read a dataset from a folder.

        Parameters
        ----------
        path : str or Path, optional
            The folder; by default that of ``FIB_DATASET_PATH``.
        on_error : str
            ``"raise"``: raise for the first invalid file or line. ``"collect"``: leave invalid
            files and lines out, and list them in `load_errors`.

        Returns
        -------
        TraceSet
            The dataset. Workloads and traces are read on first use.

        Raises
        ------
        DatasetNotFoundError
            If there is no such folder.
        DuplicateNameError
            If two definitions, or two solutions, have the same name.
        DataError
            If a file is not valid.
        """
        root = env.dataset_path() if path is None else Path(path)
        layout.require_folder(root)
        loaded = cls(root)
        loaded._problems = Problems(on_error)
        with paused_gc():
            loaded.definitions = load_definitions(root, loaded._problems)
            loaded.solutions = load_solutions(root, loaded._problems)
        loaded._unread = True
        return loaded

    def _read(self) -> None:
        if not self._unread:
            return
        with _reading:
            if self._unread:
                assert self.root is not None
                self._workloads, self._traces = load_traces(self.root, self._problems)
                self._unread, self._index = False, None

    @property
    def run_source(self) -> TraceIndex:
        """The index for queries on runs: of the folder, or of the traces in memory.

        Traces are in memory once `traces` or `workloads` has been accessed; they may then have been
        edited, so that the index of the folder no longer applies.
        """
        return self._open_index() or TraceIndex.of(self.traces, self.workloads)

    def _open_index(self) -> Optional[TraceIndex]:
        """Return the index; None if the traces are in memory."""
        if not self._unread:
            return None
        with _reading:
            if self._index is None:
                with paused_gc():
                    self._index = TraceIndex.open(self._require_root())
            index = self._index
        if index.errors and self._problems.on_error == "raise":
            raise index.errors[0]
        return index

    @property
    def load_errors(self) -> list[DataError]:
        """Errors of files and lines that were left out as invalid (checks all files)."""
        index = self._open_index()
        return [*self._problems.errors, *(index.errors if index is not None else ())]

    @property
    def torn_lines(self) -> list[DataError]:
        """Unfinished last lines, which are left out; empty once the traces are in memory.

        They are not errors of the dataset: the next append moves them to another file.
        """
        index = self._open_index()
        return [] if index is None else index.torn_lines

    @property
    def workloads(self) -> dict[str, list[Trace]]:
        """Workload traces by definition."""
        self._read()
        return self._workloads

    @workloads.setter
    def workloads(self, value: dict[str, list[Trace]]) -> None:
        self._read()
        self._workloads = value

    @property
    def traces(self) -> dict[str, list[Trace]]:
        """Traces of runs by definition."""
        self._read()
        return self._traces

    @traces.setter
    def traces(self, value: dict[str, list[Trace]]) -> None:
        self._read()
        self._traces = value

    def to_dict(self) -> dict[str, Any]:
        """Return all records as plain Python data that `json` can write.

        Returns
        -------
        dict
            With the keys ``definitions``, ``solutions``, ``workloads`` and ``traces``.
        """
        dump = methodcaller("model_dump", mode="json")
        with paused_gc():
            return {
                "definitions": {name: dump(one) for name, one in self.definitions.items()},
                "solutions": {name: list(map(dump, some)) for name, some in self.solutions.items()},
                "workloads": {name: list(map(dump, some)) for name, some in self.workloads.items()},
                "traces": {name: list(map(dump, some)) for name, some in self.traces.items()},
            }

    # ------------------------------------------------------------------------------- writing

    def add_traces(self, traces: Iterable[Trace]) -> None:
        """Add traces of runs, in memory and on disk.

        The traces of each file are appended durably at once; other processes may append as well.

        Raises
        ------
        DataError
            If a trace is not of a run, or its definition is not in the dataset; nothing is added.
        StorageError
            If a file cannot be written. It is unchanged; traces in earlier files are kept.
        """
        self._add(traces, of_runs=True)

    def add_workload_traces(self, traces: Iterable[Trace]) -> None:
        """Add workload traces, in memory and on disk.

        Raises
        ------
        DataError
            If a trace is of a run, or its definition is not in the dataset; nothing is added.
        StorageError
            If a file cannot be written. It is unchanged; traces in earlier files are kept.
        """
        self._add(traces, of_runs=False)

    def _add(self, traces: Iterable[Trace], *, of_runs: bool) -> None:
        file_of = layout.traces_file if of_runs else layout.workloads_file
        groups: dict[str, list[Trace]] = {}
        for trace in traces:
            if trace.is_workload_trace() is of_runs:
                what = "runs, not a workload trace" if of_runs else "workload traces, not a run"
                raise DataError(f"expected {what} of '{trace.definition}'")
            groups.setdefault(trace.definition, []).append(trace)
        op_types = {name: self._op_type(name) for name in groups} if self.root else {}
        for name, group in groups.items():
            with _reading:  # else a thread that is reading could miss the traces, or get them twice
                if self.root is not None:
                    append_jsonl_file(group, file_of(self.root, op_types[name], name))
                self._index = None
                if not self._unread:  # else they will be read from the file
                    target = self._traces if of_runs else self._workloads
                    target.setdefault(name, []).extend(group)

    def _op_type(self, def_name: str) -> str:
        if def_name not in self.definitions:
            raise DataError(f"no definition '{def_name}' in the dataset {self.root}")
        return self.definitions[def_name].op_type

    # --------------------------------------------------------------------------------- queries

    def get_solution(self, name: str) -> Optional[Solution]:
        """Return the solution of that name, or None."""
        solutions = itertools.chain.from_iterable(self.solutions.values())
        return next((one for one in solutions if one.name == name), None)

    def filter_traces(self, def_name: str, atol: float = 1e-2, rtol: float = 1e-2) -> list[Trace]:
        """Return the traces of a definition that passed within both tolerances.

        Parameters
        ----------
        def_name : str
            Name of the definition.
        atol, rtol : float
            Largest absolute and relative error.
        """
        return self._passing(def_name, None, atol, rtol)

    def _passing(
        self,
        def_name: str,
        axes: Optional[Mapping[str, int]],
        atol: float,
        rtol: float,
        *,
        best: bool = False,
    ) -> list[Trace]:
        def look() -> list[Trace]:
            mine = {def_name: self._traces.get(def_name, [])}
            index = self._open_index() or TraceIndex.of(mine, {})
            rows: list[Any] = index.passing(def_name, axes, atol, rtol)
            if best:
                sure = (row for row in rows if not row.disputed)
                rows = sorted(sure, key=attrgetter("speedup_factor"), reverse=True)[:1]
            return [trace for _, trace in read_traces(rows)]

        for _ in range(_TRIES):
            try:
                return look()
            except DataError as error:
                _logger.debug("%s; updating the index", error)
                self._index = None
        self._read()
        return look()

    def get_best_trace(
        self,
        def_name: str,
        axes: Optional[Mapping[str, int]] = None,
        max_abs_error: float = 1e-2,
        max_rel_error: float = 1e-2,
    ) -> Optional[Trace]:
        """Return the passing trace with the highest speed-up whose latency is not disputed.

        Parameters
        ----------
        def_name : str
            Name of the definition.
        axes : mapping of str to int, optional
            Consider only workloads with exactly these axis values.
        max_abs_error, max_rel_error : float
            Largest absolute and relative error.

        Returns
        -------
        Trace or None
            None if no trace qualifies. Among equals, the first recorded.
        """
        found = self._passing(def_name, axes, max_abs_error, max_rel_error, best=True)
        return found[0] if found else None

    def run_rows(self, def_name: Optional[str] = None) -> list[RunRow]:
        """Return the runs of a definition, or all, without logs and samples.

        This is fast even for many runs, because no traces are made. Logs and samples are read with
        `flashinfer_bench.data.run_source.read_details`.

        Parameters
        ----------
        def_name : str, optional
            Name of the definition.
        """
        return self.run_source.rows(def_name)

    def workload_uuids(self, def_name: str) -> list[str]:
        """Return the uuids of a definition's workloads, with any duplicates.

        Parameters
        ----------
        def_name : str
            Name of the definition.
        """
        return self.run_source.workload_uuids(def_name)

    def summary(
        self,
        baseline_author: str = "baseline",
        op_type: Optional[str] = None,
        definition_name: Optional[str] = None,
    ) -> TraceSetSummary:
        """Count traces and rank authors.

        Definitions that cannot be ranked, usually for lack of a solution by the baseline author,
        are counted, and named in the result with the reason.

        Parameters
        ----------
        baseline_author : str
            Author whose solutions the others are compared with.
        op_type : str, optional
            Consider only definitions of this type.
        definition_name : str, optional
            Consider only this definition.

        Raises
        ------
        KeyError
            If there is no such definition.
        ValueError
            If both `op_type` and `definition_name` are given.
        """
        return self._ranking(op_type, definition_name).summarize(baseline_author)

    def _ranking(self, *scope: Optional[str]) -> Ranking:
        from flashinfer_bench.data import ranking  # of an optional distribution

        return ranking.Ranking.of(self, *scope)

    def get_solution_score(
        self, solution_name: str, baseline_author: str = "baseline"
    ) -> Optional[SpeedupMetrics]:
        """Compare one solution with the baseline of its definition.

        Parameters
        ----------
        solution_name : str
            The solution.
        baseline_author : str
            Author of the baseline.

        Returns
        -------
        SpeedupMetrics or None
            None if there is no such solution, if it is the baseline, or if no workload has passing
            traces of both. Zero if any trace of the solution failed.

        Raises
        ------
        ValueError
            If the definition has no solution by the baseline author, or more than one, or if a
            passing trace has a latency that is not positive.
        """
        solution = self.get_solution(solution_name)
        if solution is None:
            return None
        from flashinfer_bench.data import ranking

        found: Ranking = ranking.Ranking(self.solutions, self.run_rows(solution.definition))
        return found.score(solution, baseline_author)

    def get_author_score(
        self,
        author: str,
        baseline_author: str = "baseline",
        op_type: Optional[str] = None,
        definition_name: Optional[str] = None,
    ) -> Optional[SpeedupMetrics]:
        """Return the mean, over definitions, of the score of the author's best solution.

        Returns
        -------
        SpeedupMetrics or None
            None if the author has no solution that can be scored.

        Raises
        ------
        KeyError
            If there is no such definition.
        ValueError
            If both `op_type` and `definition_name` are given; also as for `get_solution_score`.
        """
        ranked = self._ranking(op_type, definition_name).rank(baseline_author, author)
        return dict(ranked).get(author)

    def rank_authors(
        self,
        baseline_author: str = "baseline",
        op_type: Optional[str] = None,
        definition_name: Optional[str] = None,
    ) -> list[tuple[str, SpeedupMetrics]]:
        """Return all authors with a score, the best first, then by name.

        Raises
        ------
        KeyError
            If there is no such definition.
        ValueError
            If both `op_type` and `definition_name` are given; if a definition with solutions has
            none by the baseline author, or more than one; if a latency is not positive.
        """
        return list(self._ranking(op_type, definition_name).rank(baseline_author))

    # -------------------------------------------------------------------------------- folders

    def _require_root(self) -> Path:
        if self.root is None:
            raise ConfigError("this TraceSet is in memory only", hint="pass root=FOLDER")
        return self.root

    @property
    def definitions_path(self) -> Path:
        """Folder of the definitions."""
        return self._require_root() / layout.DEFINITIONS

    @property
    def solutions_path(self) -> Path:
        """Folder of the solutions."""
        return self._require_root() / layout.SOLUTIONS

    @property
    def workloads_path(self) -> Path:
        """Folder of the workloads."""
        return self._require_root() / layout.WORKLOADS

    @property
    def traces_path(self) -> Path:
        """Folder of the traces."""
        return self._require_root() / layout.TRACES

    @property
    def blob_path(self) -> Path:
        """Folder of the tensors."""
        return self._require_root() / layout.BLOB

    @property
    def blob_workloads_path(self) -> Path:
        """Folder of the tensors of workloads."""
        return self.blob_path / layout.WORKLOADS

    def backup_traces(self) -> None:
        """Copy the folder of traces to ``traces_backup_<time>`` next to it.

        Raises
        ------
        ConfigError
            If the set has no folder.
        StorageError
            If the copy fails; the traces are unchanged.
        """
        source = self.traces_path
        if not source.is_dir():
            return
        name = f"traces_backup_{time.strftime('%Y%m%d_%H%M%S')}"
        ignored = shutil.ignore_patterns(".*.lock")
        for number in itertools.count(1):
            target = source.with_name(name if number == 1 else f"{name}_{number}")
            try:
                shutil.copytree(source, target, ignore=ignored)
            except FileExistsError:
                continue
            except OSError as error:  # shutil.Error is one
                shutil.rmtree(target, ignore_errors=True)
                raise StorageError(f"{target}: cannot back up {source}: {error}") from error
            return

    # --------------------------------------------------------------------------------- blobs

    def add_workload_blob_tensor(
        self, def_name: str, workload_uuid: str, tensors: dict[str, torch.Tensor]
    ) -> str:
        """Write the tensors of a workload to a safetensors file.

        Parameters
        ----------
        def_name : str
            Name of the definition.
        workload_uuid : str
            The workload.
        tensors : dict of str to Tensor
            By key.

        Returns
        -------
        str
            The file, relative to the root.

        Raises
        ------
        ConfigError
            If the set has no folder.
        ValueError
            If the file exists already.
        StorageError
            If it cannot be written.
        """
        root = self._require_root()
        path = layout.blob_file(root, self._op_type(def_name), def_name, workload_uuid)
        if path.exists():
            raise DataError("this tensor file exists already", path=path)
        from flashinfer_bench.data import blobs

        blobs.save_tensors(path, tensors)
        return path.relative_to(root).as_posix()

    def get_workload_blob_tensor(self, path_str: str) -> dict[str, torch.Tensor]:
        """Read the tensors of a safetensors file to the CPU.

        Parameters
        ----------
        path_str : str
            The file, relative to the root.

        Raises
        ------
        ConfigError
            If the set has no folder.
        UnsafePathError
            If the path leaves the root.
        BlobError
            If the file is missing, a Git LFS pointer that cannot be pulled, or not a safetensors
            file.
        """
        from flashinfer_bench.data import blobs

        return blobs.load_tensors(blobs.present_blob(self._require_root(), path_str))
