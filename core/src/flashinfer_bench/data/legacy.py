"""Records of older releases, rewritten in today's spelling.

Every function takes a decoded record and returns another; the argument is never modified. Only what
was renamed, or has a default, is filled in. Content that is missing stays missing, so that
validation refuses it by name.

Releases differ in: ``type`` for ``op_type``, axes without ``type``, sizes in shapes
(2025-07 to 2025-09); capitalised languages, ``build_steps``, an entry point without its file
(2025-07); ``log_file``, ``error``, ``environment.device``, status ``INCORRECT``, workloads without
uuid, ``"solution": ""`` and ``"evaluation": {}`` (till 2025-10); nulls in place of defaults.
"""

from __future__ import annotations

import json
import shlex
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_NON_FINITE = ("NaN", "nan", "Infinity", "inf", "-Infinity", "-inf")
_RENAMED_DTYPES = {"float8_e4m3": "float8_e4m3fn"}
_OPTIONS = ("cflags", "cuda_cflags", "ldflags", "include_paths")
_RENAMED_OPTIONS = {
    "ld_flags": "ldflags",
    "include_dirs": "include_paths",
    **{f"extra_{name}": name for name in _OPTIONS},
}
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "flashinfer-bench/workload")


def _edit(record: Any, **edits: Callable[[Any], Any]) -> Any:
    """Return a copy of a record with functions applied to those of its fields that are there."""
    if not isinstance(record, dict):
        return record
    return {key: edits[key](value) if key in edits else value for key, value in record.items()}


