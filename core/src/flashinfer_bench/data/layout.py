"""Where things are in a dataset folder."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFINITIONS = "definitions"
SOLUTIONS = "solutions"
WORKLOADS = "workloads"
TRACES = "traces"
BLOB = "blob"

_UNSAFE = re.compile(r"[^\w.@+=, -]|^[. ]|[. ]$", re.ASCII)
_MAX_SEGMENT = 180


def safe_segment(name: str) -> str:
    """Make a name into one path segment.

    Names that are used as such in published datasets stay as they are. Anything that could change
    the path's meaning (separators, a leading or trailing dot, control and non-ASCII characters)
    is percent-encoded, so that different names give different segments. A very long name ends in
    a digest.

    Parameters
    ----------
    name : str
        Name of a definition, author, solution or op type.

    Returns
    -------
    str
        A single, visible, non-empty segment.
    """
    segment = _UNSAFE.sub(lambda found: _percent(found.group()), name) or "%00"
    if len(segment) <= _MAX_SEGMENT:
        return segment
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{segment[: _MAX_SEGMENT - 17]}%{digest}"


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))


def definition_file(root: Path, op_type: str, name: str) -> Path:
    """Return ``definitions/<op_type>/<name>.json``."""
    return root / DEFINITIONS / safe_segment(op_type) / f"{safe_segment(name)}.json"


def solution_file(root: Path, author: str, op_type: str, definition: str, name: str) -> Path:
    """Return ``solutions/<author>/<op_type>/<definition>/<name>.json``."""
    folder = root / SOLUTIONS / safe_segment(author) / safe_segment(op_type)
    return folder / safe_segment(definition) / f"{safe_segment(name)}.json"


def traces_file(root: Path, op_type: str, definition: str) -> Path:
    """Return ``traces/<op_type>/<definition>.jsonl``."""
    return root / TRACES / safe_segment(op_type) / f"{safe_segment(definition)}.jsonl"


def workloads_file(root: Path, op_type: str, definition: str) -> Path:
    """Return ``workloads/<op_type>/<definition>.jsonl``."""
    return root / WORKLOADS / safe_segment(op_type) / f"{safe_segment(definition)}.jsonl"


def blob_file(root: Path, op_type: str, definition: str, uuid: str) -> Path:
    """Return ``blob/workloads/<op_type>/<definition>/<definition>_<uuid>.safetensors``."""
    folder = root / BLOB / WORKLOADS / safe_segment(op_type) / safe_segment(definition)
    return folder / f"{safe_segment(f'{definition}_{uuid}')}.safetensors"


def files(folder: Path, *suffixes: str) -> list[Path]:
    """Return the files below a folder with one of these suffixes, sorted.

    Hidden files and folders are left out; links to folders are followed, each folder once.

    Raises
    ------
    OSError
        If a folder cannot be listed: to go on would silently lose what is in it.
    """
    found = _walk(os.fspath(folder), suffixes, set()) if folder.is_dir() else ()
    return [Path(path) for path in sorted(found)]


def _walk(folder: str, suffixes: tuple[str, ...], seen: set[tuple[int, int]]) -> Iterator[str]:
    info = Path(folder).stat()
    if (info.st_dev, info.st_ino) in seen:
        return
    seen.add((info.st_dev, info.st_ino))
    with os.scandir(folder) as entries:  # several times quicker than pathlib's way
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _walk(entry.path, suffixes, seen)
            elif entry.name.endswith(suffixes) and entry.is_file():
                yield entry.path
