"""Checks for unknown fields. Readers ignore them, so a misspelt field has no effect."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Optional, get_args, get_origin

from flashinfer_bench.data import Definition, Solution, Trace, layout
from flashinfer_bench.data.base import SchemaModel
from flashinfer_bench.data.jsonl import read_records
from flashinfer_bench.validate.records import RecordCheck

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flashinfer_bench.validate.records import Finding, Place

_names = re.compile(rb'"[^"\\]+" *:').findall
_Models = tuple[type[SchemaModel], ...]

_IN_FOLDERS: _Models = (Definition, Solution, Trace, Trace)
RECORDS = dict(zip(layout.FOLDERS, _IN_FOLDERS, strict=False))
"""The model of the records in each folder."""

_TEMPLATE = "schema_version custom_inputs_entrypoint init check optional param"  # of FlashInfer
ELSEWHERE = {
    "Definition": _TEMPLATE,
    "TensorSpec": _TEMPLATE,
    "AxisVar": "parent",
    "BuildSpec": "build_commands build_steps",
    "Workload": "checks",
    "Evaluation": "error log_file hardware_id",
    "Environment": "hardware_id",
    "Correctness": "has_nan has_inf",
}
"""By model: fields that older releases and other programs write, and that are not reported."""


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _is_model(part: Any) -> bool:
    # In Python 3.10 `list[str]` is a type as well.
    return get_origin(part) is None and isinstance(part, type) and issubclass(part, SchemaModel)


@cache
def _fields(models: _Models) -> dict[str, tuple[_Models, bool]]:
    """Return the models of each field by name, and whether the field has many records."""
    known: dict[str, tuple[_Models, bool]] = {}
    for model in models:
        known |= dict.fromkeys(["$schema", *ELSEWHERE.get(model.__name__, "").split()], ((), False))
        for name, field in model.model_fields.items():
            known |= dict.fromkeys(getattr(field.validation_alias, "choices", ()), ((), False))
            parts = list(_parts(field.annotation))
            inner = tuple(filter(_is_model, parts))
            many = any(get_origin(part) in (dict, list) for part in parts)
            # Other programs may add anything to a provenance.
            known[name] = () if name == "provenance" else inner, many
    return known


def unknown_fields(models: _Models, record: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields of a decoded record that the format does not have.

    Parameters
    ----------
    models : tuple of type
        Possible models of the record; if there are several, its ``type`` selects one.
    record : Any
        The record, valid or not.
    at : str
        Dotted path of the record.

    Yields
    ------
    tuple of str
        Dotted path of the field, and the most similar known name; empty if none is similar.
    """
    if not isinstance(record, dict):
        return
    kinds = {str(model.model_fields["type"].default): model for model in models[1:] and models}
    mine = (kinds[kind],) if (kind := str(record.get("type"))) in kinds else models
    known = _fields(mine)
    for name, value in record.items():
        if name not in known:
            near = get_close_matches(name, [n for m in models for n in m.model_fields], n=1)
            yield f"{at}{name}", near[0] if near and near[0] != name else ""
            continue
        inner, many = known[name]
        if inner and not many:
            yield from unknown_fields(inner, value, f"{at}{name}.")
        elif inner and isinstance(value, (dict, list)):
            for key, one in value.items() if isinstance(value, dict) else enumerate(value):
                yield from unknown_fields(inner, one, f"{at}{name}.{key}.")


def _check_file(folder: str, path: Path, place: Place) -> Iterator[Finding]:
    """Find unknown fields; each is reported once per file."""
    if place.check != folder:
        return
    seen: dict[tuple[str, str], list[Optional[int]]] = {}
    right: set[tuple[bytes, ...]] = set()
    with suppress(OSError):  # the check of core reports files that cannot be read or decoded
        for line, text in read_records(path, lambda *_: None):
            if (names := tuple(_names(text))) in right:
                continue  # usually all lines have the same fields
            try:
                record = json.loads(text)
            except (ValueError, RecursionError):
                continue
            found = list(unknown_fields((RECORDS[folder],), record))
            right |= set() if found else {names}
            for each in found:
                seen.setdefault(each, []).append(line)
            if folder == layout.SOLUTIONS:
                yield from _check_entry(record, place)
    for (field, near), at in seen.items():
        told = f'unknown field "{field.rpartition(".")[2]}"'
        told += f': did you mean "{near}"?' if near else "; it is ignored"
        told += f" (on {len(at)} lines of this file)" if len(at) > 1 else ""
        yield place._replace(line=at[0]).warning(told, field)


def _check_entry(record: Any, place: Place) -> Iterator[Finding]:
    spec = record.get("spec") if isinstance(record, dict) else None
    entry = spec.get("entry_point") if isinstance(spec, dict) else None
    if isinstance(entry, str) and entry.isidentifier():
        message = f'the entry point has no file: write "FILE::{entry}"'
        yield place.warning(message, "spec.entry_point")


DEFINITIONS, SOLUTIONS, WORKLOADS, TRACES = (
    RecordCheck(file=partial(_check_file, folder)) for folder in RECORDS
)
