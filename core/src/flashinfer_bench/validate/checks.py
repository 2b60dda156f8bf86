"""Checks of files: layout, definitions and solutions."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import TYPE_CHECKING, Union

from flashinfer_bench.data import layout
from flashinfer_bench.data.constraints import parse_python
from flashinfer_bench.errors import DataError
from flashinfer_bench.validate.findings import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flashinfer_bench.data import Definition, Solution
    from flashinfer_bench.validate.findings import Finding
    from flashinfer_bench.validate.records import Contents, SolutionHead

SUFFIXES = {
    layout.DEFINITIONS: (".json",),
    layout.SOLUTIONS: (".json",),
    layout.WORKLOADS: (".jsonl", ".json"),
    layout.TRACES: (".jsonl", ".json"),
}
"""What the files that readers look at end in, by folder."""

# Languages whose entry point is a Python function.
_PYTHON = frozenset({"python", "triton", "tilelang", "cutedsl", "cutile"})


def check_layout(contents: Contents) -> Iterator[Finding]:
    """Find folders that are missing, links that lead outside, and files that no reader looks at."""
    root = contents.root
    if not (root / layout.DEFINITIONS).is_dir():
        yield Place("layout", Path(layout.DEFINITIONS)).error(
            "the folder is missing", hint="a dataset has one JSON file for each definition in it"
        )
    for folder, suffixes in SUFFIXES.items():
        yield from _check_folder(root, folder, suffixes)


def _check_folder(root: Path, folder: str, suffixes: tuple[str, ...]) -> Iterator[Finding]:
    base = root / folder
    if base.exists() and not base.is_dir():
        yield Place("layout", Path(folder)).error("this must be a folder")
        return
    found = layout.entries(os.fspath(base), on_error=lambda _: None)  # told by those who read it
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
    """Find duplicate names, misplaced files, axes without use, and axes that nothing determines."""
    yield from _check_names("definition", contents.definition_files)
    for definition, place in contents.definition_files:
        folder = place.path.parts[1:-1]
        if folder and folder[0] != definition.op_type:
            message = f"op_type is {definition.op_type!r}, but the folder is {folder[0]!r}"
            yield place.warning(message, "op_type")
        yield from _check_own_axes(definition, place)
        if not definition.outputs:
            yield place.error("it has no output", "outputs")


def _check_names(
    kind: str, files: Sequence[tuple[Union[Definition, SolutionHead], Place]]
) -> Iterator[Finding]:
    first: dict[str, Place] = {}
    for record, place in files:
        known = first.setdefault(record.name, place)
        if known is not place:
            message = f"there is another {kind} named {record.name!r}: {known.path}"
            yield place.error(message, "name", "rename or remove one of the two")
        if place.path.stem != record.name:
            yield place.warning(f"the file should be named {record.name}.json", "name")


def _check_own_axes(definition: Definition, place: Place) -> Iterator[Finding]:
    shown = _axes_of(definition, inputs=True)
    used = shown | _axes_of(definition, inputs=False)
    if not definition.axes:
        yield place.warning("it has no axes", "axes")
    # A constant that is no size is fine: it documents a parameter, such as top_k.
    for axis in definition.var_axes:
        if axis not in used:
            yield place.warning("no input or output has this axis", f"axes.{axis}")
        elif axis not in shown:
            # A run gets its value from the workload, but a caller of the kernel has only inputs.
            message = "no input shows the size of this variable axis"
            yield place.warning(message, f"axes.{axis}")
    for axis, size in definition.const_axes.items():
        if size == 0:
            yield place.warning("an axis of size 0 makes its tensors empty", f"axes.{axis}")


def _axes_of(definition: Definition, *, inputs: bool) -> set[str]:
    tensors = definition.inputs if inputs else definition.outputs
    return {axis for tensor in tensors.values() for axis in tensor.shape or ()}


def check_solutions(contents: Contents) -> Iterator[Finding]:
    """Find duplicate names, missing definitions, and files of another name."""
    for solution, place in contents.solution_files:
        if solution.definition not in contents.definitions:
            message = f"there is no definition {solution.definition!r} in the dataset"
            yield place.error(message, "definition")
    yield from _check_names("solution", contents.solution_files)


def check_python(solution: Solution, place: Place) -> Iterator[Finding]:
    """Check the entry file of one solution.

    A solution that does not build is a legitimate record, which gets the status COMPILE_ERROR: it
    is no more than a warning.
    """
    entry = solution.get_entry_source()
    if str(solution.spec.language) not in _PYTHON or entry is None:
        return
    field = f"sources.{solution.sources.index(entry)}.content"
    try:
        tree = parse_python(entry.content)
    except DataError as error:
        line = f", line {error.line}," if error.line is not None else ""
        yield place.warning(f"{entry.path}{line} is not valid Python: {error.message}", field)
        return
    symbol = solution.get_entry_symbol()
    if symbol not in _top_level_names(tree):
        message = f"{entry.path} defines no {symbol!r} at its top level"
        yield place.warning(message, "spec.entry_point")


def _top_level_names(tree: ast.Module) -> set[str]:
    """Return every name that a statement outside functions and classes may bind."""
    names: set[str] = set()
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        else:
            pending += ast.iter_child_nodes(node)
    return names
