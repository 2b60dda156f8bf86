"""Where recorded workloads go: a dataset that other processes write to, too."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.data import layout
from flashinfer_bench.data.json_codec import append_jsonl_file
from flashinfer_bench.data.storage import locked
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import DataError, StorageError
from flashinfer_bench.tracing.signals import held_back
from flashinfer_bench.tracing.store.blobs import make_folders
from flashinfer_bench.tracing.store.current import CurrentDefinitions
from flashinfer_bench.tracing.store.identity import Ordinals, workload_uuid
from flashinfer_bench.tracing.store.known import KnownWorkloads
from flashinfer_bench.tracing.store.records import draft

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.data.definition import Definition
    from flashinfer_bench.tracing.store.records import Draft, Entry

_logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 10.0
"""Seconds to wait for other tracers of the same definition; a dead one holds no lock."""


class Added(NamedTuple):
    """What became of entries.

    Parameters
    ----------
    written : int
        New workloads.
    known : int
        Entries that the dataset has already.
    """

    written: int
    known: int


class LostEntriesError(StorageError):
    """Entries could not be stored; all others of the same call were.

    Parameters
    ----------
    message : str
        What went wrong first.
    lost : int
        Number of entries that are not in the dataset.
    added : Added
        What became of the others.
    """

    def __init__(self, message: str, *, lost: int, added: Added) -> None:
        super().__init__(message)
        self.lost = lost
        self.added = added


def tracing_lock(path: Path) -> Path:
    """Return the file whose lock tracers hold while they look a workload up and add it.

    It is not that of the file of workloads, which each append takes for itself.
    """
    return path.with_name(f"{path.name}.tracing")


class Store:
    """Appends recorded workloads to a dataset, each once. Safe to use from several threads.

    A process that was forked off may go on using it: it counts anew what it has stored.

    Parameters
    ----------
    root : Path
        Folder of the dataset. It must exist: the store never makes it, also not again.
    definitions : mapping of str to Definition
        By name. Only looked at in `add`, so that it may be filled later.
    """

    def __init__(self, root: Path, definitions: Mapping[str, Definition]) -> None:
        self.root = root
        self.definitions = definitions
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._known: dict[Path, KnownWorkloads] = {}
        self._ordinals = Ordinals()
        self._current = CurrentDefinitions(self.root)

    def add(self, entries: Sequence[Entry]) -> Added:
        """Write entries durably.

        Parameters
        ----------
        entries : sequence of Entry
            Recorded calls, of any definitions.

        Returns
        -------
        Added
            What became of them.

        Raises
        ------
        LostEntriesError
            If some could not be written, whatever the reason is (a full disk, an unknown
            definition or one that has changed, a scalar without a value). The others are in the
            dataset. To give the lost ones once more is safe.
        """
        if self._pid != os.getpid():  # another thread of the parent may have held the lock
            self._start_anew()
        with held_back(), self._lock:
            outcome = _Outcome()
            for name, group in _by_definition(entries).items():
                with outcome.losing(len(group)):
                    self._add_group(name, group, outcome)
            return outcome.result()

    def close(self) -> None:
        """Forget what is known of the dataset. The store can still be used."""
        with self._lock:
            self._known.clear()

    def _add_group(self, name: str, entries: Sequence[Entry], outcome: _Outcome) -> None:
        definition = self.definitions.get(name)
        if definition is None:
            raise DataError(f"there is no definition {name!r} in the dataset {self.root}")
        drafts = []
        path = layout.workloads_file(self.root, definition.op_type, name)
        make_folders(self.root, path.parent)
        self._current.refresh().require_same(definition)
        for entry in entries:
            with outcome.losing(1):
                drafts.append(self._prepare(definition, entry))
        with outcome.losing(len(drafts)):
            written = self._append(path, name, drafts)
            outcome.count(written, len(drafts) - written)

    def _prepare(self, definition: Definition, entry: Entry) -> Draft:
        """Write the tensors of an entry. Not under the lock: other ranks have their own."""
        made = draft(self.root, definition, entry)
        if made.blob is not None:
            make_folders(self.root, made.blob.path.parent)
            made.blob.write()
        return made

    def _append(self, path: Path, name: str, drafts: Sequence[Draft]) -> int:
        """Append the workloads that the file does not have; return their number."""
        if not drafts:
            return 0
        with locked(tracing_lock(path), LOCK_TIMEOUT_S):
            known = self._known.setdefault(path, KnownWorkloads(path)).refresh()
            ordinals = self._ordinals.draft()
            named = {workload_uuid(one.key, ordinals.next(one.key)): one for one in drafts}
            new = {uuid: one for uuid, one in named.items() if uuid not in known}
            for one in new.values():
                if one.blob is not None and not one.blob.is_there():
                    one.blob.write()  # a clean-up has taken it for one that nobody needs
            append_jsonl_file([_trace(name, uuid, one) for uuid, one in new.items()], path)
        ordinals.commit()
        return len(new)


def _trace(definition: str, uuid: str, one: Draft) -> Trace:
    workload = Workload(axes=one.axes, inputs=one.inputs, uuid=uuid)
    return Trace(definition=definition, workload=workload)


def _by_definition(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.def_name, []).append(entry)
    return groups


class _Outcome:
    """Counts what became of entries; what fails costs only itself."""

    def __init__(self) -> None:
        self._written = self._known = self._lost = 0
        self._first: Optional[Exception] = None

    def count(self, written: int, known: int) -> None:
        self._written += written
        self._known += known

    @contextlib.contextmanager
    def losing(self, entries: int) -> Iterator[None]:
        """Take any failure inside for the loss of so many entries."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - tensors of a foreign program raise anything
            self._lost += entries
            self._first = self._first or error
            _logger.debug("%d recorded workloads are lost: %r", entries, error)

    def result(self) -> Added:
        """Return what became of the entries, or raise what went wrong first."""
        added = Added(self._written, self._known)
        if self._first is None:
            return added
        message = f"{self._lost} recorded workloads are lost: {self._first}"
        raise LostEntriesError(message, lost=self._lost, added=added) from self._first
