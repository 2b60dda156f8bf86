"""Writing one archive file: the same content gives the same bytes."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from flashinfer_bench.data.storage import sync_folder
from flashinfer_bench.data.transfer.folder import write_error
from flashinfer_bench.data.transfer.items import Item
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MANIFEST = "fib-archive.json"
"""First file of an archive: what it is, and how many files follow."""

FORMAT = "flashinfer-trace-archive"
FORMAT_VERSION = 1

_COMPRESSED = (".tar.gz", ".tgz")
_PLAIN = (".tar",)


def write_archive(out: Path, items: Sequence[Item], facts: Mapping[str, Any]) -> None:
    """Write files into a tar archive, as a whole or not at all.

    Names, order, owners, modes and times are fixed, so the bytes depend on the content alone (and,
    where they are compressed, on the release of zlib).

    Parameters
    ----------
    out : Path
        The archive: ``.tar.gz``, ``.tgz`` or ``.tar``. One that exists is replaced.
    items : sequence of Item
        The files, in the order to write them.
    facts : mapping
        What else the manifest says.

    Raises
    ------
    ConfigError
        If the name of the archive has another ending.
    StorageError
        If writing fails; an archive that was there is unchanged.
    """
    compress = _is_compressed(out)
    manifest = {"format": FORMAT, "version": FORMAT_VERSION, "files": len(items), **facts}
    text = (json.dumps(manifest, indent=2) + "\n").encode()
    with (
        _replacing(out) as file,
        _compressed(file, compress) as stream,
        # POSIX headers: names of any length, and no field that depends on the machine.
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for item in (Item(MANIFEST, lambda: text), *items):
            _add(tar, item)


def _is_compressed(out: Path) -> bool:
    if out.name.endswith(_COMPRESSED + _PLAIN) and not out.name.startswith("."):
        return out.name.endswith(_COMPRESSED)
    allowed = ", ".join(_COMPRESSED + _PLAIN)
    raise ConfigError(
        f"{out}: the name of an archive ends in one of {allowed}",
        hint=f"name it {out.name or 'dataset'}.tar.gz",
    )


@contextlib.contextmanager
def _compressed(file: IO[bytes], compress: bool) -> Iterator[IO[bytes]]:
    if not compress:
        yield file
        return
    # Without a name and a time in its header.
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as stream:
        yield cast("IO[bytes]", stream)


@contextlib.contextmanager
def _replacing(out: Path) -> Iterator[IO[bytes]]:
    """Give a hidden file beside `out` that replaces it if the block ends well."""
    temporary: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{out.name[:100]}.", dir=out.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(descriptor, 0o666 & ~mask)
            yield file
            file.flush()
            os.fsync(descriptor)
        temporary.replace(out)
        temporary = None
        sync_folder(out.parent)
    except OSError as error:
        raise write_error(out, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _add(tar: tarfile.TarFile, item: Item) -> None:
    info = tarfile.TarInfo(item.path)  # regular, of nobody, at the beginning of time
    info.mode = 0o644
    if isinstance(item.content, Path):
        with item.content.open("rb") as file:
            info.size = os.fstat(file.fileno()).st_size
            tar.addfile(info, file)
    else:
        data = item.content()
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
