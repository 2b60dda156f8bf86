"""Definitions and solutions, made from JSON; one cache for all tests: compilers run once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from fib_builder_tvmffi.builder import TVMFFIBuilder
from fib_builder_tvmffi.cuda import find_cuda
from flashinfer_bench.data import Definition, Solution
from flashinfer_bench.errors import CapabilityError

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

KERNELS = Path(__file__).parent / "kernels"


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """Return the cache that all tests of a run share, those of other workers as well."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "tvm-ffi-cache"


@pytest.fixture(autouse=True)
def cache_folder(shared_cache, monkeypatch):
    """Build in the shared cache, whatever the environment says about compilers."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(shared_cache))
    for name in ("CXX", "CC", "MAX_JOBS", "FIB_CUDA_ARCH_LIST", "NVCC_CCBIN"):
        monkeypatch.delenv(name, raising=False)
    return shared_cache


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """Give the test a cache of its own."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def nvcc():
    """Return CUDA's compiler; skip the test where there is none."""
    try:
        return find_cuda(["-arch=sm_90a"], compiles=True)
    except CapabilityError as error:
        pytest.skip(f"no CUDA toolkit: {error.message}")


@pytest.fixture
def kernels():
    """Return the folder with the sources that tests share."""
    return KERNELS


@pytest.fixture
def definition():
    """``out = (x + y) * scale``."""
    return Definition.model_validate_json(json.dumps(DEFINITION))


@pytest.fixture
def two_outputs():
    """The same with a second output, the difference."""
    record = json.loads(json.dumps(DEFINITION))
    record["name"] = "scaled_add_difference_h8"
    record["outputs"]["difference"] = {"shape": ["tokens", "hidden"], "dtype": "float32"}
    return Definition.model_validate_json(json.dumps(record))


@pytest.fixture
def make_solution():
    """Return a function that makes a solution from a source, or from several files.

    ``plain.h`` (see `EXPORT` there) is at hand for sources, and ``typed.h`` where `base` says so.
    """

    def make(
        source="EXPORT(run) { return add(args, 1.0); }",
        *,
        base="plain",
        name="my_solution",
        files=None,
        entry="kernel.cpp::run",
        options=None,
        **spec,
    ):
        header = f"{base}.h"
        files = files or {"kernel.cpp": f'#include "{header}"\n{source}\n'}
        files = {header: (KERNELS / header).read_text()} | files
        # They are not about speed; what a test asks for comes last, and counts.
        options = dict(options or {})
        options["cflags"] = ["-O0", *options.get("cflags", [])]
        record = {
            "name": name,
            "definition": DEFINITION["name"],
            "author": "tester",
            "spec": {
                "language": "cpp",
                "target_hardware": ["cpu"],
                "entry_point": entry,
                "compile_options": options,
            }
            | spec,
            "sources": [{"path": path, "content": text} for path, text in files.items()],
        }
        return Solution.model_validate_json(json.dumps(record))

    return make


@pytest.fixture
def build(definition):
    """Return a function that builds a solution, and cleans up after the test."""
    made = []

    def run(solution, of=None):
        made.append(TVMFFIBuilder().build(of or definition, solution))
        return made[-1]

    yield run
    for runnable in made:
        runnable.cleanup()


@pytest.fixture
def inputs():
    """Two matrices of 3 by 8 and a scale."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 8, generator=generator), torch.randn(3, 8, generator=generator), 0.5


@pytest.fixture
def expected(inputs):
    """What the definition's reference makes of them."""
    x, y, scale = inputs
    return (x + y) * scale


@pytest.fixture
def run(build, inputs):
    """Return a function that builds a solution, and returns what it makes of the inputs."""

    def call(solution):
        out = torch.full((3, 8), torch.nan)
        build(solution).call_destination_passing(*inputs, out)
        return out

    return call
