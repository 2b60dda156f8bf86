"""What the checks are shown: definitions and solutions, and every record with its place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flashinfer_bench.data import Definition, Trace
    from flashinfer_bench.validate.findings import Finding, Place


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

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """The definitions by name; of duplicates the first, as readers take it."""
        return {one.name: one for one, _ in reversed(self.definition_files)}

    @cached_property
    def solutions(self) -> dict[str, SolutionHead]:
        """The solutions by name."""
        return {one.name: one for one, _ in reversed(self.solution_files)}


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
