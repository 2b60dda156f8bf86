"""``out = (x + y) * scale``: the problem that the tests of all builders pose.

Definitions and solutions are made the way that dataset files are: from JSON.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fib_tests import forked
from flashinfer_bench.data import Definition, Solution

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

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


def with_output(name: str, output: str, shape: list[str]) -> Definition:
    """Make the definition with a second output."""
    record = copy.deepcopy(DEFINITION)
    record["name"] = name
    record["outputs"][output] = {"shape": shape, "dtype": "float32"}
    return Definition.model_validate_json(json.dumps(record))


def solution_of(files: Mapping[str, str], *, name: str = "my_solution", **spec: Any) -> Solution:
    """Make a solution of texts by path."""
    record = {
        "name": name,
        "definition": DEFINITION["name"],
        "author": "tester",
        "spec": spec,
        "sources": [{"path": path, "content": text} for path, text in files.items()],
    }
    return Solution.model_validate_json(json.dumps(record))


def maker_of(source: str, language: str, hardware: str) -> Callable[..., Solution]:
    """Return a function that makes a solution from a source, or from several files."""

    def make(source=source, *, name="my_solution", files=None, entry="main.py::run", **spec):
        common = {"language": language, "target_hardware": [hardware], "entry_point": entry}
        return solution_of(files or {"main.py": source}, name=name, **(common | spec))

    return make


def run_in_child(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | variables,
    )
    assert done.returncode == 0, done.stderr
    return done


_READ = """
import sys
from flashinfer_bench.data import Definition, Solution

definition = Definition.model_validate_json(sys.argv[1])
solution = Solution.model_validate_json(sys.argv[2])
"""


def run_on(
    code: str, definition: Definition, solution: Solution
) -> subprocess.CompletedProcess[str]:
    """Run Python code about a `definition` and a `solution` in a process of its own."""
    records = (one.model_dump_json(exclude_unset=True) for one in (definition, solution))
    return run_in_child(_READ + code, *records)


def run_example(readme: Path, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the example in Python of a page, from a file, in a process that works in `folder`."""
    text = readme.read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (folder / "example.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-W", "error", "example.py"]
    done = forked.run(command, cwd=folder, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    return done


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture
def definition() -> Definition:
    """``out = (x + y) * scale``."""
    return Definition.model_validate_json(json.dumps(DEFINITION))


@pytest.fixture
def two_outputs() -> Definition:
    """The same with a second output, the row sums."""
    return with_output("scaled_add_sum_h8", "total", ["tokens"])


@pytest.fixture
def build(definition, builder_class):
    """Return a function that builds a solution by `builder_class`, and cleans up after the test."""
    made = []

    def run(solution, of=None):
        made.append(builder_class().build(of or definition, solution))
        return made[-1]

    yield run
    for runnable in made:
        runnable.cleanup()


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.Tensor, float]:
    """Two matrices of 3 by 8 and a scale."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 8, generator=generator), torch.randn(3, 8, generator=generator), 0.5


@pytest.fixture
def expected(inputs: tuple[torch.Tensor, torch.Tensor, float]) -> torch.Tensor:
    """What the definition's reference makes of them."""
    x, y, scale = inputs
    return (x + y) * scale


@pytest.fixture
def on_gpu(inputs: tuple[torch.Tensor, torch.Tensor, float]) -> tuple[Any, ...]:
    """The inputs on the GPU."""
    x, y, scale = inputs
    return x.cuda(), y.cuda(), scale


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache that all tests share, those of other workers included: builds take seconds."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def cache_folder(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use the shared cache, and let the environment say nothing about compilers."""
    for name in ("CXX", "CC", "MAX_JOBS", "FIB_CUDA_ARCH_LIST", "NVCC_CCBIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FIB_CACHE_PATH", str(shared_cache))
    return shared_cache


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache, for this test alone."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    return tmp_path / "cache"
