"""Records of older releases, rewritten in today's spelling.

Every function takes a decoded record and returns it unchanged (the same object) if there is nothing
to do, else a new one; the argument is never modified. Only what was renamed, or has a default,
is filled in. Content that is missing stays missing, so that validation refuses it by name.

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

_NON_FINITE = {
    "NaN": float("nan"),
    "nan": float("nan"),
    "Infinity": float("inf"),
    "inf": float("inf"),
    "-Infinity": float("-inf"),
    "-inf": float("-inf"),
}
_RENAMED_DTYPES = {"float8_e4m3": "float8_e4m3fn"}
_RENAMED_STATUSES = {"INCORRECT": "INCORRECT_NUMERICAL"}
_OPTIONS = ("cflags", "cuda_cflags", "ldflags", "include_paths")
_RENAMED_OPTIONS = {
    "ld_flags": "ldflags",
    "include_dirs": "include_paths",
    **{f"extra_{name}": name for name in _OPTIONS},
}
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "flashinfer-bench/workload")


def _edit(record: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return `record` with `changes`; itself if they change nothing."""
    real = {key: value for key, value in changes.items() if record.get(key) is not value}
    return {**record, **real} if real else record


def _map_values(record: Any, edit: Callable[[Any], Any]) -> Any:
    """Return `record` with `edit` applied to each value; itself if that changes nothing."""
    if not isinstance(record, dict):
        return record
    edited = {key: edit(value) for key, value in record.items()}
    return edited if any(edited[key] is not record[key] for key in record) else record


def _map_items(values: Any, edit: Callable[[Any], Any]) -> Any:
    if not isinstance(values, list):
        return values
    edited = [edit(value) for value in values]
    changed = any(new is not old for new, old in zip(edited, values, strict=True))
    return edited if changed else values


def _drop_nulls(record: dict[str, Any], *names: str) -> dict[str, Any]:
    null = [name for name in names if name in record and record[name] is None]
    return {key: value for key, value in record.items() if key not in null} if null else record


def _rename(record: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    if old not in record or new in record:
        return record
    return {(new if key == old else key): value for key, value in record.items()}


# ---------------------------------------------------------------------------------- definition


def upgrade_axis(axis: Any) -> Any:
    """Give an axis without ``type`` its type: with a value it is ``const``, without ``var``."""
    if not isinstance(axis, dict) or axis.get("type") is not None:
        return axis
    return {**axis, "type": "var" if axis.get("value") is None else "const"}


def upgrade_tensor(tensor: Any) -> Any:
    """Write sizes in a shape as text, and give renamed dtypes their name of today."""
    if not isinstance(tensor, dict):
        return tensor
    shape = _map_items(tensor.get("shape"), lambda size: str(size) if type(size) is int else size)
    dtype = tensor.get("dtype")
    renamed = _RENAMED_DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    return _edit(tensor, shape=shape, dtype=renamed)


def upgrade_definition(data: Any) -> Any:
    """Rewrite a definition of an older release."""
    if not isinstance(data, dict):
        return data
    record = _drop_nulls(_rename(data, "type", "op_type"), "tags", "constraints", "description")
    return _edit(
        record,
        axes=_map_values(record.get("axes"), upgrade_axis),
        inputs=_map_values(record.get("inputs"), upgrade_tensor),
        outputs=_map_values(record.get("outputs"), upgrade_tensor),
    )


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
    record = _drop_nulls(record, *_OPTIONS)
    return _edit(record, **{name: _words(record[name]) for name in _OPTIONS if name in record})


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
    return _edit(data, spec=spec)


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
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def upgrade_input(spec: Any) -> Any:
    """Rewrite one input of a workload."""
    if not isinstance(spec, dict) or spec.get("type") != "scalar":
        return spec
    return _edit(spec, value=upgrade_number(spec.get("value"))) if "value" in spec else spec


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
    record = data
    if "inputs" in record:
        record = _edit(record, inputs=_map_values(record["inputs"], upgrade_input))
    if record.get("uuid") in (None, "") and "axes" in record and "inputs" in record:
        derived = derive_uuid(definition, data["axes"], data["inputs"])
        record = {**record, "uuid": derived}
    return record


def upgrade_correctness(data: Any) -> Any:
    """Rewrite the errors of an older release, and read the words for non-finite numbers."""
    if not isinstance(data, dict):
        return data
    names = [name for name in ("max_relative_error", "max_absolute_error") if name in data]
    return _edit(data, **{name: upgrade_number(data[name]) for name in names})


def upgrade_evaluation(data: Any) -> Any:
    """Rewrite an evaluation of an older release."""
    if not isinstance(data, dict):
        return data
    record = _upgrade_log(data)
    if isinstance(record.get("environment"), dict):
        environment = _rename(_drop_nulls(record["environment"], "libs"), "device", "hardware")
        record = _edit(record, environment=environment)
    if isinstance(record.get("status"), str):
        record = _edit(record, status=_RENAMED_STATUSES.get(record["status"], record["status"]))
    for name in ("correctness", "performance"):
        if record.get(name) == {}:
            record = {**record, name: None}
    if "correctness" in record:
        record = _edit(record, correctness=upgrade_correctness(record["correctness"]))
    return record


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
    record = data
    if "solution" in record and record["solution"] == "":
        record = {**record, "solution": None}
    if "evaluation" in record and record["evaluation"] == {}:
        record = {**record, "evaluation": None}
    if "evaluation" in record:
        record = _edit(record, evaluation=upgrade_evaluation(record["evaluation"]))
    if "workload" in record:
        definition = record.get("definition")
        name = definition if isinstance(definition, str) else ""
        record = _edit(record, workload=upgrade_workload(record["workload"], definition=name))
    return record
