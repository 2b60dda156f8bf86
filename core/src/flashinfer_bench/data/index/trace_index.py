"""The questions that the index answers."""

from __future__ import annotations

import math
import os
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, Optional

from flashinfer_bench.data import layout
from flashinfer_bench.data.index.columns import PASSED
from flashinfer_bench.data.index.container import index_file, load_parts, save_parts
from flashinfer_bench.data.index.details import read_details
from flashinfer_bench.data.index.digest import Digest, merged
from flashinfer_bench.data.index.part import StaleIndexError
from flashinfer_bench.data.index.runs import by_file, lines_of, run_columns, workload_uuids
from flashinfer_bench.data.index.scan import holds, look_at
from flashinfer_bench.data.jsonl import read_whole, warn_of_torn_line
from flashinfer_bench.data.ranking import Runs, refuse_latency
from flashinfer_bench.data.run_source import RunDetails
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.data.index.columns import Columns, Head
    from flashinfer_bench.data.index.part import Part
    from flashinfer_bench.data.run_source import RunColumns
    from flashinfer_bench.data.trace import Trace

SMALLEST = 1 << 18
"""Bytes; an index is written if at least so much had to be read to bring it up to date."""

_AT_ONCE = 1 << 13
"""So many lines are read in one go: they are in memory together."""

_SHARE = 64
"""An index is written if at least this part of the dataset had to be read."""


