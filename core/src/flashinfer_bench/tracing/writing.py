"""Hands entries over to the dataset, one thread at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Optional, Protocol

from flashinfer_bench.tracing.shutdown import warn
from flashinfer_bench.tracing.signals import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from flashinfer_bench.data import Definition
    from flashinfer_bench.tracing.entry import WorkloadEntry

_ANYTHING = (Exception,)


class Sink(Protocol):
    """Takes entries."""

    def add(self, entries: list[WorkloadEntry]) -> Any:
        """Write them; returns what has ``written`` and ``known``, or None: all are written."""
        ...

    def close(self) -> None:
        """Be done for now."""
        ...


class Writer:
    """Writes entries, and counts what became of them.

    Parameters
    ----------
    root : Path
        Folder of the dataset.
    definitions : mapping of str to Definition
        Its definitions.
    sink : Sink, optional
        Takes the entries. Default: the dataset's store, opened at the first entry.

    Attributes
    ----------
    totals : dict of str to int
        Entries ``written``, ``known`` to the dataset already, and ``lost``.
    """

    def __init__(
        self, root: Path, definitions: Mapping[str, Definition], sink: Optional[Sink] = None
    ) -> None:
        self._root = root
        self._definitions = definitions
        self._given = sink
        self._sink = sink
        self.totals = dict.fromkeys(("written", "known", "lost"), 0)
        self._lock = threading.RLock()
        self._writing = False
        self._told = False

    def write(self, drain: Callable[[], list[WorkloadEntry]]) -> dict[str, int]:
        """Write what `drain` returns; never raises an `Exception`.

        Returns
        -------
        dict of str to int
            The ``entries``, and how `totals` has changed.
        """
        before = {"entries": 0, **self.totals}
        with held_back(), self._lock:
            if self._writing:  # a signal's handler, or what writing has called
                return dict.fromkeys(before, 0)
            self._writing = True
            entries: list[WorkloadEntry] = []
            try:
                before = {"entries": 0, **self.totals}
                entries = drain()
                if entries:
                    self._add(entries)
            except _ANYTHING as error:
                self._failed(error, len(entries))
            finally:
                self._writing = False
            after = {"entries": len(entries), **self.totals}
        return {name: after[name] - before[name] for name in before}

    def _add(self, entries: list[WorkloadEntry]) -> None:
        if self._sink is None:
            from flashinfer_bench.tracing.store import Store

            self._sink = Store(self._root, self._definitions)
        added = self._sink.add(entries)
        self.totals["written"] += getattr(added, "written", len(entries))
        self.totals["known"] += getattr(added, "known", 0)

    def _failed(self, error: Exception, entries: int) -> None:
        added = getattr(error, "added", None)
        self.totals["written"] += getattr(added, "written", 0)
        self.totals["known"] += getattr(added, "known", 0)
        self.totals["lost"] += getattr(error, "lost", entries)
        if not self._told:
            self._told = True
            warn("workloads could not be written; told once", exc_info=error)

    def close(self) -> None:
        """Let go of the dataset until something is written again."""
        with self._lock:
            sink, self._sink = self._sink, self._given
        try:
            if sink is not None:
                sink.close()
        except _ANYTHING:
            warn("the dataset could not be closed", exc_info=True)

    def after_fork(self) -> None:
        """Work in a forked child, where another thread may have been writing."""
        self._lock = threading.RLock()
        self._writing = False
        self._sink = self._given
        self.totals = dict.fromkeys(self.totals, 0)
