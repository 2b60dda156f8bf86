"""The problem that the tests of all builders pose, in C++."""

import subprocess
from pathlib import Path

import pytest
import torch

from fib_builder_tvmffi.builder import TVMFFIBuilder
from fib_native_toolkit.cuda import find_cuda
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
    with_output,
)
from flashinfer_bench.errors import CapabilityError

KERNELS = Path(__file__).parent / "kernels"


@pytest.fixture
def builder_class():
    return TVMFFIBuilder


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
def two_outputs():
    """The definition with a second output, the difference."""
    return with_output("scaled_add_difference_h8", "difference", ["tokens", "hidden"])


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
        common = {
            "language": "cpp",
            "target_hardware": ["cpu"],
            "entry_point": entry,
            "compile_options": options,
        }
        return solution_of(files, name=name, **(common | spec))

    return make


@pytest.fixture
def make_library():
    """Return a function that compiles a C source into a shared library."""

    def make(path, source):
        path.parent.mkdir(exist_ok=True)
        command = ["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(path)]
        subprocess.run(command, input=source, text=True, check=True)

    return make


@pytest.fixture
def run(build, inputs):
    """Return a function that builds a solution, and returns what it makes of the inputs."""

    def call(solution):
        out = torch.full((3, 8), torch.nan)
        build(solution).call_destination_passing(*inputs, out)
        return out

    return call
