"""Export of a dataset, or a part of it, as a reproducible archive."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Optional, cast

from fib_datasets.transfer.blob_plan import BlobPlan, BlobRoot
from fib_datasets.transfer.files import Files, counts_of, files_of
from fib_datasets.transfer.subset import Subset
from flashinfer_bench.data import is_lfs_pointer
from flashinfer_bench.data.storage import replacing
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from flashinfer_bench.data import TraceSet

MANIFEST = "fib-archive.json"
"""First file of an archive: its format, and how many files follow."""

FORMAT = "flashinfer-trace-archive"
FORMAT_VERSION = 1

_COMPRESSED = (".tar.gz", ".tgz")
_OTHER = r"(\.tar)?\.(zip|7z|gz|bz2|xz|zst)$"
_PLAIN = (".tar",)


@dataclass(frozen=True)
class Exported:
    """The content of an archive.

    Parameters
    ----------
    archive : Path
        The file.
    counts : dict of str to int
        Number of definitions, solutions, workloads, traces and blobs.
    missing_blobs : tuple of str
        Missing tensor files of workloads.
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
    """Write a dataset with its tensor files to an archive.

    The same content gives the same bytes.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    archive : str or Path
        The file, ``.tar.gz``, ``.tgz`` or ``.tar``; an existing one is replaced.
    subset : Subset, optional
        The part to write; everything by default.

    Raises
    ------
    ConfigError
        If the name of the archive has another suffix.
    UnknownNameError, SelectionError
        If there is no such subset.
    UnsafePathError
        If a workload refers to a file outside the dataset.
    StorageError
        If writing fails; an existing archive is unchanged.
    """
    out = Path(archive)
    plan = BlobPlan()
    part = (subset or Subset()).of(trace_set)
    roots = [BlobRoot(trace_set.root, trace_set.root)] if trace_set.root is not None else []
    placed = plan.add(part, roots)
    counts = {**counts_of(placed), "blobs": len(plan.files)}
    missing = tuple(sorted(plan.missing))
    files = files_of(placed, {}) | dict(sorted(plan.files.items()))  # large files come last
    manifest = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "files": len(files),
        "contents": counts,
        "missing_blobs": missing,
    }
    _write_archive(out, {MANIFEST: (json.dumps(manifest, indent=2) + "\n").encode, **files})
    pointers = (name for name, source in plan.files.items() if is_lfs_pointer(source))
    return Exported(out, counts, missing, tuple(sorted(pointers)))


def _write_archive(out: Path, files: Files) -> None:
    """Write files to a tar archive, in order.

    Names, order, owners, modes and times are fixed, so the bytes depend only on the content (and,
    if compressed, on the version of zlib).
    """
    if not out.name.endswith(_COMPRESSED + _PLAIN) or out.name.startswith("."):
        allowed = ", ".join(_COMPRESSED + _PLAIN)
        raise ConfigError(
            f"{out}: the name of an archive must end in one of {allowed}",
            hint=f"name it {re.sub(_OTHER, '', out.name) or 'dataset'}.tar.gz",
        )
    if not out.absolute().parent.is_dir():
        hint = "create it first, or give another file"
        raise ConfigError(f"{out}: no folder {out.parent}", hint=hint)
    with replacing(out) as file, ExitStack() as stack:
        stream: IO[bytes] = file
        if out.name.endswith(_COMPRESSED):  # without a name and a time in its header
            zipped = gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0)
            stream = cast("IO[bytes]", stack.enter_context(zipped))
        # POSIX headers allow names of any length, and have no fields that depend on the machine.
        tar = stack.enter_context(tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT))
        for name, content in files.items():
            info = tarfile.TarInfo(name)  # a regular file without owner, time 0
            info.mode = 0o644
            source = content.open("rb") if isinstance(content, Path) else io.BytesIO(content())
            with source:
                info.size = source.seek(0, os.SEEK_END)
                source.seek(0)
                tar.addfile(info, source)
