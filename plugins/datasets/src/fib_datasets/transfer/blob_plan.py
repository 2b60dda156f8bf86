"""The tensor files that belong to records, and their names in the target."""

from __future__ import annotations

import filecmp
import posixpath
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, Optional

from fib_datasets.transfer.files import op_type_of
from flashinfer_bench.data import SafetensorsInput, TraceSet, is_lfs_pointer, layout, resolve_blob
from flashinfer_bench.data.blobs import present_blob
from flashinfer_bench.data.loader import paused_gc
from flashinfer_bench.data.storage import sha256_of
from flashinfer_bench.errors import BlobError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.data import Trace, Workload

_LFS_DIGEST = re.compile(rb"^oid sha256:([0-9a-f]{64})$", re.MULTILINE)


class BlobRoot(NamedTuple):
    """A folder that paths of tensor files may be relative to.

    Attributes
    ----------
    base : Path
        The folder.
    within : Path
        The folder that must contain the file; in old datasets, paths are relative to a parent.
    """

    base: Path
    within: Path


class BlobPlan:
    """Tensor files of several datasets, with unique names.

    Files below ``blob`` keep their names; others are named by the current layout. If two different
    files have the same name, a digest of the content is appended to the second. Paths of missing
    files are kept, without a leading ``./``.

    Parameters
    ----------
    target : Path, optional
        Folder with existing files, which keep their names.

    Attributes
    ----------
    files : dict of str to Path
        Source of each new file, by its path in the target.
    missing : dict of str to None
        Paths of missing files, in order of occurrence.
    """

    def __init__(self, target: Optional[Path] = None) -> None:
        self.files: dict[str, Path] = {}
        self.missing: dict[str, None] = {}
        self._target = target
        self._claimed: dict[Path, str] = {}

    def add(
        self,
        trace_set: TraceSet,
        roots: Sequence[BlobRoot],
        own_roots: Optional[Mapping[str, Sequence[BlobRoot]]] = None,
    ) -> TraceSet:
        """Add the files of a dataset.

        Parameters
        ----------
        trace_set : TraceSet
            The dataset; it is not modified.
        roots : sequence of BlobRoot
            Folders to search for its files, in this order.
        own_roots : mapping of str to sequence of BlobRoot, optional
            Folders to search instead for files of single definitions.

        Returns
        -------
        TraceSet
            The same records with paths in the target, without a folder.

        Raises
        ------
        UnsafePathError
            If a workload names a file outside the dataset.
        BlobError
            If a file cannot be read.
        """
        known: dict[int, Workload] = {}

        def rebase(trace: Trace) -> Trace:
            if id(trace.workload) not in known:
                places = (own_roots or {}).get(trace.definition, roots)
                op_type = op_type_of(trace_set.definitions, trace.definition)
                known[id(trace.workload)] = self._rebase(trace, op_type, places)
            workload = known[id(trace.workload)]
            same = workload is trace.workload
            return trace if same else trace.model_copy(update={"workload": workload})

        def rebase_all(groups: dict[str, list[Trace]]) -> dict[str, list[Trace]]:
            return {name: list(map(rebase, group)) for name, group in groups.items()}

        with paused_gc():
            return TraceSet(
                definitions=trace_set.definitions,
                solutions=trace_set.solutions,
                workloads=rebase_all(trace_set.workloads),
                traces=rebase_all(trace_set.traces),
            )

    def _rebase(self, trace: Trace, op_type: str, roots: Sequence[BlobRoot]) -> Workload:
        inputs = dict(trace.workload.inputs)
        for name, spec in inputs.items():
            if isinstance(spec, SafetensorsInput):
                path = self._place(spec.path, (op_type, trace.definition), roots)
                if path != spec.path:
                    inputs[name] = spec.model_copy(update={"path": path})
        same = inputs == trace.workload.inputs
        return trace.workload if same else trace.workload.model_copy(update={"inputs": inputs})

    def _place(self, path: str, folder: tuple[str, str], roots: Sequence[BlobRoot]) -> str:
        source = find_blob(path, roots)
        if source is None:
            self.missing.setdefault(path)
            return posixpath.normpath(path)
        parts = PurePosixPath(posixpath.normpath(path)).parts
        if parts[0] != layout.BLOB or len(parts) == 1:
            parts = (layout.BLOB, layout.WORKLOADS, *folder, parts[-1])
        try:
            return self._claim("/".join(map(layout.safe_segment, parts)), source)
        except OSError as error:
            raise BlobError(f"cannot be read: {error.strerror or error}", path=source) from error

    def _claim(self, wanted: str, source: Path) -> str:
        """Return the new name of a file: `wanted`, unless another file has it."""
        if source in self._claimed:
            return self._claimed[source]
        holder = self.files.get(wanted)
        if holder is None and self._target is not None:
            there = resolve_blob(self._target, wanted)
            holder = there if there.is_file() else None
        name = wanted
        if holder is None:
            self.files[wanted] = source
        elif not _same_content(holder, source):
            path = PurePosixPath(wanted)
            digest = _digest(source)[:12]
            name = self._claim(f"{path.with_suffix('')}_{digest}{path.suffix}", source)
        elif is_lfs_pointer(holder) and not is_lfs_pointer(source):
            self.files[wanted] = source  # the file itself replaces its LFS pointer
        self._claimed[source] = name
        return name


def find_blob(path: str, roots: Sequence[BlobRoot]) -> Optional[Path]:
    """Return the tensor file of a workload, or None if it is missing.

    Parameters
    ----------
    path : str
        The path in the workload.
    roots : sequence of BlobRoot
        Folders to search, in this order.

    Raises
    ------
    UnsafePathError
        If it is not found, and is absolute or outside the first of `roots`.
    """
    refusal: Optional[UnsafePathError] = None
    for number, root in enumerate(roots):
        try:
            found = _resolve(root, path)
        except UnsafePathError as error:
            refusal = error if number == 0 else refusal
            continue
        if found.is_file():
            return found
    if refusal is not None:
        raise refusal
    return None


def _resolve(root: BlobRoot, path: str) -> Path:
    if root.base == root.within:
        try:
            return present_blob(root.base, path)
        except BlobError:  # not on the hub, or the hub is unreachable
            return resolve_blob(root.base, path)
    inner = root.base.resolve() / path
    if not path or "\0" in path or not inner.resolve().is_relative_to(root.within.resolve()):
        raise UnsafePathError(f"blob path {path!r} leads out of the dataset {root.within}")
    return inner.resolve()


def _same_content(first: Path, second: Path) -> bool:
    if first == second:
        return True
    if is_lfs_pointer(first) or is_lfs_pointer(second):
        return _digest(first) == _digest(second)
    return filecmp.cmp(first, second, shallow=False)


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file; for a Git LFS pointer, that of the actual file."""
    if is_lfs_pointer(path) and (found := _LFS_DIGEST.search(path.read_bytes())):
        return found[1].decode()
    return sha256_of(path)
