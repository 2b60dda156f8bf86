"""The metadata of a build in the cache, and checks that the build is unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import msgspec

from flashinfer_bench.data.storage import sha256_of

if TYPE_CHECKING:
    from pathlib import Path

BUILD_INFO = "build.json"
"""Name of the metadata file in a build's folder."""

FORMAT = 2
"""Version of the fields in that file."""


class LibraryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of ``build.json``, the metadata of a finished build.

    Parameters
    ----------
    key : dict
        Everything that the result depends on besides solution and definition.
    format : int
        Version of this list of fields.
    builder : str
        Class of the builder, ``module:name``.
    build_type : str
        The kind of build, as in `RunnableMetadata`.
    solution, author, definition : str
        What it was built from. Solutions with the same content share a build, which has the name
        and author of the first one.
    language : str
        Language of the solution.
    binding : str, optional
        Binding that the solution declares.
    created : str
        Time of the build in UTC: ``2025-01-31T12:00:00Z``.
    seconds : float
        Duration of the build.
    library : str
        The library file, relative to the folder.
    library_bytes : int
        Size of the library.
    library_sha256 : str
        Digest of the library.
    headers : dict
        Files outside the folder that the build has read: path to size, modification time in
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
        """Return the metadata in a folder, or None if they are missing or unreadable."""
        try:
            if not (folder / BUILD_INFO).is_file():  # reading a pipe would block
                return None
            found = msgspec.json.decode((folder / BUILD_INFO).read_bytes(), type=cls)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
            return None
        return found if found.format == FORMAT else None

    def write(self, folder: Path) -> None:
        """Write the metadata into a build's folder."""
        text = msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=2)
        (folder / BUILD_INFO).write_bytes(text + b"\n")

    def library_in(self, folder: Path) -> Optional[Path]:
        """Return the library in the build's folder; None if there is no file of the recorded size.

        The metadata are not trusted: a path that leaves the folder, or goes through a link, is
        rejected.
        """
        try:
            root = folder.resolve()
            path = root / self.library
            inside = root in path.parents and path.resolve() == path
            right = inside and path.is_file() and path.stat().st_size == self.library_bytes
        except (OSError, ValueError, RuntimeError):  # RuntimeError: circular links
            return None
        return folder / self.library if right else None

    def is_library_sound(self, folder: Path) -> bool:
        """Return whether the library exists and is unchanged, byte for byte."""
        library = self.library_in(folder)
        try:
            return library is not None and sha256_of(library) == self.library_sha256
        except OSError:
            return False
