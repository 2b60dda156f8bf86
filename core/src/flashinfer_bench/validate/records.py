"""Reading a dataset record by record, with the place of each; traces are never all in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional, TypeVar

from flashinfer_bench.data import Definition, Solution, Trace, layout
from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.data.jsonl import is_torn, read_records
from flashinfer_bench.data.loader import load_definition
from flashinfer_bench.errors import DataError
from flashinfer_bench.validate.findings import Finding, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")


class Record(NamedTuple):
    """A workload or trace, and the place of its line."""

    trace: Trace
    place: Place


@dataclass(frozen=True)
class Contents:
    """What all checks need at hand: the definitions and solutions of a dataset.

    Parameters
    ----------
    root : Path
        The dataset.
    definition_files, solution_files : tuple of (Definition or Solution, Place)
        Every readable file, duplicates included.
    """

    root: Path
    definition_files: tuple[tuple[Definition, Place], ...]
    solution_files: tuple[tuple[Solution, Place], ...]
    definitions: dict[str, Definition]
    solution_targets: dict[str, str]

    @classmethod
    def read(cls, root: Path, findings: list[Finding]) -> Contents:
        """Read the files; add to `findings` what cannot be read."""

        def definition(path: Path) -> Definition:
            return load_definition(path, root)

        def solution(path: Path) -> Solution:
            return decode(Solution, path.read_bytes(), path=path)

        definitions = list(_load(root, layout.DEFINITIONS, definition, findings))
        solutions = list(_load(root, layout.SOLUTIONS, solution, findings))
        return cls(
            root=root,
            definition_files=tuple(definitions),
            solution_files=tuple(solutions),
            # Of duplicates the first counts, as it does for a reader that goes on after errors.
            definitions={one.name: one for one, _ in reversed(definitions)},
            solution_targets={one.name: one.definition for one, _ in reversed(solutions)},
        )


def _load(
    root: Path, folder: str, load: Callable[[Path], T], findings: list[Finding]
) -> Iterator[tuple[T, Place]]:
    for path in _files(root, folder, (".json",), findings):
        place = Place(folder, path.relative_to(root))
        try:
            yield load(path), place
        except DataError as error:
            findings.append(place.refused(error))
        except OSError as error:
            findings.append(place.error(f"cannot be read: {error.strerror or error}"))


def _files(
    root: Path, folder: str, suffixes: tuple[str, ...], findings: list[Finding]
) -> list[Path]:
    try:
        return layout.files(root / folder, *suffixes)
    except OSError as error:
        at = Path(error.filename) if error.filename else root / folder
        place = Place(folder, at.relative_to(root) if at.is_relative_to(root) else Path(folder))
        findings.append(place.error(f"cannot be listed: {error.strerror or error}"))
        return []


def read_all_records(root: Path, findings: list[Finding]) -> Iterator[Record]:
    """Yield every workload and trace once; add to `findings` what cannot be read.

    Parameters
    ----------
    root : Path
        The dataset.
    findings : list of Finding
        Grows while the result is iterated over.

    Yields
    ------
    Record
        In the order of the files: first workloads, unless an old dataset has them among the traces.
    """
    for folder in (layout.WORKLOADS, layout.TRACES):
        for path in _files(root, folder, (".jsonl", ".json"), findings):
            place = Place(folder, path.relative_to(root))
            try:
                texts = list(read_records(path))
                _check_tail(path, place, findings)
            except OSError as error:
                findings.append(place.error(f"cannot be read: {error.strerror or error}"))
                continue
            yield from _decode_all(path, place, texts, findings)


def _check_tail(path: Path, place: Place, findings: list[Finding]) -> None:
    if is_torn(path.read_bytes().rpartition(b"\n")[2]):
        hint = "the next run that appends to this file moves the rest aside"
        findings.append(place.warning("its last line was never finished", hint=hint))


def _decode_all(
    path: Path,
    place: Place,
    texts: Iterable[tuple[Optional[int], bytes]],
    findings: list[Finding],
) -> Iterator[Record]:
    for line, text in texts:
        at = Place(place.check, place.path, line)
        try:
            yield Record(decode(Trace, text, path=path, line=line), at)
        except DataError as error:
            findings.append(at.refused(error))
