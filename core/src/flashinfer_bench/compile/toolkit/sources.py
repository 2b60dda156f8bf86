"""Writing the sources of a solution into a folder, and nowhere else."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from flashinfer_bench.errors import StorageError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.data import SourceFile

_LONGEST_NAME = 255
_FLAGS = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
)


def check_relative_path(path: str) -> PurePosixPath:
    """Return `path` if it stays within any folder that it is joined to, on every platform.

    Parameters
    ----------
    path : str
        A path with forward slashes. ``./`` and doubled slashes are dropped.

    Returns
    -------
    PurePosixPath
        At least one name; no ``..``.

    Raises
    ------
    UnsafePathError
        If it is empty or absolute, has ``..``, a backslash, a drive, a control character, or a name
        of more than 255 bytes.
    """
    reason = _objection(path)
    if reason:
        raise UnsafePathError(f"source path {path[:300]!r} {reason}")
    return PurePosixPath(path)


def _objection(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts:
        return "names no file"
    if path.startswith("/"):
        return "is absolute"
    if ".." in parts:
        return "leaves its folder"
    if "\\" in path or ":" in path:
        return "has a backslash or a colon, which other systems take for a folder or drive"
    if any(ord(char) < 32 or ord(char) == 127 for char in path):
        return "has a control character"
    if any(0xD800 <= ord(char) <= 0xDFFF for char in path):
        return "is not valid Unicode"
    if any(len(part.encode()) > _LONGEST_NAME for part in parts):
        return f"has a name of more than {_LONGEST_NAME} bytes"
    return ""


def write_sources(root: Path, sources: Iterable[SourceFile]) -> list[Path]:
    """Write `sources` below `root`.

    Parameters
    ----------
    root : Path
        The folder; it is made if it is missing.
    sources : iterable of SourceFile
        Paths relative to `root`, and contents. Contents are written as UTF-8, byte for byte.

    Returns
    -------
    list of Path
        The files, in the order of `sources`.

    Raises
    ------
    UnsafePathError
        If a path could leave `root`, leads through a symbolic link, or is there already. All
        paths are looked at before the first file is written.
    StorageError
        If a file cannot be written.
    """
    checked = [(check_relative_path(source.path), source) for source in sources]
    written = []
    try:
        root.mkdir(parents=True, exist_ok=True)
        for relative, source in checked:
            _make_folders(root, relative)
            path = root.joinpath(*relative.parts)
            _write_new(path, source.content.encode("utf-8", "surrogatepass"))
            written.append(path)
    except FileExistsError as error:
        name = Path(str(error.filename)).name
        raise UnsafePathError(
            f"two sources want the same place: {name!r} is there already"
        ) from None
    except OSError as error:
        raise StorageError(f"{root}: sources cannot be written: {error}") from error
    return written


def _make_folders(root: Path, relative: PurePosixPath) -> None:
    folder = root
    for part in relative.parts[:-1]:
        folder = folder / part
        try:
            folder.mkdir()
        except FileExistsError:
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise


def _write_new(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, _FLAGS, 0o666), "wb") as stream:
        stream.write(content)
