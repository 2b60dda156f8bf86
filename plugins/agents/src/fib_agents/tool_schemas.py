"""Descriptions of Python functions that language models can call: JSON Schema of their parameters.

The form is that of function calling of OpenAI; see `for_anthropic` and `for_gemini` for others.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import re
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

if TYPE_CHECKING:
    from collections.abc import Callable

Schema = dict[str, Any]

_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Path: {"type": "string"},
    Any: {},
    object: {},
}
_LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Iterable)
_DICTS = (dict, collections.abc.Mapping)
_NAMED = re.compile(r"(?P<names>\*{0,2}\w+(?:, ?\*{0,2}\w+)*)(?:\s*:.*)?")
_UNDERLINE = re.compile(r"-{3,}")


def function_to_schema(func: Callable[..., Any]) -> Schema:
    """Return the schema of a function for function calling, in the form of OpenAI.

    Parameters
    ----------
    func : callable
        Its annotations give the types, its NumPy docstring the descriptions.

    Returns
    -------
    dict
        ``{"type": "function", "function": {"name", "description", "parameters"}}``. Parameters
        without a default are required; one that takes several types has ``anyOf``.

    Raises
    ------
    TypeError
        If a type has no schema.
    """
    summary, described = read_docstring(inspect.getdoc(func) or "")
    hints = typing.get_type_hints(func)
    properties: dict[str, Schema] = {}
    required = []
    for name, parameter in inspect.signature(func).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        try:
            schema = type_schema(hints.get(name, Any))
        except TypeError as error:
            raise TypeError(f"{func.__name__}, parameter {name}: {error}") from None
        if text := described.get(name):
            schema["description"] = text
        if parameter.default is parameter.empty:
            required.append(name)
        elif isinstance(parameter.default, (bool, int, float, str, type(None))):
            schema["default"] = parameter.default
        properties[name] = schema
    parameters: Schema = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {
            "name": func.__name__,
            "description": summary,
            "parameters": {**parameters, "additionalProperties": False},
        },
    }


def get_all_tool_schemas() -> list[Schema]:
    """Return the schemas of the tools for agents that are plain functions.

    Returns
    -------
    list of dict
        Of `flashinfer_bench_run_ncu`, `flashinfer_bench_list_ncu_options` and
        `flashinfer_bench_run_sanitizer`.
    """
    from fib_agents.ncu import flashinfer_bench_list_ncu_options, flashinfer_bench_run_ncu
    from fib_agents.sanitizer import flashinfer_bench_run_sanitizer

    functions: tuple[Callable[..., Any], ...] = (
        flashinfer_bench_run_ncu,
        flashinfer_bench_list_ncu_options,
        flashinfer_bench_run_sanitizer,
    )
    return [function_to_schema(one) for one in functions]


def for_anthropic(schema: Schema) -> Schema:
    """Return a schema in the form of Anthropic's Messages API.

    Parameters
    ----------
    schema : dict
        As of `function_to_schema`.

    Returns
    -------
    dict
        ``{"name", "description", "input_schema"}``.
    """
    function = schema["function"]
    return {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
    }


def for_gemini(schema: Schema) -> Schema:
    """Return a schema as a ``FunctionDeclaration`` of Gemini, which takes JSON Schema.

    Parameters
    ----------
    schema : dict
        As of `function_to_schema`.

    Returns
    -------
    dict
        ``{"name", "description", "parametersJsonSchema"}``.
    """
    function = schema["function"]
    return {
        "name": function["name"],
        "description": function["description"],
        "parametersJsonSchema": function["parameters"],
    }


def type_schema(kind: Any) -> Schema:
    """Return the JSON Schema of a type.

    Parameters
    ----------
    kind : type
        A plain type, `Path`, ``Literal``, an enumeration, a union, a list, a tuple of any length, a
        mapping, a dataclass or a pydantic model.

    Raises
    ------
    TypeError
        If there is none, as for a callable.
    """
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return type_schema(parts[0])
    if origin is Literal:
        return _values(parts)
    if origin in (Union, types.UnionType):
        return _union(parts)
    if (origin or kind) in _LISTS:
        return {"type": "array", "items": type_schema(parts[0]) if parts else {}}
    if (origin or kind) in _DICTS:
        values = type_schema(parts[1]) if len(parts) == 2 else {}
        return {"type": "object", "additionalProperties": values or True}
    if inspect.isclass(kind):
        return _class(kind)
    raise TypeError(f"there is no JSON Schema for {kind!r}")


def _class(kind: Any) -> Schema:
    if hasattr(kind, "model_json_schema"):
        made = kind.model_json_schema()
        # References lead to the root of a document, which this is not.
        found: Schema = _inlined(made, made.pop("$defs", {}))
        return found
    if issubclass(kind, enum.Enum):
        return _values([one.value for one in kind])
    if dataclasses.is_dataclass(kind):
        hints, fields = typing.get_type_hints(kind), [*dataclasses.fields(kind)]
        needed = [one.default is one.default_factory is dataclasses.MISSING for one in fields]
        return {
            "type": "object",
            "properties": {one.name: type_schema(hints[one.name]) for one in fields},
            "required": [one.name for one, bare in zip(fields, needed, strict=True) if bare],
            "additionalProperties": False,
        }
    raise TypeError(f"there is no JSON Schema for {kind!r}")


def _inlined(node: Any, definitions: dict[str, Any], within: tuple[str, ...] = ()) -> Any:
    if isinstance(node, list):
        return [_inlined(one, definitions, within) for one in node]
    if not isinstance(node, dict):
        return node
    name = str(node.get("$ref", "")).removeprefix("#/$defs/")
    if name in within:
        return {}  # a record that contains itself: anything is allowed there
    if name in definitions:
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _inlined({**definitions[name], **rest}, definitions, (*within, name))
    # Its mapping refers to the definitions; the alternatives say the same.
    return {
        key: _inlined(value, definitions, within)
        for key, value in node.items()
        if not (key == "discriminator" and "propertyName" in value)
    }


def _values(values: Any) -> Schema:
    every = list(values)
    kinds = list(dict.fromkeys(_PLAIN.get(type(one), {}).get("type") for one in every))
    return {"type": kinds[0], "enum": every} if len(kinds) == 1 and kinds[0] else {"enum": every}


def _union(parts: tuple[Any, ...]) -> Schema:
    schemas: list[Schema] = []
    for one in map(type_schema, parts):
        if one not in schemas:
            schemas.append(one)
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return what a NumPy docstring says before its first section, and about each parameter.

    Parameters
    ----------
    text : str
        A docstring without its indentation, as of `inspect.getdoc`.
    """
    lines = text.splitlines()
    starts = [n for n, line in enumerate(lines) if n and _UNDERLINE.fullmatch(line.strip())]
    first = starts[0] - 1 if starts else len(lines)
    summary = "\n".join(lines[:first]).strip()
    described: dict[str, list[str]] = {}
    for start, end in zip(starts, [*(n - 1 for n in starts[1:]), len(lines)], strict=False):
        names: list[str] = []
        for line in lines[start + 1 : end] if lines[start - 1].strip() == "Parameters" else ():
            head = _NAMED.fullmatch(line) if line and not line[0].isspace() else None
            if head is not None:
                names = [one.strip(" *") for one in head["names"].split(",")]
            for name in names if head is None else ():
                described.setdefault(name, []).append(line.strip())
    return summary, {name: " ".join(filter(None, told)) for name, told in described.items()}
