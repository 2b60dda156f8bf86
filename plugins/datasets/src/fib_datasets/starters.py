"""Templates for new definitions, solutions and workloads: small, complete and correct."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fib_datasets.checks.records import broken
from flashinfer_bench.bench.plan import selected_definitions
from flashinfer_bench.cli.datasets import require_writable
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, layout, parse_constraint
from flashinfer_bench.data.json_codec import append_jsonl_file, dict_to_dataclass, save_json_file
from flashinfer_bench.data.storage import replace_file
from flashinfer_bench.data.workload import Workload, derive_uuid
from flashinfer_bench.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flashinfer_bench.data import TensorSpec

STARTER = Path(__file__).with_name("starter")
"""The dataset that `init_dataset` copies, and templates in languages other than Python."""


def init_dataset(root: Path) -> list[Path]:
    """Create a dataset with one definition, a baseline, a solution and a workload.

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
        If it is already a dataset.
    """
    require_writable(root, "give another folder")
    if any(layout.files(root / folder, ".json", ".jsonl") for folder in layout.FOLDERS):
        raise ConfigError(
            f"{root} is already a dataset", hint="add to it with 'fib new', or give a new folder"
        )
    files = layout.files(STARTER, ".json", ".jsonl")
    for one in files:
        replace_file(root / one.relative_to(STARTER), one.read_bytes())
    return [root / one.relative_to(STARTER) for one in files]


def new_definition(dataset: TraceSet, name: str, op_type: str) -> Path:
    """Create a definition as a template, LayerNorm.

    Parameters
    ----------
    dataset : TraceSet
        The dataset, with its folder.
    name, op_type : str
        Its name and family.

    Returns
    -------
    Path
        The new file.

    Raises
    ------
    ConfigError
        If the definition or the file already exists.
    """
    (first,) = layout.files(STARTER / layout.DEFINITIONS, ".json")
    record = {**json.loads(first.read_text()), "name": name, "op_type": op_type}
    record["description"] = "An example, LayerNorm: replace it by your operation."
    assert dataset.root is not None
    path = layout.definition_file(dataset.root, op_type, name)
    return _save(dict_to_dataclass(record, Definition), path, dataset.definitions)


def new_solution(
    dataset: TraceSet, name: str, definition: str, author: str, language: str = "python"
) -> Path:
    """Create a solution as a template: the reference, or an empty function in C++ and CUDA.

    Parameters
    ----------
    dataset : TraceSet
        The dataset, with its folder.
    name, definition, author : str
        Its name, definition and author.
    language : str
        ``python``, ``triton``, ``cpp`` or ``cuda``.

    Returns
    -------
    Path
        The new file.

    Raises
    ------
    UnknownNameError
        If there is no such definition.
    ConfigError
        If the solution or the file already exists.
    """
    (found,) = selected_definitions(dataset, [definition])
    first = layout.files(STARTER / layout.SOLUTIONS, ".json")[0]
    record = {**json.loads(first.read_text()), "name": name, "author": author, "description": None}
    main, text = "main.py", found.reference
    record["spec"]["language"] = language
    if language in _NATIVE:
        main = _NATIVE[language]
        text = (STARTER / main).read_text().replace("PARAMETERS", _parameters(found))
        record["spec"] |= {"entry_point": f"{main}::run", "destination_passing_style": True}
        record["spec"]["target_hardware"] = ["cpu" if language == "cpp" else "cuda"]
    record |= {"definition": definition, "sources": [{"path": main, "content": text}]}
    names = {one.name: one for group in dataset.solutions.values() for one in group}
    assert dataset.root is not None
    path = layout.solution_file(dataset.root, author, found.op_type, definition, name)
    return _save(dict_to_dataclass(record, Solution), path, names)


def new_workload(
    dataset: TraceSet, definition: str, given: Iterable[str]
) -> tuple[Path, dict[str, float]]:
    """Append a workload with random tensors.

    Parameters
    ----------
    dataset : TraceSet
        The dataset, with its folder.
    definition : str
        Name of the definition.
    given : iterable of str
        Sizes of variable axes and values of scalars, as ``NAME=VALUE``; other axes are 128.

    Returns
    -------
    Path
        The file, which may contain other workloads.
    dict of str to float
        Scalars that were not given, with their default values.

    Raises
    ------
    UnknownNameError
        If there is no such definition, axis or scalar.
    ConfigError
        If a value is invalid, a constraint is violated, or the workload already exists.
    """
    (found,) = selected_definitions(dataset, [definition])
    sizes = dict.fromkeys(found.var_axes, 128)
    scalars = {name: spec for name, spec in found.inputs.items() if spec.shape is None}
    values: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name in sizes:
            if not re.fullmatch(r"[1-9][0-9]{0,14}", value):
                raise ConfigError(f"{text!r} is not AXIS=SIZE, with a size of at least 1")
            sizes[name] = int(value)
        elif name in scalars:
            values[name] = _scalar(text, value, scalars[name])
        else:
            hint = f"available axes: {', '.join(sizes) or 'none'}"
            hint += f"; available scalars: {', '.join(scalars)}" if scalars else ""
            told = f"{definition!r} has no variable axis or scalar {name!r}"
            raise UnknownNameError(told, hint=hint, unknown=(name,))
    known = {**sizes, **found.const_axes}
    for constraint in map(parse_constraint, found.constraints):
        if message := broken(constraint, known):
            raise ConfigError(message, hint="give sizes as AXIS=SIZE")
    made_up = {name: _made_up(name, scalars[name]) for name in scalars if name not in values}
    values |= made_up
    inputs = {
        name: {"type": "scalar", "value": values[name]} if name in values else {"type": "random"}
        for name in found.inputs
    }
    assert dataset.root is not None
    path = layout.workloads_file(dataset.root, found.op_type, definition)
    uuid = derive_uuid(definition, sizes, inputs)
    new = Workload(axes=sizes, inputs=inputs, uuid=uuid)
    old = {one.workload.uuid: one.workload for one in dataset.workloads.get(definition, ())}
    if any((new.axes, new.inputs) == (one.axes, one.inputs) for one in old.values()):
        raise ConfigError(f"{path} already has this workload", hint="give other sizes or scalars")
    while new.uuid in old:  # of an edited line
        new = new.model_copy(update={"uuid": derive_uuid(definition, new.uuid, inputs)})
    append_jsonl_file([Trace(definition=definition, workload=new)], path)
    return path, made_up


def _made_up(name: str, spec: TensorSpec) -> float:
    real = 1e-6 if name.startswith("eps") else 1.0
    return real if spec.dtype.is_floating else 1 if spec.dtype.is_integer else False


def _scalar(text: str, value: str, spec: TensorSpec) -> float:
    whole = int if spec.dtype.is_integer else {"true": True, "false": False}.__getitem__
    try:
        return float(value) if spec.dtype.is_floating else whole(value)
    except (ValueError, KeyError):
        raise ConfigError(f"{text!r} is not INPUT=VALUE with a {spec.dtype.value}") from None


_NATIVE = {"cpp": "main.cpp", "cuda": "main.cu"}


def _parameters(definition: Definition) -> str:
    """Return inputs and outputs as parameters of a TVM FFI function, one per line."""

    def one(name: str, spec: TensorSpec) -> str:
        if spec.shape is not None:
            return f"/* {spec.dtype.value} [{', '.join(spec.shape)}] */ tvm::ffi::TensorView {name}"
        whole = "int64_t" if spec.dtype.is_integer else "bool"
        return f"{'double' if spec.dtype.is_floating else whole} {name}"

    both = {**definition.inputs, **definition.outputs}
    return ",\n    ".join(one(name, spec) for name, spec in both.items())


def _save(record: Any, path: Path, known: Mapping[str, object]) -> Path:
    if path.exists() or record.name in known:
        kind = type(record).__name__.lower()
        raise ConfigError(f"a {kind} {record.name!r} already exists", hint="choose another name")
    save_json_file(record, path)
    return path
