"""A dataset: definitions, solutions, workloads and traces."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, TypeVar, Union

from flashinfer_bench import env
from flashinfer_bench.data import blob_tensors, layout
from flashinfer_bench.data.dataset_folder import DatasetFolder
from flashinfer_bench.data.index import StaleIndexError, TraceIndex
from flashinfer_bench.data.json_codec import append_jsonl_file
from flashinfer_bench.data.loader import (
    OnError,
    Problems,
    load_definitions,
    load_solutions,
    load_traces,
    paused_gc,
)
from flashinfer_bench.data.run_source import MemoryRuns
from flashinfer_bench.data.trace_queries import TraceQueries
from flashinfer_bench.errors import DataError, DatasetNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import torch

    from flashinfer_bench.data.definition import Definition
    from flashinfer_bench.data.run_source import RunSource
    from flashinfer_bench.data.solution import Solution
    from flashinfer_bench.data.trace import Trace

_logger = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
_TRIES = 2

# Of two threads that ask first, one reads. One lock for all sets, so that a set can be copied.
_reading = threading.RLock()


class TraceSet(DatasetFolder, TraceQueries):
    """Definitions, solutions, workloads and traces, in plain dicts by the name of the definition.

    Made by `from_path` it belongs to a folder: what is added is written there too. Made by hand
    it lives in memory alone, unless `root` is given.

    Workloads and traces of a folder are read when they are first asked for. Equal workloads and
    environments of many traces are one object in memory: do not modify them in place.

    Parameters
    ----------
    root : str or Path, optional
        Folder of the dataset; None for a set in memory.
    definitions : dict of str to Definition, optional
        By name.
    solutions : dict of str to list of Solution, optional
        By definition.
    workloads : dict of str to list of Trace, optional
        Workload traces by definition. `workload` is its old name.
    traces : dict of str to list of Trace, optional
        Traces of runs by definition.
    """

    def __init__(
        self,
        root: Optional[Union[str, Path]] = None,
        definitions: Optional[dict[str, Definition]] = None,
        solutions: Optional[dict[str, list[Solution]]] = None,
        workloads: Optional[dict[str, list[Trace]]] = None,
        traces: Optional[dict[str, list[Trace]]] = None,
        *,
        workload: Optional[dict[str, list[Trace]]] = None,
    ) -> None:
        self.root = None if root is None else Path(root)
        self.definitions = {} if definitions is None else definitions
        self.solutions = {} if solutions is None else solutions
        given = workload if workloads is None else workloads
        self._workloads = {} if given is None else given
        self._traces = {} if traces is None else traces
        self._index_solutions()
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
            ``"raise"``: the first file or line that is not valid is an error. ``"collect"``: it is
            left out and listed in `load_errors`; the rest is usable.

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
        if not root.is_dir():
            what = "is not a folder" if root.exists() else "does not exist"
            hint = "name a dataset folder, or set FIB_DATASET_PATH"
            raise DatasetNotFoundError(f"no dataset: {root} {what}", hint=hint)
        loaded = cls(root)
        loaded._problems = Problems(on_error)
        with paused_gc():
            loaded.definitions = load_definitions(root, loaded._problems)
            loaded.solutions = load_solutions(root, loaded._problems)
            loaded._index_solutions()
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
    def run_source(self) -> RunSource:
        """Where the runs are to be had: from the index of the folder, until they are in memory.

        They are in memory once `traces` or `workloads` was looked at; they may have been edited
        since, so that the index has no say any more.
        """
        index = self._open_index()
        return MemoryRuns(self.traces, self.workloads) if index is None else index

    def _open_index(self) -> Optional[TraceIndex]:
        """Return the index; None if the traces are in memory, or have to be read as a whole."""
        if not self._unread:
            return None
        with _reading:
            if self._index is None:
                try:
                    with paused_gc():
                        self._index = TraceIndex.open(self._require_root())
                except OSError as error:
                    _logger.debug("%s: cannot be indexed: %s", self.root, error)
            if self._index is None or not self._raises(self._index):
                return self._index
        return None  # reading the traces raises the error

    def _raises(self, index: TraceIndex) -> bool:
        return self._problems.on_error == "raise" and index.has_bad_lines()

    def _ask(self, question: Callable[[], _Answer]) -> _Answer:
        for _ in range(_TRIES):
            try:
                return question()
            except StaleIndexError as error:
                _logger.debug("%s; the index is brought up to date", error)
                self._index = None
        self._read()
        return question()

    @property
    def load_errors(self) -> list[DataError]:
        """What was left out of the dataset because it is not valid (looks at all of it)."""
        return self._ask(self._all_errors)

    def _all_errors(self) -> list[DataError]:
        index = self._open_index()
        if index is None:
            self._read()
            return self._problems.errors
        return [*self._problems.errors, *index.errors()]

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
    def workload(self) -> dict[str, list[Trace]]:
        """Old name of `workloads`."""
        return self.workloads

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
        """Return everything as plain Python data that `json` can write.

        Returns
        -------
        dict
            With the keys ``definitions``, ``solutions``, ``workloads`` and ``traces``.
        """
        with paused_gc():
            return {
                "definitions": {
                    name: definition.model_dump(mode="json")
                    for name, definition in self.definitions.items()
                },
                "solutions": {
                    name: [solution.model_dump(mode="json") for solution in solutions]
                    for name, solutions in self.solutions.items()
                },
                "workloads": _dump_traces(self.workloads),
                "traces": _dump_traces(self.traces),
            }

    # ------------------------------------------------------------------------------- writing

    def add_traces(self, traces: Iterable[Trace]) -> None:
        """Add traces of runs, in memory and on disk.

        Each file gets its traces in one durable append; other processes may append meanwhile.

        Raises
        ------
        DataError
            If a trace is not of a run, or its definition is not in the dataset; nothing is added.
        StorageError
            If a file cannot be written. It is then unchanged; files written before it keep theirs.
        """
        self._add(list(traces), layout.traces_file, of_runs=True)

    def add_workload_traces(self, traces: Iterable[Trace]) -> None:
        """Add workload traces, in memory and on disk.

        Raises
        ------
        DataError
            If a trace is of a run, or its definition is not in the dataset; nothing is added.
        StorageError
            If a file cannot be written. It is then unchanged; files written before it keep theirs.
        """
        self._add(list(traces), layout.workloads_file, of_runs=False)

    def _add(
        self, traces: list[Trace], file_of: Callable[[Path, str, str], Path], *, of_runs: bool
    ) -> None:
        groups: dict[str, list[Trace]] = {}
        for trace in traces:
            if trace.is_workload_trace() is of_runs:
                kind = "a workload trace" if of_runs else "a trace of a run"
                raise DataError(f"{kind} of '{trace.definition}' does not belong here")
            groups.setdefault(trace.definition, []).append(trace)
        op_types = {name: self._op_type(name) for name in groups} if self.root else {}
        for name, group in groups.items():
            with _reading:  # else a thread that reads meanwhile could miss them, or see them twice
                if self.root is not None:
                    append_jsonl_file(group, file_of(self.root, op_types[name], name))
                self._index = None
                if not self._unread:  # else they will be read from the file
                    target = self._traces if of_runs else self._workloads
                    target.setdefault(name, []).extend(group)

    def _op_type(self, def_name: str) -> str:
        if def_name not in self.definitions:
            raise DataError(f"definition '{def_name}' is not in the dataset {self.root}")
        return self.definitions[def_name].op_type

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
            raise DataError("this blob exists already", path=path)
        blob_tensors.save_tensors(path, tensors)
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
            If the file is missing, a Git LFS pointer, or not a safetensors file.
        """
        return blob_tensors.load_tensors(self._require_root(), path_str)


def _dump_traces(groups: Mapping[str, list[Trace]]) -> dict[str, list[dict[str, Any]]]:
    """Return traces as plain data; a workload that many share is converted once, then copied."""
    plain: dict[int, dict[str, Any]] = {}

    def dump(trace: Trace) -> dict[str, Any]:
        known = plain.get(id(trace.workload))
        if known is None:
            known = plain[id(trace.workload)] = trace.workload.model_dump(mode="json")
        inputs = {name: {**spec} for name, spec in known["inputs"].items()}
        evaluation = trace.evaluation
        return {
            "definition": trace.definition,
            "workload": {**known, "axes": {**known["axes"]}, "inputs": inputs},
            "solution": trace.solution,
            "evaluation": None if evaluation is None else evaluation.model_dump(mode="json"),
        }

    return {name: [dump(trace) for trace in traces] for name, traces in groups.items()}
