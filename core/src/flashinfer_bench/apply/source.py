"""Where a table's definitions and solutions come from: a folder, or a dataset in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

import msgspec

from flashinfer_bench.apply.snapshot import DEFINITIONS, SOLUTIONS, changed_since, digest_of
from flashinfer_bench.errors import DataError, DuplicateNameError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from flashinfer_bench.apply.records.kept import Kept
    from flashinfer_bench.apply.snapshot import Snapshot
    from flashinfer_bench.data import Definition, Solution, TraceSet


class Entry(NamedTuple):
    """The file of a definition or a solution.

    Attributes
    ----------
    path : str
        Relative to the dataset's root.
    digest : bytes
        SHA-256 of its content.
    definition : str
        Name of the definition; for a solution that which it implements.
    """

    path: str
    digest: bytes
    definition: str


class SpecHead(msgspec.Struct, array_like=True, gc=False):
    """What choosing needs of a `BuildSpec`."""

    language: str
    target_hardware: list[str]


class SolutionHead(msgspec.Struct, array_like=True, gc=False):
    """What choosing needs of a `Solution`, with the same names.

    Attributes
    ----------
    name, definition : str
        Of the solution, and of what it implements.
    spec : SpecHead
        How it is built.
    digest : str or None
        What `Solution.hash` says, if that was asked for.
    """

    name: str
    definition: str
    spec: SpecHead
    digest: Optional[str] = None


class Source(ABC):
    """Gives definitions and solutions by name.

    Attributes
    ----------
    root : Path or None
        Folder of the dataset; None for one in memory.
    """

    root: Optional[Path]

    @abstractmethod
    def definition(self, name: str) -> Definition:
        """Return a definition.

        Raises
        ------
        UnknownNameError
            If there is none of that name.
        DataError
            If its file has changed since the table was made, or cannot be read.
        """

    @abstractmethod
    def solution(self, name: str) -> Solution:
        """Return a solution.

        Raises
        ------
        UnknownNameError
            If there is none of that name.
        DataError
            If its file has changed since the table was made, or cannot be read.
        """

    def head(self, name: str) -> Union[Solution, SolutionHead]:
        """Return what choosing needs of a solution.

        Raises
        ------
        UnknownNameError, DataError
            As `solution` does.
        """
        return self.solution(name)

    def solution_hash(self, name: str) -> str:
        """Return the hash of a solution.

        Raises
        ------
        UnknownNameError, DataError
            As `solution` does.
        """
        return self.solution(name).hash()

    @property
    @abstractmethod
    def definition_names(self) -> Collection[str]:
        """Names of all definitions, in the order of the dataset."""

    @abstractmethod
    def solution_names(self, definition: Optional[str] = None) -> list[str]:
        """Return the names of all solutions, or of those of one definition."""


class MemorySource(Source):
    """The definitions and solutions of a `TraceSet`.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset; what is in it counts, and not what is in its folder.
    """

    def __init__(self, trace_set: TraceSet) -> None:
        self.trace_set = trace_set
        self.root = trace_set.root

    def definition(self, name: str) -> Definition:
        """See `Source.definition`."""
        found = self.trace_set.definitions.get(name)
        if found is None:
            raise unknown("definition", name, self.definition_names)
        return found

    def solution(self, name: str) -> Solution:
        """See `Source.solution`."""
        found = self.trace_set.get_solution(name)
        if found is None:
            raise unknown("solution", name, self.solution_names())
        return found

    @property
    def definition_names(self) -> Collection[str]:
        """See `Source.definition_names`."""
        return self.trace_set.definitions.keys()

    def solution_names(self, definition: Optional[str] = None) -> list[str]:
        """See `Source.solution_names`."""
        groups = self.trace_set.solutions
        chosen = groups.values() if definition is None else [groups.get(definition, [])]
        return [solution.name for group in chosen for solution in group]


class FolderSource(Source):
    """The definitions and solutions of a folder, each read when it is asked for.

    Parameters
    ----------
    root : Path
        The dataset.
    definitions, solutions : dict of str to Entry
        Files by name.
    """

    def __init__(
        self, root: Path, definitions: dict[str, Entry], solutions: dict[str, Entry]
    ) -> None:
        self.root: Path = root
        self.definitions = definitions
        self.solutions = solutions
        self._read_definitions: dict[str, Definition] = {}
        self._read_solutions: dict[str, Solution] = {}
        self._heads: dict[str, SolutionHead] = {}

    @classmethod
    def of(cls, snapshot: Snapshot, kept: Kept) -> FolderSource:
        """Read all definitions and solutions; what is wrong with any is added to the problems.

        Parameters
        ----------
        snapshot : Snapshot
            Has the files.
        kept : Kept
            What is known of solutions; these are not read before they are asked for. What is read
            of others is added.
        """
        made = cls(snapshot.root, {}, {})
        for path in snapshot.paths(DEFINITIONS):
            made._add_definition(snapshot, path)
        for path in snapshot.paths(SOLUTIONS):
            made._add_solution(snapshot, path, kept)
        return made

    def _add_definition(self, snapshot: Snapshot, path: str) -> None:
        data, file = snapshot.read(path), self.root / path
        if data is None:
            return
        try:
            one = _parse_definition(data, file, self.root)
            _claim("definition", one.name, file, self.definitions, self.root)
        except DataError as error:
            snapshot.problems.append(error)
            return
        self._read_definitions[one.name] = one
        self.definitions[one.name] = Entry(path, snapshot.digest(path), one.name)

    def _add_solution(self, snapshot: Snapshot, path: str, kept: Kept) -> None:
        file = self.root / path
        head, one = kept.head(path, snapshot.digest(path)), None
        try:
            if head is None:
                data = snapshot.read(path)
                if data is None:
                    return
                one = _parse_solution(data, file)
                head = _head_of(one)
                kept.add_head(path, snapshot.digest(path), head)
            _claim("solution", head.name, file, self.solutions, self.root)
        except DataError as error:
            snapshot.problems.append(error)
            return
        if one is not None:
            self._read_solutions[one.name] = one
        self._heads[head.name] = head
        self.solutions[head.name] = Entry(path, snapshot.digest(path), head.definition)

    def definition(self, name: str) -> Definition:
        """See `Source.definition`."""
        if name not in self._read_definitions:
            entry = self.definitions.get(name)
            if entry is None:
                raise unknown("definition", name, self.definitions)
            file = self.root / entry.path
            self._read_definitions[name] = _parse_definition(self._read(entry), file, self.root)
        return self._read_definitions[name]

    def solution(self, name: str) -> Solution:
        """See `Source.solution`."""
        if name not in self._read_solutions:
            entry = self.solutions.get(name)
            if entry is None:
                raise unknown("solution", name, self.solutions)
            file = self.root / entry.path
            self._read_solutions[name] = _parse_solution(self._read(entry), file)
        return self._read_solutions[name]

    def head(self, name: str) -> Union[Solution, SolutionHead]:
        """See `Source.head`."""
        return self._heads.get(name) or self.solution(name)

    def solution_hash(self, name: str) -> str:
        """See `Source.solution_hash`."""
        head = self._heads.get(name)
        if head is None:
            return self.solution(name).hash()
        if head.digest is None:
            head.digest = self.solution(name).hash()
        return head.digest

    @property
    def definition_names(self) -> Collection[str]:
        """See `Source.definition_names`."""
        return self.definitions.keys()

    def solution_names(self, definition: Optional[str] = None) -> list[str]:
        """See `Source.solution_names`."""
        every = self.solutions.items()
        return [name for name, entry in every if definition in (None, entry.definition)]

    def _read(self, entry: Entry) -> bytes:
        """Read a file that must still be what the table was made from."""
        file = self.root / entry.path
        try:
            data = file.read_bytes()
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror or error}", path=file) from error
        if digest_of(data) != entry.digest:
            raise changed_since(file)
        return data


def _parse_definition(data: bytes, file: Path, root: Path) -> Definition:
    from flashinfer_bench.data.definition import Definition
    from flashinfer_bench.data.json_codec import decode
    from flashinfer_bench.data.loader import load_definition

    try:
        return decode(Definition, data, path=file)
    except DataError as first:
        try:
            made = load_definition(file, root)  # which knows files without an op type
            unchanged = file.read_bytes() == data
        except OSError:
            raise first from None
        if not unchanged:
            raise first
        return made


def _parse_solution(data: bytes, file: Path) -> Solution:
    from flashinfer_bench.data.json_codec import decode
    from flashinfer_bench.data.solution import Solution

    return decode(Solution, data, path=file)


def _head_of(one: Solution) -> SolutionHead:
    spec = SpecHead(str(one.spec.language), list(one.spec.target_hardware))
    return SolutionHead(one.name, one.definition, spec)


def _claim(kind: str, name: str, file: Path, known: dict[str, Entry], root: Path) -> None:
    if name in known:
        raise DuplicateNameError(
            f"there is another {kind} named '{name}': {root / known[name].path}",
            path=file,
            field="name",
            hint=f"rename or remove one of the two; names of {kind}s are unique in a dataset",
        )


def unknown(kind: str, name: str, known: Collection[str]) -> UnknownNameError:
    """Make the error for a name that does not exist, with names that are like it."""
    near = get_close_matches(name, known, n=3)
    some = ", ".join(sorted(known)[:10]) + (", …" if len(known) > 10 else "")
    hint = f"did you mean {', '.join(near)}?" if near else f"there are: {some or 'none at all'}"
    return UnknownNameError(f"no {kind} is called {name!r}", hint=hint, unknown=(name,))
