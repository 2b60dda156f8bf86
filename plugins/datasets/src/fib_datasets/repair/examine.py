"""Examination of a dataset for damage, line by line and file by file."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import os
import re
import socket
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

from fib_datasets.checks.records import no_solution
from flashinfer_bench.data import (
    SafetensorsInput,
    Solution,
    is_lfs_pointer,
    layout,
    read_safetensors_header,
    resolve_blob,
)
from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.data.jsonl import is_torn, read_whole
from flashinfer_bench.data.loader import load_definition, paused_gc
from flashinfer_bench.data.storage import SOFT_LOCK_SUFFIX
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.errors import BlobError, DataError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.data import Trace


class Kind(str, Enum):
    """Kinds of damage."""

    UNREADABLE = "unreadable"
    """A file or folder that cannot be read."""

    INVALID_FILE = "invalid_file"
    """An invalid definition or solution."""

    DUPLICATE_NAME = "duplicate_name"
    """A second definition or solution of the same name."""

    TORN_LINE = "torn_line"
    """An unfinished last line, whose writer died."""

    INVALID_LINE = "invalid_line"
    """A line that is not a workload or trace."""

    DUPLICATE_LINE = "duplicate_line"
    """A copy of an earlier line."""

    ORPHAN_TRACE = "orphan_trace"
    """A workload or trace of a definition that is not in the dataset."""

    ORPHAN_SOLUTION = "orphan_solution"
    """A solution of a definition that is not in the dataset."""

    ORPHAN_BLOB = "orphan_blob"
    """A tensor file that no workload refers to."""

    UNKNOWN_SOLUTION = "unknown_solution"
    """A solution of traces that is not in the dataset."""

    WRONG_SOLUTION = "wrong_solution"
    """A solution of a trace that belongs to another definition."""

    MISSING_BLOB = "missing_blob"
    """A missing tensor file of a workload."""

    DAMAGED_BLOB = "damaged_blob"
    """An invalid tensor file."""

    UNSAFE_BLOB = "unsafe_blob"
    """A path of a tensor file that leads out of the dataset."""

    STALE_LOCK = "stale_lock"
    """A soft lock whose owner is gone."""

    TORN_FILE = "torn_file"
    """A file to which an append moved an unfinished line."""

    LEFTOVER = "leftover"
    """A temporary file of a process that died."""


class Remedy(str, Enum):
    """How an issue can be repaired."""

    SAFE = "safe"
    """Moving it to the backup does not change results."""

    ORPHANS = "orphans"
    """Moving it needs a decision, because what it belongs to may come back."""

    BY_HAND = "by_hand"
    """It must be corrected by hand."""


REMEDIES = {
    Kind.TORN_LINE: Remedy.SAFE,
    Kind.INVALID_LINE: Remedy.SAFE,
    Kind.DUPLICATE_LINE: Remedy.SAFE,
    Kind.STALE_LOCK: Remedy.SAFE,
    Kind.TORN_FILE: Remedy.SAFE,
    Kind.LEFTOVER: Remedy.SAFE,
    Kind.ORPHAN_TRACE: Remedy.ORPHANS,
    Kind.ORPHAN_SOLUTION: Remedy.ORPHANS,
    Kind.ORPHAN_BLOB: Remedy.ORPHANS,
}
"""Issues that can be repaired by moving them; all others must be corrected by hand."""

# Found in many intact datasets: traces outlive solutions, and tracers write blobs in advance.
NOTES = frozenset({Kind.UNKNOWN_SOLUTION, Kind.ORPHAN_BLOB})


@dataclass(frozen=True)
class Issue:
    """One damaged thing.

    Parameters
    ----------
    kind : Kind
        The kind of damage.
    path : Path
        The file, relative to the dataset.
    message : str
        What is wrong.
    line : int, optional
        Line in the file, from 1.
    hint : str, optional
        What to do.
    remedy : Remedy
        How it can be repaired.
    """

    kind: Kind
    path: Path
    message: str
    line: Optional[int] = None
    hint: Optional[str] = None
    remedy: Remedy = Remedy.BY_HAND

    @property
    def is_note(self) -> bool:
        """Whether intact datasets may have it."""
        return self.kind in NOTES

    @property
    def where(self) -> str:
        """The place as ``file:line``."""
        return where(self.path, self.line)


def where(path: Path, line: Optional[int]) -> str:
    """Return a place as ``file:line``."""
    return str(path) if line is None else f"{path}:{line}"


class Line(NamedTuple):
    """A line of a file, and what it contains: a trace, a problem, or nothing."""

    number: Optional[int]
    digest: bytes
    trace: Optional[Trace] = None
    problem: Optional[Issue] = None


def digest(raw: bytes) -> bytes:
    """Return a digest of a line without surrounding whitespace."""
    text = raw.removeprefix(codecs.BOM_UTF8).strip()
    return hashlib.blake2b(text, digest_size=16).digest()


def raw_lines(path: Path) -> Iterator[tuple[Optional[int], bytes]]:
    """Yield every line of a file with its number; a JSON document over several lines has none.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    with path.open("rb") as file:
        whole = read_whole(file)
        yield from enumerate(file, 1) if whole is None else ((None, text) for text in whole[1])


