"""Judging the lines of the files of workloads and traces one by one."""

from __future__ import annotations

import codecs
import hashlib
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.data.jsonl import is_torn, read_whole
from flashinfer_bench.data.repair.issues import Issue, Kind, issue
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flashinfer_bench.data.trace import Trace


class Line(NamedTuple):
    """A line as it stands in its file, and what it is: a trace, or a problem, or blank."""

    number: Optional[int]
    raw: bytes
    trace: Optional[Trace] = None
    problem: Optional[Issue] = None


def digest(raw: bytes) -> bytes:
    """Return what equal lines have in common, whatever blanks and line end are around them."""
    text = raw.removeprefix(codecs.BOM_UTF8).strip()
    return hashlib.blake2b(text, digest_size=16).digest()


class LineReader:
    """Reads the files of one dataset.

    Parameters
    ----------
    root : Path
        The dataset.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._reader = TraceReader()

    def read(self, path: Path) -> Iterator[Line]:
        """Yield every line of a file; one JSON document over several lines has no numbers.

        Raises
        ------
        OSError
            If the file cannot be read.
        """
        whole = read_whole(path)
        if whole is not None:
            for text in whole:
                yield self._judge(path, None, text)
            return
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                yield self._judge(path, number, raw)

    def _judge(self, path: Path, number: Optional[int], raw: bytes) -> Line:
        text = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        relative = path.relative_to(self._root)
        if number is not None and not raw.endswith(b"\n") and is_torn(text):
            message = f"its last line was never finished: {len(raw)} bytes"
            return Line(number, raw, problem=issue(Kind.TORN_LINE, relative, message, line=number))
        if not text.strip():
            return Line(number, raw)
        try:
            return Line(number, raw, self._reader.read(text.strip(), path=path, line=number))
        except DataError as error:
            return Line(number, raw, problem=_invalid(error, relative, number))


def _invalid(error: DataError, path: Path, number: Optional[int]) -> Issue:
    message = f"{error.field}: {error.message}" if error.field else error.message
    if number is not None:
        return issue(Kind.INVALID_LINE, path, message, line=number)
    hint = "the file is one JSON document over several lines; correct it by hand"
    return issue(Kind.INVALID_LINE, path, message, hint=hint, by_hand=True)
