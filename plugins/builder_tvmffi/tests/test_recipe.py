"""Commands, without running them."""

from pathlib import Path

import pytest

from fib_builder_tvmffi import recipe
from fib_builder_tvmffi.recipe import make_recipe
from fib_native_toolkit import Tool, cuda, environment
from fib_native_toolkit import recipe as native_recipe

NVCC = Tool("nvcc", Path("/cuda/bin/nvcc"), "release 13.0, V13.0.88")


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """Make a CUDA toolkit of empty files, and have it found, with one GPU."""
    for folder, file in (("include", "cuda_runtime.h"), ("lib64", "libcudart.so.13")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).touch()
    (tmp_path / "lib64" / "stubs").mkdir()
    monkeypatch.setattr(cuda, "find_nvcc", lambda: NVCC)
    monkeypatch.setattr(cuda, "cuda_home", lambda: tmp_path)
    monkeypatch.setattr(environment, "cuda_architectures", lambda: ("8.0", "9.0a"))
    return tmp_path


@pytest.fixture
def cuda_recipe(make_solution, toolkit):
    """Return a function that makes the recipe of a solution with a ``.cu`` and a ``.cpp``."""

    def make(flags=(), files=("kernel.cu", "main.cpp"), **options):
        solution = make_solution(
            files=dict.fromkeys(files, "int x;"),
            entry=f"{files[0]}::run",
            language="cuda",
            options={"cuda_cflags": list(flags), **options},
        )
        return make_recipe(solution)

    return make


class TestCuda:
    def test_code_for_each_architecture(self, cuda_recipe):
        made, key = cuda_recipe()
        assert "-gencode=arch=compute_80,code=sm_80" in made.compilers["cuda"]
        assert "-gencode=arch=compute_90a,code=sm_90a" in made.compilers["cuda"]
        assert key["cuda_architectures"] == "8.0 9.0a"
        assert key["nvcc"] == NVCC.version
        assert not any("gencode" in flag for flag in made.compilers["cpp"])

    @pytest.mark.parametrize(
        "flags", [("-arch=sm_90a",), ("-gencode arch=compute_90a,code=sm_90a",)]
    )
    def test_unless_the_solution_chooses(self, cuda_recipe, flags, monkeypatch):
        def fail():
            raise AssertionError("GPUs do not matter")

        monkeypatch.setattr(environment, "cuda_architectures", fail)
        made, key = cuda_recipe(flags)
        assert "-gencode=arch=compute_80,code=sm_80" not in made.compilers["cuda"]
        assert key["cuda_architectures"] == ""

    def test_the_host_compiler_is_the_one_for_cpp(self, cuda_recipe, monkeypatch):
        made, _ = cuda_recipe()
        command = made.compilers["cuda"]
        assert command[command.index("-ccbin") + 1] == made.compilers["cpp"][0]
        monkeypatch.setenv("NVCC_CCBIN", "/opt/gcc")
        assert "-ccbin" not in cuda_recipe()[0].compilers["cuda"]

    @pytest.mark.parametrize(
        ("arguments", "host"), [(("g++",), "g++"), (("-m64",), "/bin/ccache"), ((), "/bin/ccache")]
    )
    def test_ccache_is_no_host_compiler(self, cuda_recipe, monkeypatch, arguments, host):
        tool = Tool("c++", Path("/bin/ccache"), "12.2", arguments)
        monkeypatch.setattr(native_recipe, "find_cxx", lambda: tool)
        command = cuda_recipe()[0].compilers["cuda"]
        assert command[command.index("-ccbin") + 1] == host

    @pytest.mark.parametrize(
        ("flags", "linked"),
        [(("-rdc=true",), True), (("-dc",), True), (("-rdc=false",), False), ((), False)],
    )
    def test_code_that_is_to_be_linked_is(self, cuda_recipe, flags, linked):
        made, _ = cuda_recipe(flags)
        assert bool(made.device_link) is linked
        assert ("-lcudadevrt" in made.libraries) is linked


@pytest.mark.parametrize(
    ("text", "libraries"),
    [
        ("#include <cublas_v2.h>", ["cublas"]),
        ("#include <cudnn.h>\n#include <cute/tensor.hpp>", ["cudnn", "cutlass"]),
        ("// #include <cudnn.h>\n#include <my/cudnn.h>", []),
    ],
)
def test_libraries_that_are_included_are_looked_for(make_solution, monkeypatch, text, libraries):
    asked = []

    def find(names):
        asked.extend(names)
        return [], []

    monkeypatch.setattr(recipe, "find_dependencies", find)
    monkeypatch.setattr(native_recipe, "find_dependencies", lambda names: ([], []))
    make_recipe(make_solution(text))
    assert asked == libraries
