"""Unpacking of untrusted archives.

Only regular files are accepted. Nothing is written outside the target or twice, and never more than
the limits allow: the unpacked bytes are counted, not those that headers claim.
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
    """Limits for the content of an archive.

    Parameters
    ----------
    files : int
        Number of entries of any kind.
    total_bytes : int
        Total unpacked size, with the headers of the archive.
    json_bytes : int
        Size of one ``.json`` file, because such files are read at once.
    name_bytes : int
        Length of a name.
    depth : int
        Depth of nested folders.
    """

    files: int = 200_000
    total_bytes: int = 64 << 30
    json_bytes: int = 256 << 20
    name_bytes: int = 1024
    depth: int = 32


class _Metered:
    """A stream that is read forwards in blocks, up to a limit."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _BLOCK:  # a huge header would exhaust the memory
            raise DataError(f"a header of {size} bytes; at most {_BLOCK} are allowed")
        data = self._stream.read(size)
        self._position += len(data)
        if self._position > self._limit:
            raise DataError(
                f"unpacks to more than {self._limit:,} bytes",
                hint="allow more with --max-gib if you trust the archive",
            )
        return data

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        if whence or position < self._position:
            raise DataError("the entries are out of order")
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
        Limits for its content.

    Returns
    -------
    int
        Number of files, including the manifest.

    Raises
    ------
    UnsafePathError
        If an entry is outside the folder.
    DataError
        If it is not an archive, is damaged or truncated, contains links, devices or duplicate
        names, or exceeds `limits`.
    StorageError
        If writing fails.
    """
    try:
        limits = limits or Limits()
        with archive.open("rb") as file, _decompressed(file) as stream:
            return _unpack(_Metered(stream, limits.total_bytes), target, limits)
    except (StorageError, PermissionError):
        raise
    except DataError as error:
        error.path = archive
        raise
    except _BROKEN as error:
        deep = isinstance(error, RecursionError)
        said = "the headers are nested too deeply" if deep else str(error) or type(error).__name__
        raise DataError(f"invalid archive: {said}", path=archive) from error


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    start = file.read(_TAR_MAGIC_AT + 5)
    file.seek(0)
    if start.startswith(_GZIP_MAGIC):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file, mode="rb"))
    if start[_TAR_MAGIC_AT:] == b"ustar":
        return file
    raise DataError("neither a .tar.gz nor a .tar", hint="'fib export' writes such archives")


def _unpack(stream: _Metered, target: Path, limits: Limits) -> int:
    files = 0
    expected = None
    # With an explicit mode, so that tarfile does not try other compressions.
    with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:") as tar:
        count = 0
        while (member := tar.next()) is not None:
            count += 1
            if count > limits.files:
                raise DataError(f"has more than {limits.files:,} entries")
            tar.members = []  # type: ignore[attr-defined]  # otherwise it keeps them all
            path = _safe_path(member.name, limits)
            if member.isdir() or not path.parts:
                continue
            if not member.isreg() or member.issparse():
                kind = "a link" if member.issym() or member.islnk() else "not a regular file"
                raise UnsafePathError(f"'{member.name}' is {kind}; only files are allowed")
            if path.suffix == ".json" and member.size > limits.json_bytes:
                raise DataError(f"'{path}' has {member.size:,} bytes, too many for a JSON file")
            _write(stream, target, path, member.size)
            files += 1
            if str(path) == MANIFEST and files == 1:
                expected = _files_in_manifest(target / path)
    # tarfile treats an unreadable header as the end of the archive, so check that nothing
    # follows. The checksum of the compression comes last.
    while rest := stream.read(_BLOCK):
        if rest.strip(b"\0"):
            raise DataError("has a damaged header, or data after its end")
    if expected is not None and files != expected + 1:
        raise DataError(f"is incomplete: {files - 1} of {expected} files")
    return files


def _safe_path(name: str, limits: Limits) -> PurePosixPath:
    path = PurePosixPath(name)
    unsafe = (
        path.is_absolute()
        or ".." in path.parts
        or "\\" in name
        or PureWindowsPath(name).anchor
        or any(ord(letter) < 32 or 0xD800 <= ord(letter) < 0xE000 for letter in name)
    )
    if unsafe:
        raise UnsafePathError(f"entry {name!r} has an invalid name")
    size = len(name.encode())
    if size > limits.name_bytes or len(path.parts) > limits.depth:
        raise UnsafePathError(f"the name of entry {name[:60]!r}… is too long: {size} bytes")
    return path


def _write(stream: _Metered, folder: Path, path: PurePosixPath, size: int) -> None:
    target = folder / path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("xb", buffering=0)  # otherwise closing it fails as well
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise DataError(f"two entries have the name '{path}'") from error
    except OSError as error:
        raise storage_error(target, error) from error
    with file:
        while size > 0:
            data = stream.read(min(size, _BLOCK))
            if not data:
                raise DataError(f"is truncated in '{path}'")
            size -= len(data)
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError as error:
                raise storage_error(target, error) from error


def _files_in_manifest(path: Path) -> Optional[int]:
    """Return how many files follow the manifest, None if it is not a manifest.

    Raises
    ------
    DataError
        If its version is not supported.
    """
    manifest: Any = json.loads(path.read_bytes())
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return None
    version, files = manifest.get("version"), manifest.get("files")
    if version != FORMAT_VERSION:
        raise DataError(
            f"has version {version!r} of the archive format; supported: {FORMAT_VERSION}",
            hint="update flashinfer-bench",
        )
    if not isinstance(files, int):
        raise DataError("the manifest lacks the number of files", field="files")
    return files
