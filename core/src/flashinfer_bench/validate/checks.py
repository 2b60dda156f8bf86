"""Core's checks: whether everything is in its place, once, and names what is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench.data import layout
from flashinfer_bench.validate.records import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flashinfer_bench.validate.records import Contents, Finding

SUFFIXES = {
    layout.DEFINITIONS: (".json",),
    layout.SOLUTIONS: (".json",),
    layout.WORKLOADS: (".jsonl", ".json"),
    layout.TRACES: (".jsonl", ".json"),
}
"""What the files that readers look at end in, by folder."""


def check_layout(contents: Contents) -> Iterator[Finding]:
    """Find folders that are missing, links that lead outside, and files that no reader looks at."""
    root = contents.root
    if not (root / layout.DEFINITIONS).is_dir():
        yield Place("layout", Path(layout.DEFINITIONS)).error(
            "the folder is missing", hint="a dataset has one JSON file for each definition in it"
        )
    for folder, suffixes in SUFFIXES.items():
        base = root / folder
        if base.exists() and not base.is_dir():
            yield Place("layout", Path(folder)).error("this must be a folder")
            continue
        # What cannot be listed is told by those who read it.
        found = layout.entries(os.fspath(base), on_error=lambda _: None)
        for entry in sorted(found, key=lambda one: one.path):
            path = Path(entry.path)
            place = Place("layout", path.relative_to(root))
            if entry.is_symlink():
                yield from _check_link(path, root, place)
            if os.path.isfile(path) and path.suffix not in suffixes:  # noqa: PTH113 - never raises
                allowed = " and ".join(suffixes)
                yield place.warning(f"ignored: files in {folder} end in {allowed}")


def _check_link(path: Path, root: Path, place: Place) -> Iterator[Finding]:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):  # nothing is there, or the links go round in a circle
        yield place.error("this link leads nowhere")
        return
    if not target.is_relative_to(root.resolve()):
        yield place.warning("this link leads out of the dataset, and is lost when it is copied")


def check_definitions(contents: Contents) -> Iterator[Finding]:
    """Find duplicate names, and files of another name."""
    return _check_names("definition", ((one.name, at) for one, at in contents.definition_files))


def check_solutions(contents: Contents) -> Iterator[Finding]:
    """Find duplicate names, files of another name, and missing definitions."""
    named = ((solution.definition, place) for solution, place in contents.solution_files)
    yield from _check_definitions(named, contents)
    yield from _check_names("solution", ((one.name, at) for one, at in contents.solution_files))


def _check_names(kind: str, files: Iterable[tuple[str, Place]]) -> Iterator[Finding]:
    first: dict[str, Place] = {}
    for name, place in files:
        known = first.setdefault(name, place)
        if known is not place:
            message = f"there is another {kind} named {name!r}: {known.path}"
            yield place.error(message, "name", "rename or remove one of the two")
        if place.path.stem not in (name, segment := layout.safe_segment(name)):
            yield place.warning(f"the file should be named {segment}.json", "name")


def _check_definitions(named: Iterable[tuple[str, Place]], contents: Contents) -> Iterator[Finding]:
    """Find definitions that are named and not there: each once, with the number of its users."""
    lost: dict[str, list[Place]] = {}
    for name, place in named:
        if name not in contents.definitions and name not in contents.unread:
            lost.setdefault(name, []).append(place)
    for name, (first, *others) in lost.items():
        count = f" (named by {len(others) + 1} {first.check})" if others else ""
        yield first.error(f"there is no definition {name!r} in the dataset{count}", "definition")


def check_workloads(contents: Contents) -> Iterator[Finding]:
    """Find workloads of unknown definitions, and those that stand in two places."""
    first: dict[tuple[str, str], tuple[str, Place]] = {}
    # Old datasets keep workloads among the traces.
    heads = [
        (head, at._replace(check="workloads")) for head, at in contents.traces if not head.solution
    ]
    yield from _check_definitions(((head.definition, at) for head, at in heads), contents)
    for (name, uuid, _, digest), place in heads:
        if name not in contents.definitions:
            continue
        known, where = first.setdefault((name, uuid), (digest, place))
        if where is place:
            continue
        if known == digest:
            yield place.warning(f"the same workload stands at {where.where}", "workload.uuid")
        else:
            yield place.error(f"another workload at {where.where} has this uuid", "workload.uuid")


def check_traces(contents: Contents) -> Iterator[Finding]:
    """Find traces of unknown definitions, and of solutions of other definitions."""
    runs = [(head, place) for head, place in contents.traces if head.solution]
    yield from _check_definitions(((head.definition, place) for head, place in runs), contents)
    for (name, _, solution, _), place in runs:
        known = contents.solutions.get(solution or "")
        if known is not None and known.definition != name:
            whose = f"{known.definition!r}, not of {name!r}"
            yield place.error(f"{solution!r} is a solution of {whose}", "solution")
