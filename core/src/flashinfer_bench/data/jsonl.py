"""Reading JSONL files as they are met: torn, pretty-printed, with blank lines, or broken."""

from __future__ import annotations

import codecs
import json
import logging
from typing import TYPE_CHECKING, BinaryIO

from pydantic_core import from_json as parse_partial

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_logger = logging.getLogger(__name__)


def read_records(path: Path) -> Iterator[tuple[int | None, bytes]]:
    """Yield the JSON documents of a file.

    One line is one document. A file that is a single document over several lines (or a list of
    documents) is yielded as such, without a line. An unfinished last line, left behind by a
    process that died while it was appending, is left out with a warning.

    Parameters
    ----------
    path : Path
        The file.

    Yields
    ------
    line : int or None
        Line in the file, counted from 1.
    text : bytes
        The document; whether it is valid JSON is for the caller to find out.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    whole = read_whole(path)
    if whole is not None:
        yield from ((None, text) for text in whole)
        return
    with path.open("rb") as file:
        for line, text in _numbered(file):
            if not text.endswith(b"\n") and is_torn(text):
                warn_of_torn_line(path, len(text))
            else:
                yield line, text.strip()


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, without a byte order mark."""
    for number, line in enumerate(file, 1):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if text and not text.isspace():
            yield number, text


def warn_of_torn_line(path: Path | str, size: int) -> None:
    """Log that the last line of a file is left out."""
    _logger.warning("%s: left out an unfinished last line: %d bytes", path, size)


def is_torn(tail: bytes) -> bool:
    """Return whether a last line without a newline is an object that was cut off.

    A process that dies in the middle of an append leaves a prefix of a record, maybe cut within
    a character; a machine that loses power may leave zero bytes in its place.
    """
    text = tail.rstrip(b"\0")
    if not text.strip():
        return len(text) < len(tail)
    try:
        # The incremental decoder keeps the beginning of a character to itself.
        start = codecs.getincrementaldecoder("utf-8")().decode(text).lstrip()
    except UnicodeDecodeError:
        return False
    return start.startswith("{") and not _begins_with_json(start) and _may_continue(start)


def _begins_with_json(text: str) -> bool:
    try:
        json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def _may_continue(text: str) -> bool:
    try:
        parse_partial(text, allow_partial="trailing-strings")
    except ValueError:
        return False
    return True


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_object(text: bytes) -> bool:
    return text.lstrip().startswith(b"{") and _is_json(text)


def read_whole(path: Path) -> list[bytes] | None:
    """Return the records of a file that is a single JSON document, or None if it is of lines.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    first = _first_line(path)
    if first is None or _is_object(first):
        return None
    try:
        document = json.loads(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError):
        return None
    records = document if isinstance(document, list) else [document]
    return [json.dumps(record).encode() for record in records]


def first_line_is_object(path: Path) -> bool:
    """Return whether a file begins with a JSON object on a line of its own.

    It is then of lines, whatever is appended to it.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    first = _first_line(path)
    return first is not None and _is_object(first)


def _first_line(path: Path) -> bytes | None:
    with path.open("rb") as file:
        line = next(_numbered(file), None)
    return None if line is None else line[1]
