"""Writes recorded workloads to a dataset that other processes may write to as well.

A workload's uuid is derived from its content: the definition, the axes and the inputs, with tensors
represented by the digest in their file name. The ranks of a tensor-parallel engine, and a restarted
program, therefore compute the same uuid and do not add the same workload twice. Intentional
repetitions within one process (``keep_all``) are distinguished by an ordinal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import msgspec

from flashinfer_bench.data import layout
from flashinfer_bench.data.blobs import serialize_tensors
from flashinfer_bench.data.json_codec import append_jsonl_file
from flashinfer_bench.data.loader import load_definition
from flashinfer_bench.data.storage import locked, replace_file, storage_error
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import RandomInput, SafetensorsInput, ScalarInput, Workload
from flashinfer_bench.errors import DataError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.data.definition import Definition
    from flashinfer_bench.data.workload import InputSpec
    from flashinfer_bench.tracing.policies import WorkloadEntry

LOCK_TIMEOUT_S = 10.0
"""Seconds to wait for other tracers of the same definition; a dead process holds no lock."""

NAMESPACE = uuid.UUID("5b1c1f0e-6d0f-5d5c-9a55-0c5bb3ee3b3f")
"""Namespace (RFC 9562, section 5.5) of the uuids of recorded workloads. Never change it."""

_MOST_COUNTED = 1 << 17
"""Number of distinct contents whose occurrences a process counts (about 15 MB).

