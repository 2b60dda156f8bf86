"""What the checks are shown: definitions and solutions, and every record with its place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from flashinfer_bench.data import Definition, Trace, layout
from flashinfer_bench.validate.findings import Finding, Place

if TYPE_CHECKING:
    from collections.abc import Iterator


class Record(NamedTuple):
    """A workload or trace, and the place of its line."""

    trace: Trace
    place: Place


class SolutionHead(NamedTuple):
    """What other records can say about a solution."""

    name: str
    definition: str
    author: str


@dataclass(frozen=True)
class Contents:
    """What all checks need at hand: the definitions and solutions of a dataset.

    Parameters
    ----------
    root : Path
        The dataset.
    definition_files, solution_files : tuple of (Definition or SolutionHead, Place)
        Every readable file, duplicates included.
    """

    root: Path
    definition_files: tuple[tuple[Definition, Place], ...]
    solution_files: tuple[tuple[SolutionHead, Place], ...]

    def __post_init__(self) -> None:
        # Of duplicates the first counts, as it does for a reader that goes on after errors.
        definitions = {one.name: one for one, _ in reversed(self.definition_files)}
        solutions = {one.name: one for one, _ in reversed(self.solution_files)}
        object.__setattr__(self, "_definitions", definitions)
        object.__setattr__(self, "_solutions", solutions)

    @property
    def definitions(self) -> dict[str, Definition]:
        """The definitions by name."""
        return self.__dict__["_definitions"]  # type: ignore[no-any-return]

    @property
    def solutions(self) -> dict[str, SolutionHead]:
        """The solutions by name."""
        return self.__dict__["_solutions"]  # type: ignore[no-any-return]


class RecordCheck(Protocol):
    """Shown the records of one file, one after the other, maybe in a process of its own.

    What is wrong with a record alone is said at once. What takes other files to find out is kept as
    facts, plain data that `combine` is given for all files, in their order.
    """

    def visit(self, record: Record) -> Iterator[Finding]:
        """Yield what is wrong with a record alone."""
        ...

    def facts(self) -> Any:
        """Return what has to be combined with other files."""
        ...

    @classmethod
    def combine(cls, facts: list[Any], contents: Contents) -> Iterator[Finding]:
        """Yield what the facts of all files give together."""
        ...


def list_files(
    root: Path, folder: str, suffixes: tuple[str, ...], findings: list[Finding]
) -> list[Path]:
    """Return the files below a folder; add to `findings` what cannot be listed."""

    def tell(error: OSError) -> None:
        at = Path(error.filename) if error.filename else root / folder
        place = Place(folder, at.relative_to(root) if at.is_relative_to(root) else Path(folder))
        findings.append(place.error(f"cannot be listed: {error.strerror or error}"))

    return layout.files(root / folder, *suffixes, on_error=tell)
