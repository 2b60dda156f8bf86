"""Unpacking an archive that a stranger may have made.

Only regular files are taken. Nothing is written outside the target, nothing twice, and never more
than the limits say, whatever the headers claim: what is counted is what comes out.
"""

from __future__ import annotations

import gzip
import json
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, Optional, cast

from fib_datasets.transfer.exporting import FORMAT, FORMAT_VERSION, MANIFEST
from flashinfer_bench.data.storage import storage_error
from flashinfer_bench.errors import DataError, StorageError, UnsafePathError

_BLOCK = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_TAR_MAGIC_AT = 257
_BROKEN = (
    *(tarfile.TarError, zlib.error, EOFError, OSError),
    *(ValueError, LookupError, OverflowError, RecursionError),
)


@dataclass(frozen=True)
class Limits:
    """How much an archive may hold.

    Parameters
    ----------
    files : int
        Entries, of whatever kind.
    total_bytes : int
        All files together, unpacked, with the archive's own headers.
    json_bytes : int
        One ``.json`` file; such a file is read at once.
    name_bytes : int
        One name.
    depth : int
        Folders inside one another.
    """

    files: int = 200_000
    total_bytes: int = 64 << 30
    json_bytes: int = 256 << 20
    name_bytes: int = 1024
    depth: int = 32


class _Metered:
    """A stream that is read forwards, in pieces, and only so far."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _BLOCK:  # a header that claims to be huge would fill the memory
            raise DataError(f"a header of {size} bytes; at most {_BLOCK} are allowed")
        data = self._stream.read(size)
        self._position += len(data)
        if self._position > self._limit:
            raise DataError(
                f"unpacks to more than {self._limit:,} bytes",
                hint="allow more with --max-gib, if you trust whoever made it",
            )
        return data

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        if whence or position < self._position:
            raise DataError("its entries are out of order")
        while self._position < position:
            if not self.read(min(_BLOCK, position - self._position)):
                break
        return self._position


def unpack_archive(archive: Path, target: Path, limits: Optional[Limits] = None) -> int:
    """Unpack a tar archive, compressed with gzip or not.

    Parameters
    ----------
    archive : Path
        The file.
    target : Path
        An empty folder.
    limits : Limits, optional
        How much it may hold.

    Returns
    -------
    int
        Number of files, the manifest among them.

    Raises
    ------
    UnsafePathError
        If an entry would not stay in the folder.
    DataError
        If it is not an archive, is broken or cut off, holds links or devices, two entries of one
        name, or more than `limits` allow.
    StorageError
        If writing fails.
    """
    try:
        with archive.open("rb") as file, _decompressed(file) as stream:
            return _Unpacking(stream, target, limits or Limits()).run()
    except (StorageError, PermissionError):
        raise
    except DataError as error:
        error.path = archive
        raise
    except _BROKEN as error:
        deep = isinstance(error, RecursionError)
        said = "its headers are nested too deeply" if deep else str(error) or type(error).__name__
        raise DataError(f"not a sound archive: {said}", path=archive) from error


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    start = file.read(_TAR_MAGIC_AT + 5)
    file.seek(0)
    if start.startswith(_GZIP_MAGIC):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file, mode="rb"))
    if start[_TAR_MAGIC_AT:] == b"ustar":
        return file
    raise DataError("neither a .tar.gz nor a .tar", hint="'fib export' writes what can be imported")


class _Unpacking:
    def __init__(self, stream: IO[bytes], target: Path, limits: Limits) -> None:
        self._stream = _Metered(stream, limits.total_bytes)
        self._target = target
        self._limits = limits
        self._files = 0
        self._expected: Optional[int] = None

    def run(self) -> int:
        # An explicit mode: tarfile must not try compressions of its own.
        with tarfile.open(fileobj=cast("IO[bytes]", self._stream), mode="r:") as tar:
            count = 0
            while (member := tar.next()) is not None:
                count += 1
                if count > self._limits.files:
                    raise DataError(f"has more than {self._limits.files:,} entries")
                tar.members = []  # type: ignore[attr-defined]  # it would keep them all
                self._take(member)
        # tarfile takes a header that it cannot read for the end; then something follows. And the
        # check sum of the compression is behind all of it.
        while rest := self._stream.read(_BLOCK):
            if rest.strip(b"\0"):
                raise DataError("has a broken header, or something behind its end")
        if self._expected is not None and self._files != self._expected + 1:
            raise DataError(f"is incomplete: {self._files - 1} of {self._expected} files")
        return self._files

    def _take(self, member: tarfile.TarInfo) -> None:
        path = self._safe_path(member.name)
        if member.isdir() or not path.parts:
            return
        if not member.isreg() or member.issparse():
            kind = "a link" if member.issym() or member.islnk() else "no regular file"
            raise UnsafePathError(f"'{member.name}' is {kind}; only files are allowed")
        if path.suffix == ".json" and member.size > self._limits.json_bytes:
            raise DataError(f"'{path}' has {member.size:,} bytes, too many for a JSON file")
        self._write(path, member.size)
        self._files += 1
        if str(path) == MANIFEST and self._files == 1:
            self._expected = _files_in_manifest(self._target / path)

    def _safe_path(self, name: str) -> PurePosixPath:
        path = PurePosixPath(name)
        unsafe = (
            path.is_absolute()
            or ".." in path.parts
            or "\\" in name
            or PureWindowsPath(name).anchor
            or any(ord(letter) < 32 or 0xD800 <= ord(letter) < 0xE000 for letter in name)
        )
        if unsafe:
            raise UnsafePathError(f"entry {name!r} has a name that is not allowed")
        size = len(name.encode())
        if size > self._limits.name_bytes or len(path.parts) > self._limits.depth:
            raise UnsafePathError(f"entry {name[:60]!r}… has too long a name: {size} bytes")
        return path

    def _write(self, path: PurePosixPath, size: int) -> None:
        target = self._target / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            file = target.open("xb", buffering=0)  # else closing it fails, too
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise DataError(f"two entries claim the name '{path}'") from error
        except OSError as error:
            raise storage_error(target, error) from error
        with file:
            while size > 0:
                data = self._stream.read(min(size, _BLOCK))
                if not data:
                    raise DataError(f"is cut off within '{path}'")
                size -= len(data)
                try:
                    while data:
                        data = data[file.write(data) :]
                except OSError as error:
                    raise storage_error(target, error) from error


def _files_in_manifest(path: Path) -> Optional[int]:
    """Return how many files follow the manifest, None if it is of something else.

    Raises
    ------
    DataError
        If it is of a later release.
    """
    manifest: Any = json.loads(path.read_bytes())
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return None
    version, files = manifest.get("version"), manifest.get("files")
    if version != FORMAT_VERSION:
        raise DataError(
            f"has version {version!r} of the archive format; {FORMAT_VERSION} is known here",
            hint="update flashinfer-bench",
        )
    if not isinstance(files, int):
        raise DataError("its manifest does not say how many files there are", field="files")
    return files