Beyond it counting restarts; a repetition then counts as known and is not written again.
"""


class Added(NamedTuple):
    """The outcome of writing entries.

    Parameters
    ----------
    written : int
        Number of new workloads.
    known : int
        Number of entries that the dataset already has.
    lost : int
        Number of entries that could not be stored.
    problem : Exception, optional
        Error of the first lost entry.
    again : tuple of WorkloadEntry
        Lost entries that can be retried, because a disk was full or a lock was held.
    """

    written: int = 0
    known: int = 0
    lost: int = 0
    problem: Optional[Exception] = None
    again: tuple[WorkloadEntry, ...] = ()

    def counts(self) -> dict[str, int]:
        """Return the number of entries per outcome."""
        return {"written": self.written, "known": self.known, "lost": self.lost}


def tracing_lock(path: Path) -> Path:
    """Return the lock file that tracers hold while they look up and add a workload.

    This is not the lock of the workload file, which each append takes itself.
    """
    return path.with_name(f"{path.name}.tracing")


def content_key(definition: str, axes: Mapping[str, int], inputs: Mapping[str, InputSpec]) -> str:
    """Return a text that two workloads share if and only if they have the same content.

    Parameters
    ----------
    definition : str
        Name of the definition.
    axes : mapping of str to int
        Value of each variable axis; their order does not matter.
    inputs : mapping of str to InputSpec
        Source of each input; a tensor is represented by a file name that identifies its content.
    """
    specs: dict[str, Any] = {name: spec.model_dump(mode="json") for name, spec in inputs.items()}
    return json.dumps([definition, dict(axes), specs], sort_keys=True, separators=(",", ":"))


def workload_uuid(key: str, ordinal: int) -> str:
    """Return the uuid of the workload with this `content_key`.

    Parameters
    ----------
    key : str
        From `content_key`.
    ordinal : int
        How many times this process has already recorded the same content.
    """
    return str(uuid.uuid5(NAMESPACE, f"{key}#{ordinal}"))


class Store:
    """Appends recorded workloads to a dataset, each once. Used by one thread at a time.

    Parameters
    ----------
    root : Path
        Folder of the dataset. It must exist: the store never creates or recreates it.
    definitions : mapping of str to Definition
        By name.
    """

    def __init__(self, root: Path, definitions: Mapping[str, Definition]) -> None:
        self.root = root
        self.definitions = definitions
        self._counts: Counter[str] = Counter()

    def add(self, entries: Sequence[WorkloadEntry]) -> Added:
        """Write entries durably; a failing entry does not affect the others."""
        groups: dict[str, list[WorkloadEntry]] = {}
        for entry in entries:
            groups.setdefault(entry.def_name, []).append(entry)
        places = layout.files(self.root / layout.DEFINITIONS, ".json", on_error=lambda _: None)
        files = {path.stem: path for path in places}
        written = known = 0
        failed: list[tuple[WorkloadEntry, Exception]] = []
        for name, group in groups.items():
            drafts: list[_Draft] = []
            left = list(group)
            try:
                definition = self._definition(name, files.get(layout.safe_segment(name)))
                path = layout.workloads_file(self.root, definition.op_type, name)
                self._make_folder(path.parent)
                for entry in group:
                    try:
                        drafts.append(self._draft(definition, entry))
                    except Exception as error:  # noqa: BLE001 - tensors of the traced program
                        left.remove(entry)
                        failed.append((entry, error))
                new = self._append(path, name, drafts)
                written += new
                known += len(drafts) - new
            except Exception as error:  # noqa: BLE001 - a full disk, a lock that is held, …
                failed += [(entry, error) for entry in left]
        again = [entry for entry, error in failed if isinstance(error, (OSError, StorageError))]
        problem = failed[0][1] if failed else None
        return Added(written, known, len(failed), problem, tuple(again))

    def _definition(self, name: str, path: Optional[Path]) -> Definition:
        """Return a definition; raise if its interface in its file has changed.

        A definition whose file is missing or unreadable is used as it is.
        """
        definition = self.definitions.get(name)
        if definition is None:
            raise DataError(f"there is no definition {name!r} in the dataset {self.root}")
        current = definition
        with contextlib.suppress(DataError, OSError):
            current = definition if path is None else load_definition(path, self.root)
        if current.name == name and _shape(current) != _shape(definition):
            raise DataError(
                f"definition {name!r} has changed in {self.root} since recording began: "
                "the recorded calls no longer fit it",
                hint="start tracing again",
            )
        return definition

    def _make_folder(self, folder: Path) -> None:
        """Create a folder in the dataset, but never the dataset: its deletion is intentional."""
        if not self.root.is_dir():
            hint = "recreate the folder, or stop tracing"
            raise StorageError(f"{self.root}: the dataset does not exist (any more)", hint=hint)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(folder, error) from error

    def _draft(self, definition: Definition, entry: WorkloadEntry) -> _Draft:
        """Make a workload from an entry, and write its tensors.

        No lock is needed: equal tensors of another rank have the same file name and content.
        """
        values = entry.values()
        tensors = {
            name: values[name]
            for name, spec in definition.inputs.items()
            if spec.shape is not None and name in values
        }
        path, data, reference = None, b"", ""
        if tensors:
            data = serialize_tensors(tensors)  # type: ignore[arg-type]
            # 128 bits, so that collisions in a dataset are negligible.
            digest = hashlib.blake2b(data, digest_size=16).hexdigest()
            path = layout.blob_file(self.root, definition.op_type, definition.name, digest)
            reference = f"./{path.relative_to(self.root).as_posix()}"
            self._make_folder(path.parent)
        inputs: dict[str, InputSpec] = {}
        for name, spec in definition.inputs.items():
            if name in tensors:
                inputs[name] = SafetensorsInput(path=reference, tensor_key=name)
            elif spec.shape is not None:
                inputs[name] = RandomInput()
            else:
                inputs[name] = ScalarInput(value=values[name])
        axes = {name: entry.axes[name] for name in definition.var_axes}
        draft = _Draft(content_key(definition.name, axes, inputs), axes, inputs, path, data)
        draft.write_tensors()
        return draft

    def _append(self, path: Path, name: str, drafts: Sequence[_Draft]) -> int:
        """Append the workloads that the file does not have yet; return their number."""
        if not drafts:
            return 0
        with locked(tracing_lock(path), LOCK_TIMEOUT_S):
            known = _uuids_in(path)
            seen: Counter[str] = Counter()
            new: dict[str, Trace] = {}
            for one in drafts:
                first = workload_uuid(one.key, 0)
                ordinal = self._counts[first] + seen[first]
                seen[first] += 1
                found = workload_uuid(one.key, ordinal)
                if found in known:
                    continue
                one.write_tensors()  # a clean-up may have removed them as unused
                workload = Workload(axes=one.axes, inputs=one.inputs, uuid=found)
                new[found] = Trace(definition=name, workload=workload)
            append_jsonl_file(list(new.values()), path)
        # Only now, so that failed writes are not counted.
        if len(self._counts) + len(seen) > _MOST_COUNTED:
            self._counts.clear()
        self._counts.update(seen)
        return len(new)


def _shape(definition: Definition) -> Any:
    inputs = [(name, spec.shape, spec.dtype) for name, spec in definition.inputs.items()]
    return definition.op_type, definition.axes, inputs, list(definition.constraints)


class _Draft(NamedTuple):
    """A workload without uuid; its tensor file is named after a digest of its content."""

    key: str
    axes: dict[str, int]
    inputs: dict[str, InputSpec]
    path: Optional[Path]
    data: bytes

    def write_tensors(self) -> None:
        """Ensure that the tensor file exists; a file with the same content is reused."""
        if self.path is None:
            return
        try:
            there = self.path.stat().st_size == len(self.data)  # its name identifies the content
        except OSError:
            there = False
        if not there:
            replace_file(self.path, self.data)
            return
        # Refresh the age of a leftover file, so that no clean-up removes it.
        with contextlib.suppress(OSError):
            os.utime(self.path)


class _Identity(msgspec.Struct, gc=False):
    uuid: str


class _Line(msgspec.Struct, gc=False):
    workload: _Identity


_DECODER = msgspec.json.Decoder(_Line)


def _uuids_in(path: Path) -> set[str]:
    """Return the uuids of the workloads in a file; other lines are ignored."""
    uuids: set[str] = set()
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            with contextlib.suppress(msgspec.MsgspecError):
                uuids.add(_DECODER.decode(line).workload.uuid)
    return uuids
