"""Definitions, solutions made of the files in ``sources``, and one cache for the whole session."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from fib_builder_cuda_torch import installation, recipe
from fib_builder_cuda_torch.builder import TorchBuilder
from flashinfer_bench.compile.toolkit import find_nvcc
from flashinfer_bench.data import Definition, Solution
from flashinfer_bench.errors import CapabilityError

SOURCES = Path(__file__).parent / "sources"

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


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """Return a cache that all tests share, those of other workers included: builds take seconds."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "cuda-torch-cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def cache_folder(shared_cache, monkeypatch):
    """Use the shared cache, whatever the environment says about compilers."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(shared_cache))
    for name in ("CXX", "CC", "MAX_JOBS", "FIB_CUDA_ARCH_LIST", "NVCC_CCBIN"):
        monkeypatch.delenv(name, raising=False)
    return shared_cache


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Use an empty cache, for this test alone."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def source():
    """Return a function that reads a file of ``sources``."""
    return lambda name: (SOURCES / name).read_text(encoding="utf-8")


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
def make_solution(source):
    """Return a function that makes a solution of files: of ``sources`` by name, or with a text."""

    def make(*names, name="my_solution", files=None, entry=None, **spec):
        texts = {path: source(path) for path in names} | (files or {})
        record = {
            "name": name,
            "definition": DEFINITION["name"],
            "author": "tester",
            "spec": {
                "language": "cpp",
                "binding": "torch",
                "target_hardware": ["cpu"],
                "entry_point": entry or f"{next(iter(texts))}::run",
            }
            | spec,
            "sources": [{"path": path, "content": text} for path, text in texts.items()],
        }
        return Solution.model_validate_json(json.dumps(record))

    return make


@pytest.fixture
def cuda_torch(monkeypatch):
    """Have the installed torch count as one for CUDA; skip the test where there is no nvcc."""
    try:
        nvcc = find_nvcc()
    except CapabilityError as error:
        pytest.skip(error.message)
    real = installation.find_torch()
    found = dataclasses.replace(real, cuda=real.cuda or nvcc.number)
    monkeypatch.setattr(recipe, "find_torch", lambda: found)
    monkeypatch.setattr(recipe, "find_cuda_torch", lambda: found)
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a")
    return found


@pytest.fixture
def build(definition):
    """Return a function that builds a solution."""
    return lambda solution, of=None: TorchBuilder().build(of or definition, solution)


@pytest.fixture
def inputs():
    """Two matrices of 3 by 8 and a scale."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 8, generator=generator), torch.randn(3, 8, generator=generator), 0.5
