"""Descriptions of Python functions that language models can call: JSON Schema of their parameters.

The form is that of function calling of OpenAI.
"""

from __future__ import annotations

import inspect
import re
import typing
from typing import TYPE_CHECKING, Any

from pydantic import PydanticUserError, TypeAdapter

if TYPE_CHECKING:
    from collections.abc import Callable

Schema = dict[str, Any]

_PATH = ("format", "path")
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
    from fib_agents import ncu, sanitizer

    profilers = (ncu.flashinfer_bench_run_ncu, ncu.flashinfer_bench_list_ncu_options)
    functions = (*profilers, sanitizer.flashinfer_bench_run_sanitizer)
    return [function_to_schema(one) for one in functions]


def type_schema(kind: Any) -> Schema:
    """Return the JSON Schema of a type, without references.

    Parameters
    ----------
    kind : type
        Any type that pydantic knows.

    Raises
    ------
    TypeError
        If there is none, as for a callable.
    """
    try:
        made = TypeAdapter(kind).json_schema()
    except PydanticUserError as error:
        raise TypeError(f"there is no JSON Schema for {kind!r}: {error.message}") from None
    # References lead to the root of a document, which this is not.
    found: Schema = _inlined(made, made.pop("$defs", {}))
    return found


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
    # A discriminator refers to the definitions; the alternatives say the same. No provider knows
    # the format "path".
    found = {
        key: _inlined(value, definitions, within)
        for key, value in node.items()
        if not (key == "discriminator" and "propertyName" in value) and (key, value) != _PATH
    }
    if isinstance(choices := found.get("anyOf"), list):
        found["anyOf"] = [one for n, one in enumerate(choices) if one not in choices[:n]]
    return found


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