def _edit_values(edit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what applies a function to each value of a mapping."""

    def each(record: Any) -> Any:
        if not isinstance(record, dict):
            return record
        return {key: edit(value) for key, value in record.items()}

    return each


def _drop_nulls(record: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in names or value is not None}


def _rename(record: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    if old not in record or new in record:
        return record
    return {(new if key == old else key): value for key, value in record.items()}


def _none_if_empty(value: Any) -> Any:
    return None if value in ({}, "") else value


# ---------------------------------------------------------------------------------- definition


def upgrade_axis(axis: Any) -> Any:
    """Give an axis without ``type`` its type: with a value it is ``const``, without ``var``."""
    if not isinstance(axis, dict) or axis.get("type") is not None:
        return axis
    return {**axis, "type": "var" if axis.get("value") is None else "const"}


def upgrade_tensor(tensor: Any) -> Any:
    """Write sizes in a shape as text, and give renamed dtypes their name of today."""

    def shape(sizes: Any) -> Any:
        if not isinstance(sizes, list):
            return sizes
        return [str(size) if type(size) is int else size for size in sizes]

    def dtype(name: Any) -> Any:
        return _RENAMED_DTYPES.get(name, name) if isinstance(name, str) else name

    return _edit(tensor, shape=shape, dtype=dtype)


def upgrade_definition(data: Any) -> Any:
    """Rewrite a definition of an older release."""
    if not isinstance(data, dict):
        return data
    record = _drop_nulls(_rename(data, "type", "op_type"), "tags", "constraints", "description")
    tensors = _edit_values(upgrade_tensor)
    return _edit(record, axes=_edit_values(upgrade_axis), inputs=tensors, outputs=tensors)


# ------------------------------------------------------------------------------------ solution


def upgrade_build_spec(data: Any) -> Any:
    """Rewrite a build specification of an older release."""
    if not isinstance(data, dict):
        return data
    return _drop_nulls(data, "dependencies", "destination_passing_style")


def upgrade_compile_options(data: Any) -> Any:
    """Rewrite the names that others give to compile options, and options in one string."""
    if not isinstance(data, dict):
        return data
    record = data
    for old, new in _RENAMED_OPTIONS.items():
        record = _rename(record, old, new)
    return _edit(_drop_nulls(record, *_OPTIONS), **dict.fromkeys(_OPTIONS, _words))


def _words(flags: Any) -> Any:
    if not isinstance(flags, str):
        return flags
    try:
        return shlex.split(flags)
    except ValueError:  # an open quote: validation says that it is no list
        return flags


def upgrade_solution(data: Any) -> Any:
    """Rewrite a solution of an older release: its entry point was a symbol of the main file."""
    if not isinstance(data, dict) or not isinstance(data.get("spec"), dict):
        return data
    spec = upgrade_build_spec(data["spec"])
    entry = spec.get("entry_point")
    main = _main_file(data.get("sources"))
    if isinstance(entry, str) and entry.isidentifier() and main is not None:
        spec = {**spec, "entry_point": f"{main}::{entry}"}
    return {**data, "spec": spec}


def _main_file(sources: Any) -> str | None:
    if not isinstance(sources, list):
        return None
    paths = [source.get("path") for source in sources if isinstance(source, dict)]
    if len(paths) == 1 and isinstance(paths[0], str):
        return paths[0]
    return "main.py" if "main.py" in paths else None


# ------------------------------------------------------------------------- workload and trace


def upgrade_number(value: Any) -> Any:
    """Turn the words for non-finite numbers into numbers."""
    return float(value) if value in _NON_FINITE else value


def upgrade_input(spec: Any) -> Any:
    """Rewrite one input of a workload."""
    is_scalar = isinstance(spec, dict) and spec.get("type") == "scalar"
    return _edit(spec, value=upgrade_number) if is_scalar else spec


def derive_uuid(definition: str, axes: Any, inputs: Any) -> str:
    """Return the identity of a workload that has none: the same for the same content, always.

    Parameters
    ----------
    definition : str
        Name of the definition.
    axes, inputs : Any
        The workload's decoded fields.

    Returns
    -------
    str
        A UUID of version 5.
    """
    content = json.dumps([definition, axes, inputs], sort_keys=True, separators=(",", ":"))
    return str(uuid.uuid5(_NAMESPACE, content))


def upgrade_workload(data: Any, *, definition: str) -> Any:
    """Rewrite a workload of an older release; `definition` enters the uuid if it has none."""
    if not isinstance(data, dict):
        return data
    record = _edit(data, inputs=_edit_values(upgrade_input))
    if record.get("uuid") in (None, "") and "axes" in record and "inputs" in record:
        record["uuid"] = derive_uuid(definition, data["axes"], data["inputs"])
    return record


def upgrade_correctness(data: Any) -> Any:
    """Rewrite the errors of an older release, and read the words for non-finite numbers."""
    return _edit(data, max_relative_error=upgrade_number, max_absolute_error=upgrade_number)


def upgrade_evaluation(data: Any) -> Any:
    """Rewrite an evaluation of an older release."""
    if not isinstance(data, dict):
        return data

    def environment(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return _rename(_drop_nulls(value, "libs"), "device", "hardware")

    return _edit(
        _upgrade_log(data),
        environment=environment,
        status=lambda value: "INCORRECT_NUMERICAL" if value == "INCORRECT" else value,
        correctness=lambda value: upgrade_correctness(_none_if_empty(value)),
        performance=_none_if_empty,
    )


def _upgrade_log(record: dict[str, Any]) -> dict[str, Any]:
    record = _drop_nulls(record, "log", "log_file", "error")
    if "log" in record or not record.keys() & {"log_file", "error"}:
        return record
    log_file, error = record.get("log_file"), record.get("error")
    lines = ([str(error)] if error else []) + ([f"log file: {log_file}"] if log_file else [])
    kept = {key: value for key, value in record.items() if key not in ("log_file", "error")}
    return {**kept, "log": "\n".join(lines)}


def upgrade_trace(data: Any) -> Any:
    """Rewrite a trace of an older release."""
    if not isinstance(data, dict):
        return data
    definition = data.get("definition")
    name = definition if isinstance(definition, str) else ""
    return _edit(
        data,
        solution=_none_if_empty,
        evaluation=lambda value: upgrade_evaluation(_none_if_empty(value)),
        workload=lambda value: upgrade_workload(value, definition=name),
    )
