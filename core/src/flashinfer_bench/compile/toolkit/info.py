"""``build.json``: what a build on disk says about itself."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

BUILD_INFO = "build.json"
FORMAT = 2
_CHUNK = 1 << 20

Header = tuple[int, int, str]
"""Size, time of the last change in nanoseconds, SHA-256."""


@dataclass(frozen=True)
class BuildInfo:
    """What is known about a finished build.

    Parameters
    ----------
    builder : str
        Class of the builder, ``module:name``.
    build_type : str
        The kind of build, as in `RunnableMetadata`.
    solution, author, definition : str
        What it was built from. Solutions with the same content share a build, which has the name
        and author of the first.
    language : str
        The solution's.
    binding : str, optional
        The solution's, as it declares it.
    key : dict
        All that the result depends on besides solution and definition.
    created : str
        When, in UTC: ``2025-01-31T12:00:00Z``.
    seconds : float
        How long it took.
    library : str
        The file to load, relative to the folder.
    library_bytes : int
        Its size.
    library_sha256 : str
        Its digest.
    headers : dict
        Files outside of the folder that were read: path to size, time and digest.
    format : int
        Version of this list of fields.
    """

    builder: str
    build_type: str
    solution: str
    author: str
    definition: str
    language: str
    binding: Optional[str]
    key: dict[str, str]
    created: str
    seconds: float
    library: str
    library_bytes: int
    library_sha256: str
    headers: dict[str, Header] = field(default_factory=dict)
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write it into a build's folder."""
        text = json.dumps(asdict(self), indent=2, sort_keys=True)
        (folder / BUILD_INFO).write_text(f"{text}\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Optional[BuildInfo]:
        """Return what a folder says, or None if it says nothing that can be understood."""
        try:
            if not (folder / BUILD_INFO).is_file():  # reading a pipe would wait for ever
                return None
            record = json.loads((folder / BUILD_INFO).read_bytes())
            if record.get("format") != FORMAT:
                return None
            known = {name: record[name] for name in cls.__dataclass_fields__}
            headers = {path: _as_header(*entry) for path, entry in known.pop("headers").items()}
            return cls(**known, headers=headers) if _well_typed(known) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


_TYPES: dict[str, Any] = {
    "key": dict,
    "seconds": (int, float),
    "library_bytes": int,
    "format": int,
    "binding": (str, type(None)),
}


def _well_typed(record: dict[str, Any]) -> bool:
    return all(isinstance(value, _TYPES.get(name, str)) for name, value in record.items())


def _as_header(size: int, changed: int, digest: str) -> Header:
    return int(size), int(changed), str(digest)


def sha256_of(path: Path) -> str:
    """Return the digest of a file.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def library_sound(folder: Path, info: BuildInfo) -> bool:
    """Return whether the library is there, byte for byte as it was made."""
    library = library_file(folder, info)
    try:
        return library is not None and sha256_of(library) == info.library_sha256
    except OSError:
        return False


def library_file(folder: Path, info: BuildInfo) -> Optional[Path]:
    """Return the library, or None if there is no file of its size, or it is none of the folder's.

    Parameters
    ----------
    folder : Path
        The build's.
    info : BuildInfo
        What it says, which need not be true: a path that leaves the folder, or goes through a
        link, is not followed.
    """
    path = folder / info.library
    try:
        inside = f"{os.path.realpath(folder)}{os.sep}{info.library}"
        if info.library in ("", ".") or os.path.realpath(path) != inside:
            return None
        right = path.is_file() and path.stat().st_size == info.library_bytes
    except (OSError, ValueError):
        return None
    return path if right else None


def headers_sound(info: BuildInfo) -> bool:
    """Return whether the files outside of the folder that were read have not changed since."""
    return all(_unchanged(path, header) for path, header in info.headers.items())


def _unchanged(path: str, header: Header) -> bool:
    size, changed, digest = header
    try:
        status = os.stat(path)  # noqa: PTH116 - there may be many
        if status.st_size != size:
            return False
        return status.st_mtime_ns == changed or _digest(path) == digest
    except OSError:
        return False


def describe_headers(paths: Iterable[Path], *, since_ns: int, until_ns: int) -> dict[str, Header]:
    """Return size, time and digest of headers, and of other files that a build reads.

    Parameters
    ----------
    paths : iterable of Path
        The files.
    since_ns, until_ns : int
        When they were compiled. Of one that was changed within that time nobody knows what was
        compiled; it is described as different from whatever it is, so that it is compiled again.
    """
    described = {}
    for path in paths:
        try:
            status = path.stat()
            unclear = since_ns <= status.st_mtime_ns <= until_ns
            digest = "" if unclear else sha256_of(path)
        except OSError:  # gone already
            described[str(path)] = (0, 0, "")
        else:
            changed = 0 if unclear else status.st_mtime_ns
            described[str(path)] = (status.st_size, changed, digest)
    return described


def _digest(path: str) -> str:
    from pathlib import Path

    return sha256_of(Path(path))
