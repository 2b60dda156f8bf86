"""Definitions and solutions, made the way that dataset files are: from JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from fib_builder_triton.builder import TritonBuilder
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

KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, out, scale, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total * scale, mask=inside)

def launch(x, y, scale, out):
    kernel[(triton.cdiv(x.numel(), 32),)](x, y, out, scale, x.numel(), BLOCK=32)
"""
RETURNS = (
    KERNEL
    + "\ndef run(x, y, scale):\n    out = torch.empty_like(x)\n    launch(x, y, scale, out)\n"
    "    return out\n"
)
WRITES = KERNEL + "\ndef run(x, y, scale, out):\n    launch(x, y, scale, out)\n"


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory, monkeypatch):
    """Give each test caches of its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FIB_CACHE_PATH", str(folder))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / "of_triton"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return folder


@pytest.fixture
def interpreted(monkeypatch):
    """Switch the interpreter on; nothing in this process may have imported triton without it."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def in_child():
    """Return a function that runs Python code in a process of its own, where triton compiles."""

    def run(code, *arguments, check=True, **variables):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | variables,
        )
        assert done.returncode == 0 or not check, done.stderr
        return done

    return run


@pytest.fixture
def definition():
    """``out = (x + y) * scale``."""
    return Definition.model_validate_json(json.dumps(DEFINITION))


@pytest.fixture
def make_solution():
    """Return a function that makes a solution from a source, or from several files."""

    def make(source=RETURNS, *, name="my_solution", files=None, entry="main.py::run", **spec):
        record = {
            "name": name,
            "definition": DEFINITION["name"],
            "author": "tester",
            "spec": {"language": "triton", "target_hardware": ["cuda"], "entry_point": entry}
            | spec,
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
        made.append(TritonBuilder().build(of or definition, solution))
        return made[-1]

    yield run
    for runnable in made:
        runnable.cleanup()


@pytest.fixture
def inputs():
    """Two matrices of 3 by 8 and a scale."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 8, generator=generator), torch.randn(3, 8, generator=generator), 0.5
