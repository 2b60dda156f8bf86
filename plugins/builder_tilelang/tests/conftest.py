"""Definitions and solutions, made the way that dataset files are: from JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from fib_builder_tilelang.builder import TileLangBuilder
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
import tilelang
import tilelang.language as T

@tilelang.jit(TARGET)
def scaled_add(n):
    @T.prim_func
    def kernel(
        x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32"), scale: T.float32,
        out: T.Tensor((n,), "float32"),
    ):
        with T.Kernel(1) as _:
            for i in T.serial(n):
                out[i] = (x[i] + y[i]) * scale
    return kernel
"""
RETURNS = (
    KERNEL.replace("TARGET", 'out_idx=[-1], target="c", execution_backend="cython"')
    + "\ndef run(x, y, scale):\n"
    "    return scaled_add(x.numel())(x.flatten(), y.flatten(), scale).view(x.shape)\n"
)
WRITES = (
    KERNEL.replace("TARGET", 'target="c", execution_backend="cython"')
    + "\ndef run(x, y, scale, out):\n"
    "    scaled_add(x.numel())(x.flatten(), y.flatten(), scale, out.flatten())\n"
)


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory):
    """TileLang's own cache, one for all tests: it takes half a second to compile anything."""
    return tmp_path_factory.mktemp("of_tilelang")


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory, monkeypatch, kernel_cache):
    """Give each test a cache of its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FIB_CACHE_PATH", str(folder))
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(kernel_cache))
    return folder


@pytest.fixture
def in_child():
    """Return a function that runs Python code in a process of its own."""

    def run(code, **variables):
        return subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | variables,
        ).stdout

    return run


@pytest.fixture
def definition():
    """``out = (x + y) * scale``."""
    return Definition.model_validate_json(json.dumps(DEFINITION))


@pytest.fixture
def sources():
    """The same solution in both conventions."""
    return {"returns": RETURNS, "writes": WRITES}


@pytest.fixture
def make_solution():
    """Return a function that makes a solution from a source, or from several files."""

    def make(source=RETURNS, *, name="my_solution", files=None, entry="main.py::run", **spec):
        common = {"language": "tilelang", "target_hardware": ["cpu"], "entry_point": entry}
        record = {
            "name": name,
            "definition": DEFINITION["name"],
            "author": "tester",
            "spec": common | spec,
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
        made.append(TileLangBuilder().build(of or definition, solution))
        return made[-1]

    yield run
    for runnable in made:
        runnable.cleanup()


@pytest.fixture
def inputs():
    """Two matrices of 3 by 8 and a scale."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 8, generator=generator), torch.randn(3, 8, generator=generator), 0.5
