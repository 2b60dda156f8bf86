"""The lines of several dataset folders as those of one, a definition at a time."""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from pydantic_core import to_json

from flashinfer_bench.data.index.lean_types import UNUSUAL, decode_start
from flashinfer_bench.data.loader import paused_gc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flashinfer_bench.data.index import TraceIndex
    from flashinfer_bench.data.trace import Trace
    from flashinfer_bench.data.workload import Workload


_KEY = b'"solution"'
_LINE = b'{"definition":%b,"workload":%b,"solution":%b,"evaluation":%b}\n'


class LineSource(NamedTuple):
    """A dataset.

    Attributes
    ----------
    runs : TraceIndex
        Its runs.
    place : callable
        Returns the workload of a trace with paths of tensor files that hold where it goes.
    renamed : mapping of str to str
        New names of its solutions, by the old ones.
    """

    runs: TraceIndex
    place: Callable[[Trace], Workload]
    renamed: Mapping[str, str]


class MergedLines:
    """The runs of several datasets as JSON lines, equal ones once: the first that is met.

    Parameters
    ----------
    sources : sequence of LineSource
        The datasets.

    Attributes
    ----------
    written : int
        Number of lines that were returned so far.
    """

    def __init__(self, sources: Sequence[LineSource]) -> None:
        self._sources = list(sources)
        self.written = 0
        self._bodies: dict[int, tuple[Workload, bytes]] = {}

    def names(self) -> list[str]:
        """Return the definitions that have runs, in the order in which they are met."""
        names = (source.runs.names() for source in self._sources)
        return list(dict.fromkeys(chain.from_iterable(names)))

    def text(self, definition: str) -> bytes:
        """Return the lines of a definition.

        Raises
        ------
        StaleIndexError
            If a dataset was changed meanwhile.
        UnsafePathError, BlobError
            As of `BlobPlan.add`.
        """
        self._bodies.clear()
        with paused_gc():
            lines = list(self._lines(definition))
        self.written += len(lines)
        return b"".join(lines)

    def _lines(self, definition: str) -> Iterator[bytes]:
        seen: set[bytes] = set()
        texts: dict[bytes, bytes] = {}  # to the workload that was written for it
        for source in self._sources:
            workloads: dict[bytes, bytes] = {}  # of this dataset, by what lines begin with
            for text, read in source.runs.readings(definition):
                digest = hashlib.sha256(text).digest()[:16]
                start = text[: max(text.find(_KEY), 0)]
                if digest in texts and texts[digest] == workloads.get(start):
                    continue  # the same text with the same tensor files
                line, workload = self._line(source, read())
                texts.setdefault(digest, workload)
                if start not in workloads:
                    workloads[start] = workload if _has_workload(start) else b""
                digest = hashlib.sha256(line).digest()[:16]
                if digest not in seen:
                    seen.add(digest)
                    yield line

    def _line(self, source: LineSource, trace: Trace) -> tuple[bytes, bytes]:
        """Return what `json_codec.to_json` would, and the workload in it.

        What many lines have in common is made once.
        """
        workload, evaluation = source.place(trace), trace.evaluation
        assert evaluation is not None
        known = self._bodies.get(id(workload))
        if known is None:
            body = workload.model_dump_json(exclude_none=True).encode()
            known = self._bodies[id(workload)] = (workload, body)  # kept, and so its id
        fields = (
            to_json(trace.definition),
            known[1],
            to_json(source.renamed.get(trace.solution or "", trace.solution)),
            evaluation.__pydantic_serializer__.to_json(evaluation, exclude_none=True),
        )
        return _LINE % fields, known[1]


def _has_workload(start: bytes) -> bool:
    """Return whether the beginning of a line is its definition and its workload."""
    try:
        decode_start(start + _KEY + b":null}")
    except UNUSUAL:
        return False
    return True
