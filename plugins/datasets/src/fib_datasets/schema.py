"""JSON schemas of the records in their current form, for editors and other programs."""

from __future__ import annotations

import inspect
import re
from typing import Any

from flashinfer_bench import data
from flashinfer_bench.data.base import NonEmptyStr, SchemaModel


class WorkloadLine(SchemaModel):
    """One line of a file of workloads.

    Parameters
    ----------
    definition : str
        Name of the definition.
    workload : Workload
        The workload.
    solution, evaluation : None, optional
        Null: a line with a solution is a trace.
    """

    definition: NonEmptyStr
    workload: data.Workload
    solution: None = None
    evaluation: None = None


MODELS: dict[str, type[SchemaModel]] = {
    "definition": data.Definition,
    "solution": data.Solution,
    "workload": WorkloadLine,
    "trace": data.Trace,
}
"""By kind of file: the model of the record in it, or on each of its lines."""

_WORDS = {"enum": ["NaN", "Infinity", "-Infinity"]}
_SAMPLES = {"type": "string", "pattern": "^f32:"}
_ALSO = {
    **dict.fromkeys(["max_relative_error", "max_absolute_error", "latency_ms"], _WORDS),
    **dict.fromkeys(["reference_latency_ms", "value"], _WORDS),
    **dict.fromkeys(["samples_ms", "reference_samples_ms"], _SAMPLES),
}
"""By field: JSON types that are allowed in addition to those of the model."""


def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON schema of a file, or of one of its lines.

    Spellings of older releases, which are still read, are not part of it.

    Parameters
    ----------
    kind : str
        One of `MODELS`.
    """
    schema = MODELS[kind].model_json_schema()
    _tidy(schema, MODELS[kind])
    for title, part in schema["$defs"].items():
        _tidy(part, getattr(data, title))
    fields = schema["properties"]
    if kind == "trace":
        schema["required"] += ["solution", "evaluation"]
        for field in ("solution", "evaluation"):
            fields[field]["anyOf"].remove({"type": "null"})
    fields["$schema"] = {"type": "string", "description": "Location of this schema, for editors."}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": kind, **schema}


def _tidy(part: dict[str, Any], model: type[Any]) -> None:
    """Describe each field, forbid others, and drop titles that pydantic generates."""
    text = inspect.getdoc(model) or ""
    part["description"] = _plain(text.partition("\n\n")[0])
    del part["title"]
    if "properties" not in part:
        return
    # Records that other programs may extend stay open.
    part["additionalProperties"] = model is data.Provenance
    said = dict(_descriptions(text))
    for name, field in part["properties"].items():
        field.pop("title", None)
        if "const" in field:  # optional in old files only
            part.setdefault("required", []).insert(0, name)
        if field.get("default", 0) is None or "const" in field:
            del field["default"]
        if name in _ALSO and model is not data.AxisConst:
            kinds = field.pop("anyOf", None) or [field.copy()]
            field.clear()
            field["anyOf"] = [*kinds, _ALSO[name]]
        if name in said:
            field["description"] = said[name]


def _descriptions(text: str) -> list[tuple[str, str]]:
    """Return the description of each field in a docstring."""
    parameters = text.partition("Parameters\n----------\n")[2]
    parts = re.findall(r"^(\w.*)\n((?:[ ]{4}.*\n?)+)", parameters, re.MULTILINE)
    return [
        (name.strip(), _plain(said))
        for names, said in parts
        for name in names.partition(" : ")[0].split(",")
    ]


def _plain(text: str) -> str:
    text = re.sub(r"\bNone\b", "null", text.replace("``", "`"))
    return " ".join(re.sub(r"\bTrue\b", "true", text).split())
