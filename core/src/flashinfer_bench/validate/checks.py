"""Core's checks: layout, duplicate names, and references to missing records."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench.data import layout
from flashinfer_bench.validate.records import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flashinfer_bench.data import Definition
    from flashinfer_bench.validate.records import Contents, Finding, SolutionHead, TraceHead

SUFFIXES = {
    layout.DEFINITIONS: (".json",),
    layout.SOLUTIONS: (".json",),
    layout.WORKLOADS: (".jsonl", ".json"),
    layout.TRACES: (".jsonl", ".json"),
}
"""Suffixes of the files that are read, by folder."""


def check_layout(contents: Contents) -> Iterator[Finding]:
    """Find missing folders, broken links, links that lead outside, and ignored files."""
    root = contents.root
    if not (root / layout.DEFINITIONS).is_dir():
        yield Place("layout", Path(layout.DEFINITIONS)).error(
            "the folder is missing", hint="create it, with one JSON file for each definition"
        )
    for folder, suffixes in SUFFIXES.items():
        base = root / folder
        if base.exists() and not base.is_dir():
            yield Place("layout", Path(folder)).error("must be a folder")
            continue
        # Errors of listing are reported where the files are read.
        found = layout.entries(os.fspath(base), on_error=lambda _: None)
        for entry in sorted(found, key=lambda one: one.path):
            path = Path(entry.path)
            place = Place("layout", path.relative_to(root))
            if entry.is_symlink():
                yield from _check_link(path, root, place)
            if os.path.isfile(path) and path.suffix not in suffixes:  # noqa: PTH113 - never raises
                allowed = " and ".join(suffixes)
                yield place.warning(f"ignored: only files ending in {allowed} are read in {folder}")


def _check_link(path: Path, root: Path, place: Place) -> Iterator[Finding]:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):  # the target does not exist, or links form a cycle
        yield place.error("broken link", hint="remove it, or create its target")
        return
    if not target.is_relative_to(root.resolve()):
        yield place.warning("the link leads out of the dataset; copies of the dataset lack it")


def check_definitions(contents: Contents) -> Iterator[Finding]:
    """Find duplicate names, and files not named after their definition."""
    return _check_names("definition", contents.definition_files)


def check_solutions(contents: Contents) -> Iterator[Finding]:
    """Find duplicate names, files not named after their solution, and missing definitions."""
    yield from _check_definitions(contents.solution_files, contents)
    yield from _check_names("solution", contents.solution_files)


def _check_names(
    kind: str, files: Iterable[tuple[Definition | SolutionHead, Place]]
) -> Iterator[Finding]:
    first: dict[str, Place] = {}
    for record, place in files:
        name = record.name
        known = first.setdefault(name, place)
        if known is not place:
            message = f"another {kind} is named {name!r}: {known.path}"
            yield place.error(message, "name", "rename or remove one of them")
        if place.path.stem not in (name, segment := layout.safe_segment(name)):
            yield place.warning(f"the file should be named {segment}.json", "name")


def _check_definitions(
    heads: Iterable[tuple[SolutionHead | TraceHead, Place]], contents: Contents
) -> Iterator[Finding]:
    """Find missing definitions: one finding each, with the number of records that name it."""
    lost: dict[str, list[Place]] = {}
    for head, place in heads:
        name = head.definition
        if name not in contents.definitions and name not in contents.unread:
            lost.setdefault(name, []).append(place)
    for name, (first, *others) in lost.items():
        count = f" (named by {len(others) + 1} {first.check})" if others else ""
        yield first.error(f"no definition {name!r} in the dataset{count}", "definition")


def check_workloads(contents: Contents) -> Iterator[Finding]:
    """Find workloads of unknown definitions, and duplicate workloads."""
    first: dict[tuple[str, str], tuple[str, Place]] = {}
    # In old datasets workloads are among the traces.
    heads = [
        (head, at._replace(check="workloads")) for head, at in contents.traces if not head.solution
    ]
    yield from _check_definitions(heads, contents)
    for (name, uuid, _, digest), place in heads:
        if name not in contents.definitions:
            continue
        known, where = first.setdefault((name, uuid), (digest, place))
        if where is not place and known == digest:
            yield place.warning(f"duplicate of the workload at {where.where}", "workload.uuid")
        elif where is not place:
            yield place.error(f"another workload at {where.where} has this uuid", "workload.uuid")


def check_traces(contents: Contents) -> Iterator[Finding]:
    """Find traces of unknown definitions, and of solutions of other definitions."""
    runs = [(head, place) for head, place in contents.traces if head.solution]
    yield from _check_definitions(runs, contents)
    for (name, _, solution, _), place in runs:
        known = contents.solutions.get(solution or "")
        if known is not None and known.definition != name:
            message = f"{solution!r} is a solution of {known.definition!r}, not of {name!r}"
            yield place.error(message, "solution")
