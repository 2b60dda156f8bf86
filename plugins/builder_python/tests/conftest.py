"""Definitions and solutions, made the way that dataset files are: from JSON."""

from __future__ import annotations

import json

import pytest
import torch

from fib_builder_python.builder import PythonBuilder
from flashinfer_bench.data import Definition, Solution

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

RETURNS = "def run(x, y, scale):\n    return (x + y) * scale\n"
WRITES = "def run(x, y, scale, out):\n    out.copy_((x + y) * scale)\n"


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory, monkeypatch):
    """Give each test a cache of its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FIB_CACHE_PATH", str(folder))
    return folder


@pytest.fixture
def definition():
    """``out = (x + y) * scale``."""
    return Definition.model_validate_json(json.dumps(DEFINITION))


@pytest.fixture
def two_outputs():
    """The same with a second output, the row sums."""
    record = json.loads(json.dumps(DEFINITION))
    record["name"] = "scaled_add_sum_h8"
    record["outputs"]["total"] = {"shape": ["tokens"], "dtype": "float32"}
    return Definition.model_validate_json(json.dumps(record))


@pytest.fixture
def make_solution():
    """Return a function that makes a solution from a source, or from several files."""

    def make(source=RETURNS, *, name="my_solution", files=None, entry="main.py::run", **spec):
        record = {
            "name": name,
            "definition": DEFINITION["name"],
            "author": "tester",
            "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": entry} | spec,
            "sources": [
                {"path": path, "content": text}
                for path, text in (files or {"main.py": source}).items()
            ],
        }
        return Solution.model_validate_json(json.dumps(record))

    return make


@pytest.fixture
def build(definition):
    """Return a function that builds a solution, and cleans up after the test."""
    made = []

    def run(solution, of=None):
        made.append(PythonBuilder().build(of or definition, solution))
        return made[-1]

    yield run
    for runnable in made:
        runnable.cleanup()


@pytest.fixture
def inputs():
    """Two matrices of 3 by 8 and a scale."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 8, generator=generator), torch.randn(3, 8, generator=generator), 0.5
