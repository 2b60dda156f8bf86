"""Definitions, solutions and a builder that counts: what tests of building need, and no plugin.

Each test has a cache of its own: import `cache_folder` into a conftest for that.
"""

from __future__ import annotations

import os

import pytest

from flashinfer_bench.compile import Builder, Runnable, RunnableMetadata
from flashinfer_bench.compile.toolkit import load_python
from flashinfer_bench.data import Definition, Solution
from flashinfer_bench.errors import CapabilityError

MATRIX = {"shape": ["n", "k"], "dtype": "float32"}
VECTOR = {"shape": ["n"], "dtype": "float32"}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory, monkeypatch):
    """Give each test a cache of its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FIB_CACHE_PATH", str(folder))
    return folder


@pytest.fixture(scope="session")
def helper_cache(tmp_path_factory):
    """A cache with the compiled helper, made once for all workers."""
    pytest.importorskip("fib_apply_helper")
    from flashinfer_bench.apply.dispatch import recognition

    place = tmp_path_factory.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIB_CACHE_PATH", str(place / "helper-cache"))
        try:
            recognition.build_helper()
        except CapabilityError as error:
            pytest.skip(f"the helper cannot be compiled here: {error.message}")
    return place / "helper-cache"


@pytest.fixture
def make_definition():
    """Return a function that makes a definition; by default two matrices in, one out."""

    def make(inputs=None, outputs=None, *, name="add_k4", **fields):
        return Definition(
            name=name,
            op_type="op",
            axes={"n": {"type": "var"}, "k": {"type": "const", "value": 4}},
            inputs=inputs or {"x": MATRIX, "y": MATRIX},
            outputs=outputs or {"z": MATRIX},
            **{"reference": "def run(x, y):\n    return x + y\n", **fields},
        )

    return make


@pytest.fixture
def definition(make_definition):
    """``z = x + y`` for matrices of n by 4."""
    return make_definition()


@pytest.fixture
def make_solution():
    """Return a function that makes a Python solution of one file, or of the files given."""

    def make(source="def run(x, y):\n    return x + y\n", *, name="solution", files=None, **spec):
        files = files or {"main.py": source}
        return Solution(
            name=name,
            definition="add_k4",
            author="author",
            spec={
                "language": "python",
                "target_hardware": ["cpu"],
                "entry_point": "main.py::run",
                **spec,
            },
            sources=[{"path": path, "content": text} for path, text in files.items()],
        )

    return make


class CountingBuilder(Builder):
    """Builds Python, and counts how often it was asked to."""

    shares_builds = False

    def __init__(self, prefix: str = "counting") -> None:
        super().__init__(prefix, prefix)
        self.asked: list[str] = []
        self.cleaned: list[str] = []

    def can_build(self, solution):
        return solution.spec.language == "python"

    def build(self, definition, solution):
        self.asked.append(solution.name)
        loaded = load_python(definition, solution, prefix=self.package_prefix)

        def clean():
            self.cleaned.append(solution.name)
            loaded.cleaner()

        metadata = RunnableMetadata(
            build_type="python",
            definition_name=definition.name,
            solution_name=solution.name,
            destination_passing_style=loaded.destination_passing_style,
            definition=definition,
        )
        return Runnable(loaded.function, metadata, clean)


@pytest.fixture
def builder():
    """A builder for Python that counts."""
    return CountingBuilder()
