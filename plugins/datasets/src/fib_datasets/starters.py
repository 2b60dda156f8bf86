"""New definitions, solutions and workloads to start from: small, complete and right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fib_datasets.checks.records import broken
from flashinfer_bench.bench.plan import selected_definitions
from flashinfer_bench.cli.datasets import require_writable
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, layout, parse_constraint
from flashinfer_bench.data.json_codec import append_jsonl_file, dict_to_dataclass, save_json_file
from flashinfer_bench.data.storage import replace_file
from flashinfer_bench.data.workload import derive_uuid
from flashinfer_bench.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashinfer_bench.data import TensorSpec

STARTER = Path(__file__).with_name("starter")
"""The dataset that `init_dataset` copies."""


def init_dataset(root: Path) -> list[Path]:
    """Write a dataset with one definition, a baseline, a solution and a workload.

    Parameters
    ----------
    root : Path
        Its folder, which may exist.

    Returns
    -------
    list of Path
        The new files.

    Raises
    ------
    ConfigError
        If there is a dataset in it.
    """
    require_writable(root, "name another folder")
    if any(layout.files(root / folder, ".json", ".jsonl") for folder in layout.FOLDERS):
        raise ConfigError(
            f"{root} is a dataset already", hint="'fib new' adds to a dataset; or name a new folder"
        )
    files = layout.files(STARTER, ".json", ".jsonl")
    for one in files:
        replace_file(root / one.relative_to(STARTER), one.read_bytes())
    return [root / one.relative_to(STARTER) for one in files]


def new_definition(root: Path, name: str, op_type: str) -> Path:
    """Write a definition, LayerNorm, to be changed into what is wanted.

    Parameters
    ----------
    root : Path
        The dataset.
    name, op_type : str
        Its name and family.

    Returns
    -------
    Path
        The new file.

    Raises
    ------
    ConfigError
        If there is such a definition, or the file.
    """
    (first,) = layout.files(STARTER / layout.DEFINITIONS, ".json")
    record = {**json.loads(first.read_text()), "name": name, "op_type": op_type}
    folder = root / layout.DEFINITIONS / layout.safe_segment(op_type)
    known = TraceSet.from_path(root, on_error="collect").definitions
    return _save(dict_to_dataclass(record, Definition), folder, known)


def new_solution(root: Path, name: str, definition: str, author: str) -> Path:
    """Write a Python solution whose source is the reference, to be changed.

    Parameters
    ----------
    root : Path
        The dataset.
    name, definition, author : str
        Its name, what it is for, and whose it is.

    Returns
    -------
    Path
        The new file.

    Raises
    ------
    UnknownNameError
        If there is no such definition.
    ConfigError
        If there is such a solution, or the file.
    """
    dataset = TraceSet.from_path(root, on_error="collect")
    (found,) = selected_definitions(dataset, [definition])
    first = layout.files(STARTER / layout.SOLUTIONS, ".json")[0]
    record = {**json.loads(first.read_text()), "name": name, "author": author, "description": None}
    sources = [{"path": "main.py", "content": found.reference}]
    record |= {"definition": definition, "sources": sources}
    parts = map(layout.safe_segment, (layout.SOLUTIONS, author, found.op_type, definition))
    names = {one.name: one for group in dataset.solutions.values() for one in group}
    return _save(dict_to_dataclass(record, Solution), root.joinpath(*parts), names)


def new_workload(root: Path, definition: str, axes: Mapping[str, int]) -> Path:
    """Append a workload with random tensors.

    Parameters
    ----------
    root : Path
        The dataset.
    definition : str
        Name of the definition.
    axes : mapping of str to int
        Sizes of variable axes; the others have 128.

    Returns
    -------
    Path
        The file, which may have had other workloads.

    Raises
    ------
    UnknownNameError
        If there is no such definition or axis.
    ConfigError
        If the sizes break a constraint, or there is such a workload.
    """
    (found,) = selected_definitions(TraceSet.from_path(root, on_error="collect"), [definition])
    for axis in axes:
        if axis not in found.var_axes:
            hint = f"its variable axes: {', '.join(found.var_axes) or 'none'}"
            told = f"{definition!r} has no variable axis {axis!r}"
            raise UnknownNameError(told, hint=hint, unknown=(axis,))
    sizes = {axis: axes.get(axis, 128) for axis in found.var_axes}
    known = {**sizes, **found.const_axes}
    for constraint in map(parse_constraint, found.constraints):
        if message := broken(constraint, known):
            raise ConfigError(message, hint="give sizes as AXIS=SIZE")
    inputs = {name: _input(name, spec) for name, spec in found.inputs.items()}
    uuid = derive_uuid(definition, sizes, inputs)
    path = layout.workloads_file(root, found.op_type, definition)
    if path.is_file() and uuid in path.read_text(encoding="utf-8", errors="replace"):
        raise ConfigError(f"{path} has this workload already", hint="give other sizes")
    workload = {"axes": sizes, "inputs": inputs, "uuid": uuid}
    append_jsonl_file([Trace(definition=definition, workload=workload)], path)
    return path


def _input(name: str, spec: TensorSpec) -> dict[str, Any]:
    if spec.shape is not None:
        return {"type": "random"}
    real = 1e-6 if name.startswith("eps") else 1.0
    whole = 1 if spec.dtype.is_integer else False
    return {"type": "scalar", "value": real if spec.dtype.is_floating else whole}


def _save(record: Any, folder: Path, known: Mapping[str, object]) -> Path:
    path = folder / f"{layout.safe_segment(record.name)}.json"
    if path.exists() or record.name in known:
        kind = type(record).__name__.lower()
        raise ConfigError(f"there is a {kind} {record.name!r} already", hint="choose another name")
    save_json_file(record, path)
    return path
