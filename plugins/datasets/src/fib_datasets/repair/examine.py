"""Examining a dataset: what is damaged in it, line by line and file by file."""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.data import layout
from flashinfer_bench.data.blobs import is_lfs_pointer, read_safetensors_header, resolve_blob
from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.data.jsonl import is_torn, read_whole
from flashinfer_bench.data.loader import load_definition, paused_gc
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.storage import SOFT_LOCK_SUFFIX
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.data.workload import SafetensorsInput
from flashinfer_bench.errors import (
    BlobError,
    DataError,
    DatasetNotFoundError,
    SelectionError,
    UnsafePathError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flashinfer_bench.data.trace import Trace


class Kind(str, Enum):
    """Every sort of damage."""

    UNREADABLE = "unreadable"
    """A file or folder that the system does not let us read."""

    INVALID_FILE = "invalid_file"
    """A definition or solution that is none."""

    DUPLICATE_NAME = "duplicate_name"
    """A second definition, or solution, of one name."""

    TORN_LINE = "torn_line"
    """A last line whose writer died in the middle of it."""

    INVALID_LINE = "invalid_line"
    """A line that is not a workload or trace."""

    DUPLICATE_LINE = "duplicate_line"
    """The very same line as one before it."""

    ORPHAN_TRACE = "orphan_trace"
    """A workload or trace of a definition that is not in the dataset."""

    ORPHAN_SOLUTION = "orphan_solution"
    """A solution of a definition that is not in the dataset."""

    ORPHAN_BLOB = "orphan_blob"
    """A tensor file that no workload names."""

    UNKNOWN_SOLUTION = "unknown_solution"
    """A solution that traces name and the dataset has not."""

    WRONG_SOLUTION = "wrong_solution"
    """A solution that a trace names and that is of another definition."""

    MISSING_BLOB = "missing_blob"
    """A tensor file that a workload names and that is not there."""

    DAMAGED_BLOB = "damaged_blob"
    """A tensor file that is none."""

    UNSAFE_BLOB = "unsafe_blob"
    """A path of a tensor file that leads out of the dataset."""

    STALE_LOCK = "stale_lock"
    """A soft lock whose owner is gone."""

    TORN_FILE = "torn_file"
    """Where an append has put the unfinished line that it found."""

    LEFTOVER = "leftover"
    """A temporary file of a process that died."""


class Remedy(str, Enum):
    """How an issue can be mended."""

    SAFE = "safe"
    """Moving it into the backup changes no answer of the dataset."""

    ORPHANS = "orphans"
    """Moving it is a decision: what it belongs to may yet come back."""

    BY_HAND = "by_hand"
    """Only a human knows what it should be."""


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
"""What can be mended by moving it; for everything else it takes a human."""

# What many sound datasets have: traces outlive solutions, and a tracer writes blobs in advance.
NOTES = frozenset({Kind.UNKNOWN_SOLUTION, Kind.ORPHAN_BLOB})


@dataclass(frozen=True)
class Issue:
    """One thing that is damaged.

    Parameters
    ----------
    kind : Kind
        What sort of damage it is.
    path : Path
        The file, relative to the dataset.
    message : str
        What is wrong.
    line : int, optional
        Line in the file, from 1.
    hint : str, optional
        What to do.
    by_hand : bool
        Whether it takes a human, although others of its kind do not.
    """

    kind: Kind
    path: Path
    message: str
    line: Optional[int] = None
    hint: Optional[str] = None
    by_hand: bool = False

    @property
    def remedy(self) -> Remedy:
        """How it can be mended."""
        return Remedy.BY_HAND if self.by_hand else REMEDIES.get(self.kind, Remedy.BY_HAND)

    @property
    def is_note(self) -> bool:
        """Whether a sound dataset may have it."""
        return self.kind in NOTES

    @property
    def where(self) -> str:
        """The place as ``file:line``."""
        return str(self.path) if self.line is None else f"{self.path}:{self.line}"


def not_listed(root: Path, issues: list[Issue]) -> Callable[[OSError], None]:
    """Return what adds an issue for each folder of a dataset that cannot be listed."""

    def tell(error: OSError) -> None:
        at = Path(error.filename).relative_to(root)
        issues.append(Issue(Kind.UNREADABLE, at, f"cannot be listed: {error.strerror}"))

    return tell


class Line(NamedTuple):
    """A line as it stands in its file, and what it is: a trace, or a problem, or blank."""

    number: Optional[int]
    raw: bytes
    trace: Optional[Trace] = None
    problem: Optional[Issue] = None


def digest(raw: bytes) -> bytes:
    """Return what equal lines have in common, whatever blanks and line end are around them."""
    text = raw.removeprefix(codecs.BOM_UTF8).strip()
    return hashlib.blake2b(text, digest_size=16).digest()


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
        """Yield every line of a file; one JSON document over several lines has no numbers.

        Raises
        ------
        OSError
            If the file cannot be read.
        """
        with path.open("rb") as file:
            whole = read_whole(file)
            if whole is not None:
                for text in whole[1]:
                    yield self._judge(path, None, text)
                return
            for number, raw in enumerate(file, 1):
                yield self._judge(path, number, raw)

    def _judge(self, path: Path, number: Optional[int], raw: bytes) -> Line:
        text = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        relative = path.relative_to(self._root)
        if number is not None and not raw.endswith(b"\n") and is_torn(text):
            message = f"its last line was never finished: {len(raw)} bytes"
            return Line(number, raw, problem=Issue(Kind.TORN_LINE, relative, message, line=number))
        if not text.strip():
            return Line(number, raw)
        try:
            return Line(number, raw, self._reader.read(text.strip(), path=path, line=number))
        except DataError as error:
            return Line(number, raw, problem=_invalid(error, relative, number))


def _invalid(error: DataError, path: Path, number: Optional[int]) -> Issue:
    message = f"{error.field}: {error.message}" if error.field else error.message
    if number is not None:
        return Issue(Kind.INVALID_LINE, path, message, line=number)
    hint = "the file is one JSON document over several lines; correct it by hand"
    return Issue(Kind.INVALID_LINE, path, message, hint=hint, by_hand=True)


class Names:
    """Reads what can be named, and judges the names in records.

    Parameters
    ----------
    root : Path
        The dataset.

    Attributes
    ----------
    issues : list of Issue
        What is wrong with the files of definitions and solutions.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.issues: list[Issue] = []
        self.definitions: dict[str, Path] = {}
        self._read(layout.DEFINITIONS, self._add_definition)
        # An orphan for sure is only what no broken definition may have been the parent of.
        self._doubt = "a definition that cannot be read may be missing; mend that first"
        self._is_sure = not self.issues
        self.solutions: dict[str, tuple[Path, str]] = {}
        self._read(layout.SOLUTIONS, self._add_solution)
        self._unknown: dict[str, tuple[Path, Optional[int], int]] = {}

    def _read(self, folder: str, add: Callable[[Path], None]) -> None:
        on_error = not_listed(self._root, self.issues)
        for path in layout.files(self._root / folder, ".json", on_error=on_error):
            try:
                add(path)
            except DataError as error:
                at = f"{error.field}: " if error.field else ""
                self._add(Kind.INVALID_FILE, path, at + error.message)
            except FileNotFoundError:  # deleted since it was listed
                continue
            except OSError as error:
                self._add(Kind.UNREADABLE, path, f"cannot be read: {error.strerror or error}")

    def _add(self, kind: Kind, path: Path, message: str, hint: Optional[str] = None) -> None:
        self.issues.append(Issue(kind, path.relative_to(self._root), message, hint=hint))

    def _add_definition(self, path: Path) -> None:
        name = load_definition(path, self._root).name
        if self.definitions.setdefault(name, path) is not path:
            self._tell_twice("definition", name, path, self.definitions[name])

    def _add_solution(self, path: Path) -> None:
        solution = decode(Solution, path.read_bytes(), path=path)
        known, _ = self.solutions.setdefault(solution.name, (path, solution.definition))
        if known is not path:
            self._tell_twice("solution", solution.name, path, known)
        if solution.definition not in self.definitions:
            relative = path.relative_to(self._root)
            self.issues.append(
                self._orphan(Kind.ORPHAN_SOLUTION, relative, None, solution.definition)
            )

    def _tell_twice(self, what: str, name: str, path: Path, first: Path) -> None:
        other = first.relative_to(self._root)
        message = f"there is another {what} named {name!r}: {other}"
        self._add(Kind.DUPLICATE_NAME, path, message, hint="rename or remove one of the two")

    def _orphan(self, kind: Kind, path: Path, line: Optional[int], name: str) -> Issue:
        return Issue(
            kind,
            path,
            f"there is no definition {name!r} in the dataset",
            line=line,
            hint=None if self._is_sure else self._doubt,
            by_hand=not self._is_sure or (kind is Kind.ORPHAN_TRACE and line is None),
        )

    def judge(self, trace: Trace, path: Path, line: Optional[int]) -> Optional[Issue]:
        """Return what is wrong with the names in a record; unknown solutions are told later."""
        if trace.definition not in self.definitions:
            return self._orphan(Kind.ORPHAN_TRACE, path, line, trace.definition)
        if trace.solution is None:
            return None
        known = self.solutions.get(trace.solution)
        if known is None:
            first_path, first_line, count = self._unknown.get(trace.solution, (path, line, 0))
            self._unknown[trace.solution] = first_path, first_line, count + 1
            return None
        if known[1] == trace.definition:
            return None
        message = f"{trace.solution!r} is a solution of {known[1]!r}, not of {trace.definition!r}"
        return Issue(Kind.WRONG_SOLUTION, path, message, line=line)

    def unknown_solutions(self) -> Iterator[Issue]:
        """Yield one issue for each solution that traces name and nobody has."""
        for name, (path, line, count) in self._unknown.items():
            traces = "this is the only trace" if count == 1 else f"this is one of {count} traces"
            message = f"there is no solution {name!r} in the dataset; {traces} of it"
            yield Issue(Kind.UNKNOWN_SOLUTION, path, message, line=line)


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
            yield Issue(Kind.UNSAFE_BLOB, path, self._unsafe[name], line=line)
            return
        try:
            if file.exists() and is_lfs_pointer(file):
                return  # not downloaded yet, which is no damage
            read_safetensors_header(file)
        except (BlobError, OSError) as error:
            kind = Kind.DAMAGED_BLOB if file.exists() else Kind.MISSING_BLOB
            reason = error.message if isinstance(error, BlobError) else error.strerror
            hint = "copy the file from where the dataset was made, or take the workload out"
            yield Issue(kind, path, f"{name}: {reason}", line=line, hint=hint)

    def _orphan(self, file: Path, *, all_known: bool) -> Issue:
        hint = None
        if is_young(file):
            hint = "it is less than an hour old; its workload may be on its way"
        elif not all_known:
            hint = "a record that cannot be read may name it; mend those first"
        return Issue(
            Kind.ORPHAN_BLOB,
            file.relative_to(self._root),
            "no workload and no trace names this file",
            hint=hint,
            by_hand=hint is not None,
        )


FOLDERS = (layout.DEFINITIONS, layout.SOLUTIONS, layout.WORKLOADS, layout.TRACES, layout.BLOB)
_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}")  # as `replace_file` names them
_NO_TEMPORARY = (".lock", SOFT_LOCK_SUFFIX)


def find_leftovers(root: Path) -> Iterator[Issue]:
    """Yield what dead processes have left in the folders of a dataset.

    Lock files of ``flock`` are none: they are meant to stay, and say nothing about a process.
    """
    for folder in FOLDERS:
        # What cannot be listed is told by those who read these folders.
        entries = layout.entries(os.fspath(root / folder), hidden=True, on_error=lambda _: None)
        paths = (one.path for one in entries if not one.is_dir(follow_symlinks=False))
        for path in map(Path, sorted(paths)):
            found = _judge(path, path.relative_to(root))
            if found is not None:
                yield found


def _judge(path: Path, relative: Path) -> Optional[Issue]:
    name = path.name
    # Not pathlib, which raises if a path is too long.
    if os.path.islink(path) and name[0] != "." and not os.path.exists(path):  # noqa: PTH110, PTH114
        return Issue(Kind.UNREADABLE, relative, "this link leads nowhere")
    if name.endswith(".torn"):
        return Issue(Kind.TORN_FILE, relative, "holds unfinished lines that appends put aside")
    if name.startswith(".") and name.endswith(SOFT_LOCK_SUFFIX):
        return _judge_lock(path, relative)
    if _TEMPORARY.fullmatch(name) and not name.endswith(_NO_TEMPORARY) and not is_young(path):
        return Issue(Kind.LEFTOVER, relative, "a temporary file whose writer never finished it")
    return None


def _judge_lock(path: Path, relative: Path) -> Optional[Issue]:
    owner = lock_owner(path)
    if owner is None:  # being written just now, or by something else
        if is_young(path):
            return None
        return Issue(Kind.STALE_LOCK, relative, "a lock of more than an hour that names no owner")
    pid, host = owner
    if host == socket.gethostname():
        if _is_alive(pid):
            return None
        return Issue(Kind.STALE_LOCK, relative, f"a lock of process {pid}, which is gone")
    if is_young(path):
        return None
    message = f"a lock that process {pid} of {host} has held for more than an hour"
    return Issue(Kind.STALE_LOCK, relative, message, hint="an append holds it for milliseconds")


def is_stale(path: Path) -> bool:
    """Return whether a soft lock is held by nobody any more."""
    return _judge_lock(path, path) is not None


def lock_owner(path: Path) -> Optional[tuple[int, str]]:
    """Return process and host of a soft lock, or None if it does not say."""
    try:
        lines = path.read_bytes()[:1024].decode().split("\n")
        return int(lines[0]), lines[1]
    except (OSError, ValueError, IndexError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


_Place = tuple[Path, Optional[int]]
_UNREAD = frozenset({Kind.UNREADABLE, Kind.TORN_LINE, Kind.INVALID_LINE})


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with a dataset.

    Parameters
    ----------
    root : Path
        The dataset.
    issues : tuple of Issue
        By place.
    counts : dict of str to int
        How much of what was looked at.
    definitions : frozenset of str
        Names of the definitions.
    first : dict of bytes to (Path, int or None)
        File and line in which each distinct line stands first, by the line's digest.
    """

    root: Path
    issues: tuple[Issue, ...]
    counts: dict[str, int]
    definitions: frozenset[str] = field(default=frozenset(), repr=False)
    first: dict[bytes, _Place] = field(default_factory=dict, repr=False)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong; notes do not count."""
        return all(one.is_note for one in self.issues)


def examine(root: Path) -> Diagnosis:
    """Look for damage; nothing is changed, and no lock is taken.

    Parameters
    ----------
    root : Path
        The dataset.

    Raises
    ------
    DatasetNotFoundError
        If there is no such folder.
    SelectionError
        If none of the folders of a dataset is in it: it is another folder than was meant.
    """
    require_dataset(root)
    with paused_gc():
        return _Examination(root).run()


def require_dataset(root: Path) -> None:
    """Refuse a folder that is no dataset, as `examine` does."""
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise DatasetNotFoundError(f"no dataset: {root} {what}", hint="name a dataset folder")
    if not any(os.path.lexists(root / folder) for folder in FOLDERS):
        hint = f"a dataset has the folders {', '.join(FOLDERS)}"
        raise SelectionError(f"there is nothing in the dataset {root}", hint=hint)


class _Examination:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._names = Names(root)
        self._blobs = NamedBlobs(root)
        self._first: dict[bytes, _Place] = {}
        self._looked_at: dict[tuple[int, int], Path] = {}
        self._issues = self._names.issues
        self._counts = Counter(
            definitions=len(self._names.definitions),
            solutions=len(self._names.solutions),
            workloads=0,
            traces=0,
        )

    def run(self) -> Diagnosis:
        reader = LineReader(self._root)
        for path in self._files(layout.WORKLOADS) + self._files(layout.TRACES):
            self._look_at(path, reader)
        self._issues += self._names.unknown_solutions()
        all_known = not any(one.kind in _UNREAD for one in self._issues)
        self._issues += self._blobs.issues(all_known=all_known)
        self._issues += find_leftovers(self._root)
        ordered = sorted(self._issues, key=lambda one: (one.path, one.line or 0, one.kind.value))
        definitions = frozenset(self._names.definitions)
        return Diagnosis(self._root, tuple(ordered), dict(self._counts), definitions, self._first)

    def _files(self, folder: str) -> list[Path]:
        on_error = not_listed(self._root, self._issues)
        return layout.files(self._root / folder, ".jsonl", ".json", on_error=on_error)

    def _look_at(self, path: Path, reader: LineReader) -> None:
        relative = path.relative_to(self._root)
        try:
            info = path.stat()
            first = self._looked_at.setdefault((info.st_dev, info.st_ino), relative)
            if first != relative:  # its lines would pass for copies, and there is only one
                self._issues.append(_linked(relative, first))
                return
            for line in reader.read(path):
                found = self._judge(line, relative)
                if found is not None:
                    self._issues.append(found)
        except FileNotFoundError:  # deleted since it was listed
            return
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            self._issues.append(Issue(Kind.UNREADABLE, relative, message))

    def _judge(self, line: Line, path: Path) -> Optional[Issue]:
        trace = line.trace
        if trace is None:
            return line.problem
        key = digest(line.raw)
        if key in self._first:
            return _duplicate(path, line.number, self._first[key])
        self._first[key] = (path, line.number)
        self._counts["workloads" if trace.is_workload_trace() else "traces"] += 1
        self._blobs.add(trace, path, line.number)
        return self._names.judge(trace, path, line.number)


def _duplicate(path: Path, line: Optional[int], first: _Place) -> Issue:
    at = first[0] if first[1] is None else f"{first[0]}:{first[1]}"
    return Issue(
        Kind.DUPLICATE_LINE, path, f"the same line stands at {at}", line=line, by_hand=line is None
    )


def _linked(path: Path, first: Path) -> Issue:
    message = f"this is the file {first} by another way, so that its lines are read twice"
    return Issue(
        Kind.DUPLICATE_LINE, path, message, hint="remove one of the two links", by_hand=True
    )
