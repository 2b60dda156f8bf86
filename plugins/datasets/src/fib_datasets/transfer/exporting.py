"""A dataset, or a part of it, as one archive file: the same content gives the same bytes."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import secrets
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Optional, cast

from fib_datasets.transfer.subset import Subset
from flashinfer_bench.data.blob_plan import BlobPlan, BlobRoot
from flashinfer_bench.data.new_folder import Item, counts_of, items_of, write_error
from flashinfer_bench.data.storage import sync_folder
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flashinfer_bench.data.trace_set import TraceSet

MANIFEST = "fib-archive.json"
"""First file of an archive: what it is, and how many files follow."""

FORMAT = "flashinfer-trace-archive"
FORMAT_VERSION = 1

_COMPRESSED = (".tar.gz", ".tgz")
_PLAIN = (".tar",)


@dataclass(frozen=True)
class Exported:
    """What an archive holds.

    Parameters
    ----------
    archive : Path
        The file.
    counts : dict of str to int
        Number of definitions, solutions, workloads, traces and blobs.
    missing_blobs : tuple of str
        Tensor files that workloads name but that are not there.
    pointers : tuple of str
        Tensor files that are Git LFS pointers; the archive has the pointers.
    """

    archive: Path
    counts: dict[str, int]
    missing_blobs: tuple[str, ...]
    pointers: tuple[str, ...]


def export_archive(
    trace_set: TraceSet, archive: str | Path, subset: Optional[Subset] = None
) -> Exported:
    """Write a dataset, with the tensor files that it names, into one archive.

    The same content gives the same bytes.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    archive : str or Path
        The file, ``.tar.gz``, ``.tgz`` or ``.tar``; one that exists is replaced.
    subset : Subset, optional
        What of it; everything by default.

    Raises
    ------
    ConfigError
        If the name of the archive has another ending.
    UnknownNameError, SelectionError
        If there is no such subset.
    UnsafePathError
        If a workload names a file outside the dataset.
    StorageError
        If writing fails; an archive that was there is unchanged.
    """
    out = Path(archive)
    plan = BlobPlan()
    part = (subset or Subset()).of(trace_set)
    roots = [BlobRoot(trace_set.root, trace_set.root)] if trace_set.root is not None else []
    placed = plan.add(part, roots)
    counts = {**counts_of(placed), "blobs": len(plan.files)}
    facts = {"contents": counts, "missing_blobs": sorted(plan.missing)}
    _write_archive(out, items_of(placed, plan.files), facts)
    return Exported(out, counts, tuple(sorted(plan.missing)), tuple(sorted(plan.pointers())))


def _write_archive(out: Path, items: Sequence[Item], facts: Mapping[str, Any]) -> None:
    """Write files into a tar archive, in order; `facts` is what else the manifest says.

    Names, order, owners, modes and times are fixed, so the bytes depend on the content alone (and,
    where they are compressed, on the release of zlib).
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
    hidden = out.with_name(f".{out.name[:100]}.{secrets.token_hex(4)}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with hidden.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(out)
        sync_folder(out.parent)
    except OSError as error:
        raise write_error(out, error) from error
    finally:
        with contextlib.suppress(OSError):
            hidden.unlink()


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
