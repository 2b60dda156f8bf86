"""Reading JSONL files as they are met: torn, pretty-printed, with blank lines, or broken."""

from __future__ import annotations

import codecs
import json
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from pydantic_core import from_json as parse_partial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_logger = logging.getLogger(__name__)


def warn_of_torn_line(path: Path, size: int) -> None:
    """Log that the last line of a file is left out."""
    _logger.warning("%s: left out an unfinished last line: %d bytes", path, size)


def read_records(
    path: Path, on_torn: Callable[[Path, int], None] = warn_of_torn_line
) -> Iterator[tuple[int | None, bytes]]:
    """Yield the JSON documents of a file.

    One line is one document. A file that is a single document over several lines (or a list of
    documents) is yielded as such, without a line. An unfinished last line, left behind by a
    process that died while it was appending, is left out.

    Parameters
    ----------
    path : Path
        The file.
    on_torn : callable
        Called with the file and the size of a line that is left out; logs a warning by default.

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
    with path.open("rb") as file:
        whole = read_whole(file)
        if whole is not None:
            yield from ((None, text) for text in whole[1])
            return
        for line, text in _numbered(file):
            if not text.endswith(b"\n") and is_torn(text):
                on_torn(path, len(text))
            else:
                yield line, text.strip()


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, without a byte order mark."""
    for number, line in enumerate(file, 1):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if text and not text.isspace():
            yield number, text


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
    # It neither begins with a whole document nor breaks off anywhere but at its end.
    is_whole = _is_parsed(json.JSONDecoder().raw_decode, start)
    return start.startswith("{") and not is_whole and _is_parsed(_parse_beginning, start)


_parse_beginning = partial(parse_partial, allow_partial="trailing-strings")


def _is_parsed(parse: Callable[[Any], object], text: str | bytes) -> bool:
    try:
        parse(text)
    except (ValueError, RecursionError):
        return False
    return True


def read_whole(file: BinaryIO) -> tuple[bytes, list[bytes]] | None:
    """Return the content of a file that is a single JSON document, and the records in it.

    None, and the file is at its beginning, if it is of lines.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    file.seek(0)
    first = next(_numbered(file), None)
    file.seek(0)
    if first is None or (first[1].lstrip().startswith(b"{") and _is_parsed(json.loads, first[1])):
        return None
    content = file.read()
    file.seek(0)
    try:
        document = json.loads(content.removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError):
        return None
    records = document if isinstance(document, list) else [document]
    return content, [json.dumps(record).encode() for record in records]
