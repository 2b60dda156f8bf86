"""What a build in the cache says of itself, and whether it is still as it was made."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Optional

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK = 1 << 20

BUILD_INFO = "build.json"
"""Name of the file in which a build says what it is."""

FORMAT = 2
"""Version of the fields of that file."""


class LibraryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``build.json`` in a build's folder says about a finished build.

    Parameters
    ----------
    key : dict
        All that the result depends on besides solution and definition.
    format : int
        Version of this list of fields.
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
        Files outside of the folder that were read: path to size, time of the last change in
        nanoseconds, and SHA-256.
    """

    key: dict[str, str]
    format: int
    builder: str
    build_type: str
    solution: str
    author: str
    definition: str
    language: str
    binding: Optional[str]
    created: str
    seconds: float
    library: str
    library_bytes: int
    library_sha256: str
    headers: dict[str, tuple[int, int, str]]

    @classmethod
    def read(cls, folder: Path) -> Optional[LibraryInfo]:
        """Return what a folder says, or None if it says nothing that can be understood."""
        try:
            if not (folder / BUILD_INFO).is_file():  # reading a pipe would wait for ever
                return None
            found = msgspec.json.decode((folder / BUILD_INFO).read_bytes(), type=cls)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
            return None
        return found if found.format == FORMAT else None

    def write(self, folder: Path) -> None:
        """Write it into a build's folder."""
        text = msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=2)
        (folder / BUILD_INFO).write_bytes(text + b"\n")

    def library_in(self, folder: Path) -> Optional[Path]:
        """Return the library in the build's folder; None if no file of its size is there.

        What this says need not be true: a path that leaves the folder, or goes through a link, is
        not followed.
        """
        try:
            root = folder.resolve()
            path = root / self.library
            inside = root in path.parents and path.resolve() == path
            right = inside and path.is_file() and path.stat().st_size == self.library_bytes
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links that go in a circle
            return None
        return folder / self.library if right else None

    def is_library_sound(self, folder: Path) -> bool:
        """Return whether the library is there, byte for byte as it was made."""
        library = self.library_in(folder)
        try:
            return library is not None and sha256_of(library) == self.library_sha256
        except OSError:
            return False


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
