"""The problem that the tests of all builders pose, in the files of ``sources``."""

import dataclasses
from pathlib import Path

import pytest

from fib_builder_cuda_torch import probe, recipe
from fib_builder_cuda_torch.builder import TorchBuilder
from fib_native_toolkit import find_nvcc
from fib_tests.scaled_add import (
    build,
    cache_folder,
    definition,
    expected,
    inputs,
    on_gpu,
    own_cache,
    pytest_collection_modifyitems,
    shared_cache,
    solution_of,
    two_outputs,
)
from flashinfer_bench.errors import CapabilityError

SOURCES = Path(__file__).parent / "sources"


@pytest.fixture(scope="session")
def source():
    """Return a function that reads a file of ``sources``."""
    return lambda name: (SOURCES / name).read_text(encoding="utf-8")


@pytest.fixture
def make_solution(source):
    """Return a function that makes a solution of files: of ``sources`` by name, or with a text."""

    def make(*names, name="my_solution", files=None, entry=None, **spec):
        texts = {path: source(path) for path in names} | (files or {})
        common = {"language": "cpp", "binding": "torch", "target_hardware": ["cpu"]}
        common["entry_point"] = entry or f"{next(iter(texts))}::run"
        return solution_of(texts, name=name, **(common | spec))

    return make


@pytest.fixture
def cuda_torch(monkeypatch):
    """Have the installed torch count as one for CUDA; skip the test where there is no nvcc."""
    try:
        nvcc = find_nvcc()
    except CapabilityError as error:
        pytest.skip(error.message)
    real = probe.find_torch()
    found = dataclasses.replace(real, cuda=real.cuda or nvcc.number)
    monkeypatch.setattr(recipe, "find_torch", lambda: found)
    monkeypatch.setattr(recipe, "find_cuda_torch", lambda: found)
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a")
    return found


@pytest.fixture
def builder_class():
    return TorchBuilder
