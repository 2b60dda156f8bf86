"""Schemas for function calling: from signatures and docstrings."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

import jsonschema
import pytest
from pydantic import BaseModel

from fib_agents import function_to_schema, get_all_tool_schemas
from fib_agents.tool_schemas import type_schema
from flashinfer_bench.data import Definition, Solution, Workload

# As OpenAI documents it; unknown keys are refused.
SHAPE = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
                "description": {"type": "string", "minLength": 1},
                "parameters": {"type": "object", "required": ["type", "properties"]},
            },
            "required": ["name", "description", "parameters"],
            "additionalProperties": False,
        },
    },
    "required": ["type", "function"],
    "additionalProperties": False,
}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: Optional[float] = None
    tags: list[str] = field(default_factory=list)


class Tree(BaseModel):
    name: str
    parts: list[Tree] = []


def sample(
    text: str,
    count: int = 3,
    *,
    ratio: Optional[float] = None,
    level: Literal["off", "auto"] = "auto",
    paths: Sequence[Path] = (),
    flags: dict[str, bool],
    point: Point,
    **others: Any,
) -> str:
    """Do something with a text.

    It takes its time.

    Parameters
    ----------
    text : str
        The text,
        in one or more lines.
    count, ratio : number
        Some numbers.
    level : {'off', 'auto'}
        How
    paths
        Files.
    **others
        Ignored.

    Returns
    -------
    text : str
        Not a parameter.
    """
    return text


def test_a_function() -> None:
    function = function_to_schema(sample)["function"]
    parameters = function["parameters"]
    assert function["description"] == "Do something with a text.\n\nIt takes its time."
    assert parameters["required"] == ["text", "flags", "point"]
    assert parameters["additionalProperties"] is False
    assert parameters["properties"] == {
        "text": {"type": "string", "description": "The text, in one or more lines."},
        "count": {"type": "integer", "default": 3, "description": "Some numbers."},
        "ratio": {
            "anyOf": [{"type": "number"}, {"type": "null"}],
            "default": None,
            "description": "Some numbers.",
        },
        "level": {
            "type": "string",
            "enum": ["off", "auto"],
            "default": "auto",
            "description": "How",
        },
        "paths": {"type": "array", "items": {"type": "string"}, "description": "Files."},
        "flags": {"type": "object", "additionalProperties": {"type": "boolean"}},
        "point": type_schema(Point),
    }


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (bool, [True], ["x", 1]),
        (Union[int, str, None], [1, "x", None], [1.5, []]),
        (int | None, [None, 3], ["x"]),
        (Annotated[int, "unit"], [3], ["x"]),
        (Literal["a", 1], ["a", 1], ["b"]),
        (Colour, ["red"], ["green"]),
        (Point, [{"x": 1}, {"x": 1, "y": None, "tags": ["a"]}], [{}, {"x": "a"}]),
        (list, [[1, "x"]], [1]),
        (tuple[int, ...], [[], [1, 2]], [["x"]]),
        (Mapping[str, int], [{"a": 1}], [{"a": "x"}]),
        (dict, [{"a": 1}], [[]]),
        (Any, [None, 1], []),
        (Path, ["a/b"], [1]),
        (Union[Path, str, None], ["a/b", None], [1]),
        (Tree, [{"name": "a", "parts": [{"name": "b"}]}], [{}]),
    ],
)
def test_types(kind, good, bad) -> None:
    schema = type_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert all(validator.is_valid(value) for value in good)
    assert not any(validator.is_valid(value) for value in bad)


@pytest.mark.parametrize("kind", [Definition, Solution, Workload])
def test_records_need_no_references(kind) -> None:
    schema = type_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert "$ref" not in str(schema)
    assert "$defs" not in str(schema)


def test_a_type_without_schema_is_named() -> None:
    def takes_function(work: Callable[[], None]) -> None:
        """Do it."""

    with pytest.raises(TypeError, match="takes_function, parameter work"):
        function_to_schema(takes_function)


def test_all_tools() -> None:
    schemas = get_all_tool_schemas()
    assert len({one["function"]["name"] for one in schemas}) == 3
    for schema in schemas:
        jsonschema.validate(schema, SHAPE)
        jsonschema.Draft202012Validator.check_schema(schema["function"]["parameters"])
        properties = schema["function"]["parameters"]["properties"]
        assert all(one.get("description") for one in properties.values()), properties
