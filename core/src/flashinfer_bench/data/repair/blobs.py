"""The tensor files of a dataset: which are named, which are there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data import layout
from flashinfer_bench.data.blobs import is_lfs_pointer, read_safetensors_header, resolve_blob
from flashinfer_bench.data.repair.issues import Issue, Kind, issue, not_listed
from flashinfer_bench.data.workload import SafetensorsInput
from flashinfer_bench.errors import BlobError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flashinfer_bench.data.trace import Trace

YOUNG_S = 3600.0
"""Seconds during which a file may belong to a process that is still at work."""


def is_young(path: Path) -> bool:
    """Return whether a file was changed within the last hour, or has just gone."""
    try:
        return time.time() - path.lstat().st_mtime < YOUNG_S
    except OSError:  # its owner, who is alive, has taken it away
        return True


class NamedBlobs:
    """Collects the tensor files that records name.

    Parameters
    ----------
    root : Path
        The dataset.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[str, Optional[Path]] = {}
        self._needed: dict[str, tuple[Path, Optional[int]]] = {}
        self._unsafe: dict[str, str] = {}

    def add(self, trace: Trace, path: Path, line: Optional[int]) -> None:
        """Note what one record names; only workloads need it, traces outlive their tensors."""
        for spec in trace.workload.inputs.values():
            if not isinstance(spec, SafetensorsInput):
                continue
            if spec.path not in self._files:
                self._files[spec.path] = self._resolve(spec.path)
            if trace.is_workload_trace():
                self._needed.setdefault(spec.path, (path, line))

    def _resolve(self, name: str) -> Optional[Path]:
        try:
            return resolve_blob(self._root, name)
        except UnsafePathError as error:
            self._unsafe[name] = error.message
            return None

    def issues(self, *, all_known: bool) -> Iterator[Issue]:
        """Yield what is missing or damaged, and what nobody names.

        Parameters
        ----------
        all_known : bool
            Whether every record could be read; else a file may be named by one that could not.
        """
        for name, (path, line) in self._needed.items():
            yield from self._check(name, path, line)
        named = {file for file in self._files.values() if file is not None}
        unlisted: list[Issue] = []
        on_error = not_listed(self._root, unlisted)
        files = layout.files(self._root / layout.BLOB, ".safetensors", on_error=on_error)
        yield from unlisted
        for file in files:
            if file.resolve() not in named:
                yield self._orphan(file, all_known=all_known)

    def _check(self, name: str, path: Path, line: Optional[int]) -> Iterator[Issue]:
        file = self._files[name]
        if file is None:
            yield issue(Kind.UNSAFE_BLOB, path, self._unsafe[name], line=line)
            return
        try:
            if file.exists() and is_lfs_pointer(file):
                return  # not downloaded yet, which is no damage
            read_safetensors_header(file)
        except (BlobError, OSError) as error:
            kind = Kind.DAMAGED_BLOB if file.exists() else Kind.MISSING_BLOB
            reason = error.message if isinstance(error, BlobError) else error.strerror
            hint = "copy the file from where the dataset was made, or take the workload out"
            yield issue(kind, path, f"{name}: {reason}", line=line, hint=hint)

    def _orphan(self, file: Path, *, all_known: bool) -> Issue:
        hint = None
        if is_young(file):
            hint = "it is less than an hour old; its workload may be on its way"
        elif not all_known:
            hint = "a record that cannot be read may name it; mend those first"
        return issue(
            Kind.ORPHAN_BLOB,
            file.relative_to(self._root),
            "no workload and no trace names this file",
            hint=hint,
            by_hand=hint is not None,
        )