class LineReader:
    """Reads the files of one dataset.

    Parameters
    ----------
    root : Path
        The dataset.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._reader = TraceReader()

    def read(self, path: Path) -> Iterator[Line]:
        """Yield what is on the lines of a file; see `raw_lines`."""
        at = path.relative_to(self._root)
        for number, raw in raw_lines(path):
            trace = problem = None
            text = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
            if number is not None and not raw.endswith(b"\n") and is_torn(text):
                message = f"the last line is unfinished: {len(raw)} bytes"
                problem = Issue(Kind.TORN_LINE, at, message, number, remedy=Remedy.SAFE)
            elif text.strip():
                try:
                    trace = self._reader.read(text.strip(), path=path, line=number)
                except DataError as error:
                    problem = _invalid_line(error, at, number)
            yield Line(number, digest(raw), trace, problem)


def _invalid_line(error: DataError, path: Path, number: Optional[int]) -> Issue:
    message = f"{error.field}: {error.message}" if error.field else error.message
    if number is not None:
        return Issue(Kind.INVALID_LINE, path, message, number, remedy=Remedy.SAFE)
    hint = "the file is one JSON document over several lines; correct it by hand"
    return Issue(Kind.INVALID_LINE, path, message, hint=hint)


YOUNG_S = 3600.0
"""Seconds during which a file may still be in use by a process."""


def is_young(path: Path) -> bool:
    """Return whether a file was changed within the last hour, or was just removed."""
    try:
        return time.time() - path.lstat().st_mtime < YOUNG_S
    except OSError:  # removed by its owner, which is alive
        return True


_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}")  # names by `replace_file`


def _leftover(path: Path) -> Optional[tuple[Kind, str]]:
    """Return kind and description of a leftover file; lock files of ``flock`` are not leftovers."""
    name = path.name
    # Not pathlib, which raises for paths that are too long.
    if os.path.islink(path) and name[0] != "." and not os.path.exists(path):  # noqa: PTH110, PTH114
        return Kind.UNREADABLE, "broken link"
    if name.endswith(".torn"):
        return Kind.TORN_FILE, "unfinished lines that were moved here"
    if name.startswith(".") and name.endswith(SOFT_LOCK_SUFFIX):
        stale = stale_lock(path)
        return (Kind.STALE_LOCK, stale) if stale else None
    if _TEMPORARY.fullmatch(name) and not name.endswith(".lock") and not is_young(path):
        return Kind.LEFTOVER, "an unfinished temporary file"
    return None


def stale_lock(path: Path) -> Optional[str]:
    """Return why a soft lock is stale; None if it may still be held."""
    try:
        lines = path.read_bytes()[:1024].decode().split("\n")
        pid, host = int(lines[0]), lines[1]
    except (OSError, ValueError, IndexError):  # being written now, or by another program
        return None if is_young(path) else "a lock without owner, more than an hour old"
    if host != socket.gethostname():
        held = f"a lock held by process {pid} of {host} for more than an hour"
        return None if is_young(path) else f"{held}; appends take milliseconds"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return f"a lock of process {pid}, which no longer exists"
    except (PermissionError, OverflowError):
        pass
    return None


_Place = tuple[Path, Optional[int]]
_UNREAD = frozenset({Kind.UNREADABLE, Kind.TORN_LINE, Kind.INVALID_LINE})


@dataclass(frozen=True)
class Diagnosis:
    """The issues of a dataset.

    Parameters
    ----------
    root : Path
        The dataset.
    issues : tuple of Issue
        The issues, ordered by place.
    counts : dict of str to int
        Number of examined records and files of each kind.
    digests : dict of (Path, int or None) to bytes
        Digest of each line with issues, by file and line.
    """

    root: Path
    issues: tuple[Issue, ...]
    counts: dict[str, int]
    digests: dict[_Place, bytes] = field(default_factory=dict, repr=False)

    @property
    def is_clean(self) -> bool:
        """Whether there are no issues, apart from notes."""
        return all(one.is_note for one in self.issues)


def examine(root: Path) -> Diagnosis:
    """Find damage; nothing is changed, and no lock is taken.

    Parameters
    ----------
    root : Path
        The dataset.

    Raises
    ------
    DatasetNotFoundError
        If there is no such folder.
    SelectionError
        If the folder is not a dataset: it has none of the folders of one.
    """
    layout.require_dataset(root)
    with paused_gc():
        return _Examination(root).run()


class _Examination:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._issues: list[Issue] = []
        self._named: dict[tuple[str, str], Path] = {}  # file of each definition and solution
        self._solutions: dict[str, str] = {}  # definition of each
        self._unknown: dict[str, list[_Place]] = {}  # missing solutions
        self._blobs: dict[str, Union[Path, UnsafePathError]] = {}  # of all records
        self._needed: dict[str, _Place] = {}  # of workloads; traces outlive their tensors
        self._first: dict[bytes, _Place] = {}  # place of each distinct line, by its digest
        self._digests: dict[_Place, bytes] = {}
        self._counts = dict.fromkeys(("definitions", "solutions", "workloads", "traces"), 0)
        self._files: dict[tuple[int, int], Path] = {}

    def run(self) -> Diagnosis:
        for path in self._list(layout.DEFINITIONS, ".json"):
            with self._reading(path):
                self._require_one("definition", load_definition(path, self._root).name, path)
        # With unreadable definitions, it is not certain what is an orphan.
        self._is_sure = not self._issues
        for path in self._list(layout.SOLUTIONS, ".json"):
            with self._reading(path):
                one = decode(Solution, path.read_bytes(), path=path)
                self._require_one("solution", one.name, path)
                self._solutions.setdefault(one.name, one.definition)
                self._require_definition(one.definition, Kind.ORPHAN_SOLUTION, path)
        reader = LineReader(self._root)
        for folder in (layout.WORKLOADS, layout.TRACES):
            for path in self._list(folder, ".jsonl", ".json"):
                with self._reading(path):
                    if self._is_new(path):
                        for line in reader.read(path):
                            self._judge(line, path)
        for name, places in self._unknown.items():
            path, number = places[0]
            self._tell(Kind.UNKNOWN_SOLUTION, path, no_solution(name, len(places)), number)
        self._look_at_blobs()
        for folder in layout.FOLDERS:
            # Report folders that cannot be listed here, and nowhere else.
            top = os.fspath(self._root / folder)
            entries = layout.entries(top, hidden=True, on_error=lambda _: None)
            paths = (one.path for one in entries if not one.is_dir(follow_symlinks=False))
            for path in map(Path, sorted(paths)):
                if left := _leftover(path):
                    self._tell(left[0], path, left[1])
        ordered = sorted(self._issues, key=lambda one: (one.path, one.line or 0, one.kind.value))
        return Diagnosis(self._root, tuple(ordered), self._counts, self._digests)

    def _tell(
        self,
        kind: Kind,
        path: Path,
        message: str,
        line: Optional[int] = None,
        hint: Optional[str] = None,
        *,
        by_hand: bool = False,
    ) -> None:
        at = path.relative_to(self._root)
        remedy = Remedy.BY_HAND if by_hand else REMEDIES.get(kind, Remedy.BY_HAND)
        self._issues.append(Issue(kind, at, message, line, hint, remedy))

    def _list(self, folder: str, *suffixes: str) -> list[Path]:
        def tell(error: OSError) -> None:
            message = f"cannot be listed: {error.strerror}"
            self._tell(Kind.UNREADABLE, Path(error.filename), message)

        return layout.files(self._root / folder, *suffixes, on_error=tell)

    @contextlib.contextmanager
    def _reading(self, path: Path) -> Iterator[None]:
        """Record errors in the block as issues of a file."""
        try:
            yield
        except DataError as error:
            at = f"{error.field}: " if error.field else ""
            self._tell(Kind.INVALID_FILE, path, at + error.message)
        except FileNotFoundError:  # deleted since the listing
            pass
        except OSError as error:
            self._tell(Kind.UNREADABLE, path, f"cannot be read: {error.strerror or error}")

    def _require_one(self, what: str, name: str, path: Path) -> None:
        first = self._named.setdefault((what, name), path)
        if first is path:
            self._counts[f"{what}s"] += 1
        else:
            message = f"another {what} is named {name!r}: {first.relative_to(self._root)}"
            self._tell(Kind.DUPLICATE_NAME, path, message, hint="rename or remove one of the two")

    def _require_definition(
        self, name: str, kind: Kind, path: Path, line: Optional[int] = None
    ) -> bool:
        if ("definition", name) in self._named:
            return True
        message = f"the dataset has no definition {name!r}"
        doubt = "its definition may be one that cannot be read; repair that first"
        by_hand = not self._is_sure or (kind is Kind.ORPHAN_TRACE and line is None)
        hint = None if self._is_sure else doubt
        self._tell(kind, path, message, line, hint, by_hand=by_hand)
        return False

    def _is_new(self, path: Path) -> bool:
        """Return whether a file was not seen by another path; its lines would be duplicates."""
        info = path.stat()
        first = self._files.setdefault((info.st_dev, info.st_ino), path)
        if first is not path:
            other = first.relative_to(self._root)
            message = f"this is the same file as {other}, so its lines are read twice"
            hint = "remove one of the two links"
            self._tell(Kind.DUPLICATE_LINE, path, message, hint=hint, by_hand=True)
        return first is path

    def _judge(self, line: Line, path: Path) -> None:
        """Examine one line."""
        here = path.relative_to(self._root), line.number
        known = len(self._issues)
        if line.problem is not None:
            self._issues.append(line.problem)
        elif line.trace is not None:
            first = self._first.setdefault(line.digest, here)
            if first is here:
                self._judge_trace(line.trace, path, line.number)
            else:
                message = f"a copy of the line at {where(*first)}"
                by_hand = line.number is None
                self._tell(Kind.DUPLICATE_LINE, path, message, line.number, by_hand=by_hand)
        if len(self._issues) > known:
            self._digests[here] = line.digest

    def _judge_trace(self, trace: Trace, path: Path, number: Optional[int]) -> None:
        self._counts["workloads" if trace.is_workload_trace() else "traces"] += 1
        for spec in trace.workload.inputs.values():
            if isinstance(spec, SafetensorsInput):
                if spec.path not in self._blobs:
                    try:
                        self._blobs[spec.path] = resolve_blob(self._root, spec.path)
                    except UnsafePathError as error:
                        self._blobs[spec.path] = error
                if trace.is_workload_trace():
                    self._needed.setdefault(spec.path, (path, number))
        if not self._require_definition(trace.definition, Kind.ORPHAN_TRACE, path, number):
            return
        if trace.solution is None:
            return
        other = self._solutions.get(trace.solution)
        if other is None:
            self._unknown.setdefault(trace.solution, []).append((path, number))
        elif other != trace.definition:
            message = f"{trace.solution!r} is a solution of {other!r}, not of {trace.definition!r}"
            self._tell(Kind.WRONG_SOLUTION, path, message, number)

    def _look_at_blobs(self) -> None:
        """Report missing, damaged and unused tensor files."""
        all_known = not any(one.kind in _UNREAD for one in self._issues)
        for name, (path, line) in self._needed.items():
            file = self._blobs[name]
            if isinstance(file, UnsafePathError):
                self._tell(Kind.UNSAFE_BLOB, path, file.message, line)
                continue
            try:
                if not (file.exists() and is_lfs_pointer(file)):  # not downloaded is not damaged
                    read_safetensors_header(file)
            except (BlobError, OSError) as error:
                kind = Kind.DAMAGED_BLOB if file.exists() else Kind.MISSING_BLOB
                reason = error.message if isinstance(error, BlobError) else error.strerror
                hint = "copy the file from the original dataset, or remove the workload"
                self._tell(kind, path, f"{name}: {reason}", line, hint)
        named = set(self._blobs.values())
        for file in self._list(layout.BLOB, ".safetensors"):
            if file.resolve() in named:
                continue
            doubt = None
            if is_young(file):
                doubt = "it is less than an hour old; its workload may be added soon"
            elif not all_known:
                doubt = "a record that cannot be read may refer to it; repair those first"
            message = "no workload or trace refers to this file"
            self._tell(Kind.ORPHAN_BLOB, file, message, hint=doubt, by_hand=doubt is not None)
