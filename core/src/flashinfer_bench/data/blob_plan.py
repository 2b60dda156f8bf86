"""Which tensor files go along with records, and what they are called where they go."""

from __future__ import annotations

import filecmp
import hashlib
import posixpath
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.data import layout
from flashinfer_bench.data.blobs import is_lfs_pointer, resolve_blob
from flashinfer_bench.data.hub import present_blob
from flashinfer_bench.data.loader import paused_gc
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import SafetensorsInput
from flashinfer_bench.errors import BlobError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.data.trace import Trace
    from flashinfer_bench.data.workload import Workload

_LFS_DIGEST = re.compile(rb"^oid sha256:([0-9a-f]{64})$", re.MULTILINE)


class BlobRoot(NamedTuple):
    """A folder that paths of tensor files may be relative to.

    Attributes
    ----------
    base : Path
        The folder.
    within : Path
        What the file must lie in; old datasets have paths relative to a folder above them.
    """

    base: Path
    within: Path


class BlobPlan:
    """Tensor files of several datasets under names that fit together.

    A file below ``blob`` keeps its name; another gets its place of today. If two different files
    want one name, the second gets a digest of its content behind it. A workload of a file that is
    nowhere keeps its path, without a leading ``./``.

    Parameters
    ----------
    target : Path, optional
        Folder that has files already; they keep their names.

    Attributes
    ----------
    files : dict of str to Path
        Where each new file comes from, by its path in the target.
    missing : dict of str to None
        Paths that no file was found for, in the order met.
    """

    def __init__(self, target: Optional[Path] = None) -> None:
        self.files: dict[str, Path] = {}
        self.missing: dict[str, None] = {}
        self._target = target
        self._claimed: dict[Path, str] = {}

    def pointers(self) -> set[str]:
        """Return those of `files` that are mere Git LFS pointers."""
        return {name for name, source in self.files.items() if is_lfs_pointer(source)}

    def add(
        self,
        trace_set: TraceSet,
        roots: Sequence[BlobRoot],
        own_roots: Optional[Mapping[str, Sequence[BlobRoot]]] = None,
    ) -> TraceSet:
        """Take in the files of a dataset.

        Parameters
        ----------
        trace_set : TraceSet
            The dataset; it is not modified.
        roots : sequence of BlobRoot
            Where its files are looked for, in this order.
        own_roots : mapping of str to sequence of BlobRoot, optional
            Where those of single definitions are looked for instead.

        Returns
        -------
        TraceSet
            The same records, with paths that hold in the target; without a folder.

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
                known[id(trace.workload)] = self._rebase(trace_set, trace, places)
            workload = known[id(trace.workload)]
            same = workload is trace.workload
            return trace if same else trace.model_copy(update={"workload": workload})

        def rebase_all(groups: dict[str, list[Trace]]) -> dict[str, list[Trace]]:
            return {name: [rebase(trace) for trace in group] for name, group in groups.items()}

        with paused_gc():
            return TraceSet(
                definitions=trace_set.definitions,
                solutions=trace_set.solutions,
                workloads=rebase_all(trace_set.workloads),
                traces=rebase_all(trace_set.traces),
            )

    def _rebase(self, trace_set: TraceSet, trace: Trace, roots: Sequence[BlobRoot]) -> Workload:
        inputs = dict(trace.workload.inputs)
        changed = False
        for name, spec in inputs.items():
            if isinstance(spec, SafetensorsInput):
                path = self._place(trace_set, trace.definition, spec.path, roots)
                changed |= path != spec.path
                inputs[name] = spec.model_copy(update={"path": path})
        return trace.workload.model_copy(update={"inputs": inputs}) if changed else trace.workload

    def _place(
        self, trace_set: TraceSet, definition: str, path: str, roots: Sequence[BlobRoot]
    ) -> str:
        source = find_blob(path, roots)
        if source is None:
            self.missing.setdefault(path)
            return posixpath.normpath(path)
        wanted = _wanted_path(path, trace_set, definition)
        try:
            return self._claim(wanted, source)
        except OSError as error:
            raise BlobError(f"cannot be read: {error.strerror or error}", path=source) from error

    def _claim(self, wanted: str, source: Path) -> str:
        """Return the name that a file gets: `wanted`, unless another file has it."""
        if source in self._claimed:
            return self._claimed[source]
        holder = self._holder(wanted)
        if holder is None:
            self.files[wanted] = source
            name = wanted
        elif _same_content(holder, source):
            if is_lfs_pointer(holder) and not is_lfs_pointer(source):
                self.files[wanted] = source  # the file itself in place of its stand-in
            name = wanted
        else:
            path = PurePosixPath(wanted)
            name = self._claim(
                f"{path.with_suffix('')}_{_digest(source)[:12]}{path.suffix}", source
            )
        self._claimed[source] = name
        return name

    def _holder(self, name: str) -> Optional[Path]:
        if name in self.files:
            return self.files[name]
        there = resolve_blob(self._target, name) if self._target is not None else None
        return there if there is not None and there.is_file() else None


def find_blob(path: str, roots: Sequence[BlobRoot]) -> Optional[Path]:
    """Return the file that a workload names, or None if there is none.

    Parameters
    ----------
    path : str
        As in the workload.
    roots : sequence of BlobRoot
        Where to look, in this order.

    Raises
    ------
    UnsafePathError
        If it is found nowhere, and from the first of `roots` it is absolute or leads outside.
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
        except BlobError:  # the hub does not have it, or cannot be reached
            return resolve_blob(root.base, path)
    inner = root.base.resolve() / path
    if not path or "\0" in path or not inner.resolve().is_relative_to(root.within.resolve()):
        raise UnsafePathError(f"blob path {path!r} leads out of the dataset {root.within}")
    return inner.resolve()


def tidy_paths(trace_set: TraceSet) -> TraceSet:
    """Return a dataset with paths that `BlobPlan.add` would write, so that they can be compared."""
    return BlobPlan().add(trace_set, ())


def _wanted_path(path: str, trace_set: TraceSet, definition: str) -> str:
    parts = PurePosixPath(posixpath.normpath(path)).parts
    if parts[0] == layout.BLOB and len(parts) > 1:
        return "/".join(layout.safe_segment(part) for part in parts)
    folder = (layout.BLOB, layout.WORKLOADS, op_type_of(trace_set, definition), definition)
    return "/".join(layout.safe_segment(part) for part in (*folder, parts[-1]))


def op_type_of(trace_set: TraceSet, definition: str) -> str:
    """Return the type of a definition, ``unknown`` if the dataset does not have it."""
    found = trace_set.definitions.get(definition)
    return found.op_type if found is not None else "unknown"


def _same_content(first: Path, second: Path) -> bool:
    if first == second:
        return True
    if is_lfs_pointer(first) or is_lfs_pointer(second):
        return _digest(first) == _digest(second)
    return filecmp.cmp(first, second, shallow=False)


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file; of the file that it stands for if it is a Git LFS pointer."""
    if is_lfs_pointer(path):
        found = _LFS_DIGEST.search(path.read_bytes())
        if found is not None:
            return found[1].decode()
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()
