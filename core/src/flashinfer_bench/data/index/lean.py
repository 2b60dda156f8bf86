"""Reading of a line only what the index keeps, as strictly as the models would read it.

A line that is read here, the models would read too, and with the same values; every other line
(old spellings, further keys, unusual numbers, broken ones) is left to them. Nothing is skipped:
each byte of a line is either decoded here into a type at least as narrow as the model's, or part
of a text that the model has accepted before.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data.index.columns import NO_RUN
from flashinfer_bench.data.index.lean_columns import CODES, Batch, Lines, Turn, samples_of
from flashinfer_bench.data.index.lean_types import UNUSUAL, decode_rest, decode_start
from flashinfer_bench.data.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flashinfer_bench.data.index.columns import Columns
    from flashinfer_bench.data.trace import Correctness, Performance
    from flashinfer_bench.data.trace_reader import TraceReader

_KEY = b'"solution"'
_BRACE = ord("{")
_NO_ERRORS = (math.nan,) * 2
_NO_TIMES = (math.nan,) * 3
_NO_TURN = Turn(b"\n", "", Workload(axes={}, inputs={}, uuid="none"), {})
"""No line begins with that."""

Place = tuple[int, int, int]
"""A line in a block: its start, its end and its number in the file."""


class LineReader:
    """Makes columns of the lines of one file.

    Parameters
    ----------
    reader : TraceReader
        The ordinary way, for what is not read here; it may be shared by many files.
    path : Path
        The file, for messages.

    Attributes
    ----------
    last_line : int
        Number of the last line that `read_block` came to.
    """

    def __init__(self, reader: TraceReader, path: Path) -> None:
        self.last_line = 0
        self._reader = reader
        self._path = path
        self._lines = Lines()
        self._turn = _NO_TURN
        self._by_start: dict[bytes, Turn] = {}

    def columns(self) -> Columns:
        """Return what was read."""
        return self._lines.columns()

    def read_block(
        self, block: bytearray, start: int, end: int, base: int, line: int
    ) -> Iterator[Place]:
        """Read whole lines.

        Parameters
        ----------
        block : bytearray
            Part of the file. It is written to; what is yielded is as it was.
        start, end : int
            The lines in it; each ends with a newline.
        base : int
            Where the block begins in the file.
        line : int
            Number of the first of the lines.

        Yields
        ------
        start, end, line : int
            The lines that are not for this reader, by their place in the block: blank, broken, or
            to be read by `read`. It has to be called before the next line is asked for.
        """
        with memoryview(block) as view:
            while start < end:
                batch = Batch(line, self._turn)
                left = self._decode(block, view, start, end, batch)
                if batch.rests:
                    yield from self._add(batch, block, base)
                line += len(batch.rests)
                if left is None:
                    break
                yield *left, line
                start, line = left[1] + 1, line + 1
        self.last_line = line - 1

    def _decode(
        self, block: bytearray, view: memoryview, start: int, end: int, batch: Batch
    ) -> Optional[tuple[int, int]]:
        """Decode lines up to the first that is not for this reader; return where that is."""
        find, begins = block.find, block.startswith
        starts, stops, rests = batch.starts, batch.stops, batch.rests
        text = self._turn.text
        before = len(text) - 1
        while start < end:
            stop, at = find(b"\n", start), -1
            try:
                if not begins(text, start):
                    text = self._turn_to(block, start, stop, batch)
                    before = len(text) - 1
                at = start + before
                block[at] = _BRACE
                rests.append(decode_rest(view[at:stop]))
            except UNUSUAL:
                if at >= 0:
                    block[at] = text[-1]
                return start, stop
            starts.append(start)
            stops.append(stop)
            start = stop + 1
        return None

    def _turn_to(self, block: bytearray, start: int, stop: int, batch: Batch) -> bytes:
        """Look at what comes before the solution: definition and workload, as of many lines."""
        at = block.find(_KEY, start, stop)
        text = bytes(block[start : max(at, start)])
        turn = self._by_start.get(text)
        if turn is None:
            # If this is an object once a solution and a brace are put behind it, it was a whole
            # number of the object's fields.
            found = decode_start(text + _KEY + b":null}")
            workload = self._reader.read_workload(found.definition, bytes(found.workload))
            turn = self._by_start[text] = Turn(text, found.definition, workload, {})
        self._turn = turn
        batch.turns.append((len(batch.rests), turn))
        return text

    def _add(self, batch: Batch, block: bytearray, base: int) -> Iterator[Place]:
        """Put decoded lines into columns; yield those that are not for this reader after all."""
        try:
            self._lines.add(batch, base)
        except UNUSUAL:
            for one in batch.lines():
                try:
                    self._lines.add(one, base)
                except UNUSUAL:
                    start, text = one.starts[0], one.turns[0][1].text
                    block[start + len(text) - 1] = text[-1]
                    yield start, one.stops[0], one.line

    def read(self, text: bytes, offset: int, line: Optional[int]) -> None:
        """Read one line in the ordinary way.

        Parameters
        ----------
        text : bytes
            The line.
        offset : int
            Where it begins in the file.
        line : int or None
            Its number, for messages.

        Raises
        ------
        DataError
            If it is not a trace.
        """
        trace = self._reader.read(text.strip(), path=self._path, line=line)
        lines, one = self._lines, trace.evaluation
        head = lines.head(trace.definition, trace.solution, trace.workload)
        numbers: tuple[float, ...]
        if one is None:
            numbers = (NO_RUN, NO_RUN, *_NO_TIMES, *_NO_ERRORS)
            more = samples_of(None, NO_RUN)
        else:
            verdict = (lines.hardware(one.environment.hardware), CODES[one.status.value])
            numbers = (*verdict, *_times(one.performance), *_errors(one.correctness))
            more = samples_of(one.performance, lines.clock(one.provenance))
        stamp = "" if one is None else one.timestamp
        lines.add_row((head, *numbers, offset, len(text), *more), stamp)


def _errors(errors: Optional[Correctness]) -> tuple[float, float]:
    if errors is None:
        return _NO_ERRORS
    return errors.max_absolute_error, errors.max_relative_error


def _times(times: Optional[Performance]) -> tuple[float, float, float]:
    if times is None:
        return _NO_TIMES
    return times.latency_ms, times.reference_latency_ms, times.speedup_factor