class TraceIndex:
    """The traces of a dataset as they were when it was opened.

    Parameters
    ----------
    root : Path
        The dataset.
    parts : sequence of Part
        Its files, in the order in which they are read.
    """

    def __init__(self, root: Path, parts: Sequence[Part]) -> None:
        self._root = root
        self._parts = list(parts)
        self._reader = TraceReader()
        self._by_name: dict[str, list[Part]] = {}
        for part in parts:
            for name in part.names:
                self._by_name.setdefault(name, []).append(part)
        self._digests: dict[str, Digest] = {}
        self._paths: dict[str, Path] = {}
        self._errors: Optional[list[DataError]] = None
        self._workloads: Optional[dict[str, list[str]]] = None

    def __reduce__(self) -> tuple[Any, ...]:  # decoders cannot be copied
        return (TraceIndex, (self._root, self._parts))

    @classmethod
    def open(cls, root: Path) -> TraceIndex:
        """Bring the index of a dataset up to date.

        Parameters
        ----------
        root : Path
            The dataset.

        Raises
        ------
        OSError
            If the dataset cannot be read. That the index cannot be written is no error.
        """
        kept = index_file(root)
        known = load_parts(kept)
        reader = TraceReader()
        parts, work, size = [], 0, 0
        prefix = len(os.fspath(root)) + 1
        for folder in (layout.WORKLOADS, layout.TRACES):
            for path in layout.files(root / folder, ".jsonl", ".json"):
                name = os.fspath(path)[prefix:]
                try:
                    part, read = look_at(path, name, known.get(name), reader)
                except FileNotFoundError:  # deleted since it was listed
                    continue
                if part.extent.torn:
                    warn_of_torn_line(path, part.extent.torn)
                parts.append(part)
                work, size = work + read, size + part.identity.size
        if work >= max(SMALLEST, size // _SHARE) and work:
            save_parts(kept, parts)
        return cls(root, parts)

    # ------------------------------------------------------------------------------ what is bad

    def has_bad_lines(self) -> bool:
        """Return whether something could not be read."""
        return any(part.bad for part in self._parts)

    def errors(self) -> list[DataError]:
        """Return what is wrong with the lines that could not be read.

        Raises
        ------
        StaleIndexError
            If the dataset was changed meanwhile.
        """
        if self._errors is None:
            self._errors = list(chain.from_iterable(map(self._errors_of, self._parts)))
        return list(self._errors)

    def _errors_of(self, part: Part) -> Iterator[DataError]:
        places = [(bad.offset, bad.length) for bad in part.bad]
        texts = self._texts(part, places) if places else ()
        for bad, text in zip(part.bad, texts, strict=True):
            try:
                self._reader.read(text, path=self._root / part.path, line=bad.line)
            except DataError as error:
                yield error
            else:
                raise StaleIndexError("was changed", path=self._root / part.path)

    # --------------------------------------------------------------------------- what was asked

    def names(self) -> list[str]:
        """Return the definitions that have runs, in the order in which they are met."""
        return list(self._by_name)

    def counts(self, definition: str) -> tuple[int, int]:
        """Return the number of runs, and of those that passed."""
        digest = self._digest(definition)
        return digest.total, digest.passed

    def runs(self, definition: str) -> Runs:
        """Return the runs of a definition, digested.

        Raises
        ------
        DataError
            If a passing trace has a latency that is not positive.
        """
        digest = self._digest(definition)
        if digest.unusable is not None:
            refuse_latency(*digest.unusable)
        return Runs(digest.best_ms, digest.failed)

    def _digest(self, definition: str) -> Digest:
        if definition not in self._digests:
            parts = self._by_name.get(definition, ())
            self._digests[definition] = merged(part.digests()[definition] for part in parts)
        return self._digests[definition]

    def best(
        self, definition: str, axes: Optional[Mapping[str, int]], atol: float, rtol: float
    ) -> Optional[Trace]:
        """Return the trace with the highest speedup factor; of equals the first.

        Raises
        ------
        StaleIndexError
            If the dataset was changed meanwhile.
        """
        found: Optional[tuple[Part, int]] = None
        highest = -math.inf
        for part in self._by_name.get(definition, ()):
            columns = part.columns()
            speedup = columns.arrays[5]
            for number in _passing(columns, definition, axes, atol, rtol):
                if speedup[number] > highest:
                    found, highest = (part, number), speedup[number]
        return self._traces(found[0], [found[1]])[0] if found is not None else None

    def filtered(self, definition: str, atol: float, rtol: float) -> list[Trace]:
        """Return the traces that passed within both tolerances.

        Raises
        ------
        StaleIndexError
            If the dataset was changed meanwhile.
        """
        traces: list[Trace] = []
        for part in self._by_name.get(definition, ()):
            numbers = _passing(part.columns(), definition, None, atol, rtol)
            traces += self._traces(part, numbers)
        return traces

    def columns(self, definition: str) -> RunColumns:
        """Return the runs of a definition without making traces.

        Raises
        ------
        StaleIndexError
            If the index was changed meanwhile.
        """
        parts = self._by_name.get(definition, [])
        files = [part.columns() for part in parts]
        return run_columns(definition, files, lambda n, lines: self._details(parts[n], lines))

    def workload_uuids(self, definition: str) -> list[str]:
        """Return the uuid of each workload trace of a definition, in their order.

        Raises
        ------
        StaleIndexError
            If the index was changed meanwhile.
        """
        if self._workloads is None:
            self._workloads = workload_uuids([part.columns() for part in self._parts])
        return list(self._workloads.get(definition, ()))

    def workloads_of(self, definition: str) -> set[str]:
        """Return the uuids of the workloads on which a definition was run."""
        heads = chain.from_iterable(
            part.columns().heads for part in self._by_name.get(definition, ())
        )
        return {
            one.workload
            for one in heads
            if one.definition == definition and one.solution is not None
        }

    # ----------------------------------------------------------------------- from rows to traces

    def texts(self, definition: str, numbers: Sequence[int]) -> Iterator[bytes]:
        """Yield the lines of some runs.

        Parameters
        ----------
        definition : str
            Name of the definition.
        numbers : sequence of int
            Which of its runs, in ascending order; counted as in `columns`.

        Raises
        ------
        StaleIndexError
            If the dataset was changed meanwhile.
        """
        return (text for _, _, text in self._chosen(definition, numbers))

    def traces(self, definition: str, numbers: Sequence[int]) -> Iterator[Trace]:
        """Yield some runs; parameters and errors as of `texts`."""
        return (self._trace(*one) for one in self._chosen(definition, numbers))

    def readings(self, definition: str) -> Iterator[tuple[bytes, Callable[[], Trace]]]:
        """Yield the line of each run and what makes a trace of it; errors as of `texts`."""
        total = self.counts(definition)[0]
        for one in self._chosen(definition, range(total)):
            yield one[-1], partial(self._trace, *one)

    def workload_traces(self) -> dict[str, list[Trace]]:
        """Return the workload traces by definition, in their order.

        Raises
        ------
        StaleIndexError
            If the dataset was changed meanwhile.
        """
        found: dict[str, list[Trace]] = {}
        for part in self._parts:
            columns = part.columns()
            alone = {place for place, one in enumerate(columns.heads) if one.solution is None}
            for trace in self._traces(part, columns.rows_of(alone)) if alone else ():
                found.setdefault(trace.definition, []).append(trace)
        return found

    def _chosen(
        self, definition: str, numbers: Sequence[int]
    ) -> Iterator[tuple[Part, Head, bytes]]:
        parts = self._by_name.get(definition, [])
        lines = [lines_of(part.columns(), definition) for part in parts]
        for place, some in by_file(lines, numbers):
            for begin in range(0, len(some), _AT_ONCE):
                here = self._lines(parts[place], some[begin : begin + _AT_ONCE])
                yield from ((parts[place], head, text) for head, text in here)

    def _traces(self, part: Part, numbers: Sequence[int]) -> list[Trace]:
        """Read some lines of a file."""
        return [self._trace(part, head, text) for head, text in self._lines(part, numbers)]

    def _trace(self, part: Part, head: Head, text: bytes) -> Trace:
        path = self._paths.get(part.path)
        if path is None:
            path = self._paths[part.path] = self._root / part.path
        trace = self._reader.read(text, path=path, line=None)
        if (trace.definition, trace.solution, trace.workload.uuid) != head[:3]:
            raise StaleIndexError("was changed", path=path)
        return trace

    def _details(self, part: Part, numbers: Sequence[int]) -> list[RunDetails]:
        """Read logs and samples of some lines of a file."""
        found = []
        for head, text in self._lines(part, numbers):
            details = read_details(text, head)
            if details is None:
                one = self._trace(part, head, text).evaluation
                assert one is not None
                details = RunDetails.of(one)
            found.append(details)
        return found

    def _lines(self, part: Part, numbers: Sequence[int]) -> Iterator[tuple[Head, bytes]]:
        """Read some lines of a file, each with what is known of it."""
        columns = part.columns()
        heads, offsets, lengths = columns.arrays[0], columns.arrays[8], columns.arrays[9]
        texts = self._texts(part, [(offsets[number], lengths[number]) for number in numbers])
        return zip((columns.heads[heads[number]] for number in numbers), texts, strict=True)

    def _texts(self, part: Part, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return some records of a file, unless it was changed."""
        path = self._root / part.path
        if not places:
            return []
        try:
            with path.open("rb") as file:
                if not holds(file, part):
                    raise StaleIndexError("was changed", path=path)
                if part.whole:
                    records = read_whole(path) or []
                    return [records[number] for number, _ in places]
                return list(_stretches(file, places))
        except (OSError, IndexError) as error:
            raise StaleIndexError(f"was changed: {error}", path=path) from error


def _stretches(file: BinaryIO, places: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yield some lines, in one go where there is little between them."""
    begin, end = min(places)[0], sum(max(places))
    if end - begin <= 2 * sum(length for _, length in places):
        file.seek(begin)
        block = file.read(end - begin)
        for offset, length in places:
            yield block[offset - begin : offset - begin + length].strip()
        return
    for offset, length in places:
        file.seek(offset)
        yield file.read(length).strip()


def _passing(
    columns: Columns,
    definition: str,
    axes: Optional[Mapping[str, int]],
    atol: float,
    rtol: float,
) -> list[int]:
    """Return the numbers of the lines that passed within both tolerances, in their order."""
    wanted = {
        place
        for place, head in enumerate(columns.heads)
        if head.definition == definition
        and head.solution is not None
        and (axes is None or head.axes == axes)
    }
    status, absolute, relative = columns.arrays[2], columns.arrays[6], columns.arrays[7]
    return [
        number
        for number in columns.rows_of(wanted)
        if status[number] == PASSED and absolute[number] <= atol and relative[number] <= rtol
    ]
