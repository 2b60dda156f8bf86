"""Everything must be where readers look for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench.data import layout
from flashinfer_bench.validate.findings import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.validate.findings import Finding
    from flashinfer_bench.validate.records import Contents

NAME = "layout"

_SUFFIXES = {
    layout.DEFINITIONS: (".json",),
    layout.SOLUTIONS: (".json",),
    layout.WORKLOADS: (".jsonl", ".json"),
    layout.TRACES: (".jsonl", ".json"),
}


def check_layout(contents: Contents) -> Iterator[Finding]:
    """Find folders that are missing, links that lead outside, and files that no reader looks at."""
    root = contents.root
    if not (root / layout.DEFINITIONS).is_dir():
        yield Place(NAME, Path(layout.DEFINITIONS)).error(
            "the folder is missing", hint="a dataset has one JSON file for each definition in it"
        )
    for folder, suffixes in _SUFFIXES.items():
        yield from _check_folder(root, folder, suffixes)


def _check_folder(root: Path, folder: str, suffixes: tuple[str, ...]) -> Iterator[Finding]:
    base = root / folder
    if base.exists() and not base.is_dir():
        yield Place(NAME, Path(folder)).error("this must be a folder")
        return
    found = layout.entries(os.fspath(base), on_error=lambda _: None)  # told by those who read it
    for entry in sorted(found, key=lambda one: one.path):
        path = Path(entry.path)
        place = Place(NAME, path.relative_to(root))
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
