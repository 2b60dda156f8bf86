"""Records of older releases, rewritten in today's spelling.

This is for what has to be known of a record as a whole, and for traces, of which very many are read
in today's spelling; the fields of the models say what else they read. An argument is never
modified. Only what was renamed, or has a default, is filled in. Content that is missing stays
missing, so that validation refuses it by name.

Releases differ in: ``type`` for ``op_type``, axes without ``type``, sizes in shapes
(2025-07 to 2025-09); capitalised languages, ``build_steps``, an entry point without its file
(2025-07); ``log_file``, ``error``, ``environment.device``, status ``INCORRECT``, workloads without
uuid, ``"solution": ""`` and ``"evaluation": {}`` (till 2025-10); nulls in place of defaults.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "flashinfer-bench/workload")


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


def _without_empty(data: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a copy with None in place of empty values in some fields."""
    empty = (key for key in names if data.get(key) in ({}, ""))
    return {**data, **dict.fromkeys(empty)}


def upgrade_workload(data: Any, definition: str = "") -> Any:
    """Give a workload of an older release its uuid, which `definition` enters."""
    if not isinstance(data, dict) or not {"axes", "inputs"} <= data.keys():
        return data
    if data.get("uuid") not in (None, ""):
        return data
    return {**data, "uuid": derive_uuid(definition, data["axes"], data["inputs"])}


def upgrade_evaluation(data: Any) -> Any:
    """Rewrite an evaluation of an older release."""
    if not isinstance(data, dict):
        return data
    record = _without_empty(data, "correctness", "performance")
    where = record.get("environment")
    if isinstance(where, dict):
        known = {key: one for key, one in where.items() if key != "libs" or one is not None}
        record["environment"] = (
            {"hardware": known.get("device"), **known} if "device" in known else known
        )
    if record.get("status") == "INCORRECT":
        record["status"] = "INCORRECT_NUMERICAL"
    error, log_file = record.pop("error", None), record.pop("log_file", None)
    if record.get("log") is None:
        lines = [str(error)] if error else []
        record["log"] = "\n".join(lines + ([f"log file: {log_file}"] if log_file else []))
    return record


def upgrade_trace(data: Any) -> Any:
    """Rewrite a trace of an older release."""
    if not isinstance(data, dict):
        return data
    record = _without_empty(data, "solution", "evaluation")
    name = record.get("definition")
    if "workload" in record:
        name = name if isinstance(name, str) else ""
        record["workload"] = upgrade_workload(record["workload"], name)
    if "evaluation" in record:
        record["evaluation"] = upgrade_evaluation(record["evaluation"])
    return record
