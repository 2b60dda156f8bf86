"""Solutions must be unique and belong to a definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.validate.findings import Finding, Place
    from flashinfer_bench.validate.records import Contents


def check_solutions(contents: Contents) -> Iterator[Finding]:
    """Find duplicate names, missing definitions, and files of another name."""
    first: dict[str, Place] = {}
    for solution, place in contents.solution_files:
        known = first.setdefault(solution.name, place)
        if known is not place:
            message = f"there is another solution named {solution.name!r}: {known.path}"
            yield place.error(message, "name", "rename or remove one of the two")
        if solution.definition not in contents.definitions:
            message = f"there is no definition {solution.definition!r} in the dataset"
            yield place.error(message, "definition")
        if place.path.stem != solution.name:
            yield place.warning(f"the file should be named {solution.name}.json", "name")
