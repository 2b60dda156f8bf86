"""Reading JSONL files, including torn, pretty-printed and invalid ones."""

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
    """Log that an unfinished last line is left out."""
    _logger.warning("%s: left out an unfinished last line of %d bytes", path, size)


def read_records(
    path: Path, on_torn: Callable[[Path, int], None] = warn_of_torn_line
) -> Iterator[tuple[int | None, bytes]]:
    """Yield the JSON documents of a file.

    Each line is one document. If the file is a single document over several lines, or a list of
    documents, these are yielded without a line number. An unfinished last line, left by a process
    that died while appending, is left out.

    Parameters
    ----------
    path : Path
        The file.
    on_torn : callable
        Called with the file and the size of an unfinished line; by default logs a warning.

    Yields
    ------
    line : int or None
        Line in the file, counted from 1.
    text : bytes
        The document, not yet checked to be valid JSON.

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
    """Yield the lines that are not blank with their numbers, without a byte order mark."""
    for number, line in enumerate(file, 1):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if text and not text.isspace():
            yield number, text


def is_torn(tail: bytes) -> bool:
    """Return whether a last line without a newline is an object that was cut off.

    A process that dies while appending leaves a prefix of a record, possibly cut within a
    character; a machine that loses power may leave zero bytes.
    """
    text = tail.rstrip(b"\0")
    if not text.strip():
        return len(text) < len(tail)
    try:
        # The incremental decoder drops an incomplete character at the end.
        start = codecs.getincrementaldecoder("utf-8")().decode(text).lstrip()
    except UnicodeDecodeError:
        return False
    # Torn: no complete document at its beginning, and invalid only because it ends.
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

    Returns None, with the file at its beginning, if each line is a document.

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
