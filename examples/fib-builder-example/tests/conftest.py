"""Fixtures: a definition, a solution, and a temporary cache."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import torch
from flashinfer_bench.data import Definition, Solution

from fib_builder_example.builder import ExampleBuilder

DEFINITION = {
    "name": "scaled_add_h8",
    "op_type": "op",
    "axes": {"tokens": {"type": "var"}, "hidden": {"type": "const", "value": 8}},
    "inputs": {
        "x": {"shape": ["tokens", "hidden"], "dtype": "float32"},
        "y": {"shape": ["tokens", "hidden"], "dtype": "float32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"out": {"shape": ["tokens", "hidden"], "dtype": "float32"}},
    "reference": "def run(x, y, scale):\n    return (x + y) * scale\n",
}

SIGNATURE = "void run(const float *x, const float *y, float scale, float *out, int64_t tokens)"
SOURCE = f"""#include <stdint.h>

{SIGNATURE}
{{
    for (int64_t i = 0; i < tokens * AXIS_hidden; i++)
        out[i] = (x[i] + y[i]) * scale;
}}
"""


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """Give each test its own cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FIB_CACHE_PATH", str(folder))
    return folder


@pytest.fixture
def make_definition():
    """Return a function that makes the definition ``out = (x + y) * scale``, or a variant of it."""

    def make(**changes):
        return Definition.model_validate_json(json.dumps(deepcopy(DEFINITION) | changes))

    return make


@pytest.fixture
def definition(make_definition):
    """``out = (x + y) * scale``."""
    return make_definition()


@pytest.fixture
def make_solution():
    """Return a function that makes a solution from one source or from several files."""

    def make(source=SOURCE, *, files=None, entry="main.c::run", **spec):
        sources = files or {"main.c": source}
        stated = {
            "language": "c",
            "target_hardware": ["cpu"],
            "entry_point": entry,
        }
        record = {
            "name": "my_solution",
            "definition": DEFINITION["name"],
            "author": "tester",
            "spec": stated | spec,
            "sources": [{"path": path, "content": text} for path, text in sources.items()],
        }
        return Solution.model_validate_json(json.dumps(record))

    return make


@pytest.fixture
def build(definition):
    """Return a function that builds a solution, and cleans up after the test."""
    made = []

    def run(solution, of=None):
        made.append(ExampleBuilder().build(of or definition, solution))
        return made[-1]

    yield run
    for runnable in made:
        runnable.cleanup()


@pytest.fixture
def inputs():
    """Two matrices of 3 by 8, and a scale."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 8, generator=generator), torch.randn(3, 8, generator=generator), 0.5
