"""Which commands run, and what a build is said to depend on."""

import os
import re
import shutil
import sys

import pytest
import torch

from fib_builder_cuda_torch import probe, recipe
from fib_builder_cuda_torch.builder import TorchBuilder
from fib_native_toolkit import cuda_home
from fib_tests import forked
from flashinfer_bench.errors import CapabilityError

HAS_NVCC = shutil.which("nvcc") is not None


@pytest.fixture
def plan(definition):
    """Return a function that plans the build of a solution."""
    return lambda solution: TorchBuilder().plan(definition, solution)


class TestInstallation:
    def test_it_is_what_torch_says_of_itself(self):
        found = probe.find_torch()
        assert found.version == torch.__version__
        assert found.cuda == torch.version.cuda
        assert found.cxx11_abi == torch.compiled_with_cxx11_abi()
        assert (found.root / "__init__.py").samefile(torch.__file__)
        assert (found.library_path / "libc10.so").is_file()
        assert str(found) == f"torch {torch.__version__}"

    def test_paths_and_standard_are_those_of_torchs_own_builder(self, tmp_path):
        own = _torch_would_run(tmp_path, ["a.cpp"])["cflags"]
        found = probe.find_torch()
        assert f"-std={found.standard}" in own
        assert [str(path) for path in found.include_paths] == [
            path for path in _after("-isystem", own) if path.startswith(str(found.root))
        ]
        assert str(probe.find_python_headers()) in _after("-isystem", own)

    def test_a_torch_that_is_not_there(self, monkeypatch):
        monkeypatch.setattr(probe, "find_spec", lambda _: None)
        with pytest.raises(CapabilityError, match="torch is not installed"):
            probe.find_torch()


class TestFlags:
    def test_libraries_are_those_of_torchs_own_builder(self, tmp_path, plan, make_solution):
        own = _torch_would_run(tmp_path, ["a.cpp"])["ldflags"]
        ours = plan(make_solution("bare.cpp")).settings.libraries
        assert [flag for flag in ours if flag[:2] in ("-l", "-L")] == [
            flag for flag in own if flag[:2] in ("-l", "-L")
        ]

    def test_nvccs_flags_are_those_of_torchs_own_builder(
        self, tmp_path, plan, make_solution, cuda_torch
    ):
        own = _torch_would_run(tmp_path, ["a.cu"])["cuda_cflags"]
        ours = plan(make_solution("stable.cu", language="cuda")).settings.compilers["cuda"]
        known = [flag for flag in own if re.match(r"-D__|--expt|-gencode|-std", flag)]
        assert set(known) <= set(ours)
        assert len(known) == 7

    def test_cuda_of_another_release(self, plan, make_solution, monkeypatch, cuda_torch):
        other = probe.TorchInstallation(cuda_torch.root, "2.4", "9.2", True, "c++17")
        monkeypatch.setattr(recipe, "find_cuda_torch", lambda: other)
        with pytest.raises(CapabilityError, match=r"nvcc \S+ does not match torch 2.4"):
            plan(make_solution("stable.cu", language="cuda"))

    def test_a_cpp_solution_that_includes_cuda(self, plan, make_solution, cuda_torch):
        files = {"main.cpp": "#include <cuda_runtime.h>\n"}
        flags = plan(make_solution(files=files)).settings.libraries
        assert {"-lc10_cuda", "-ltorch_cuda", "-lcudart"} <= set(flags)
        assert (
            str(cuda_home() / "include")
            in plan(make_solution(files=files)).settings.compilers["cpp"]
        )


@pytest.mark.parametrize(
    "change", [{"version": "9.9"}, {"cxx11_abi": False}, {"standard": "c++26"}]
)
def test_another_torch_is_another_build(plan, make_solution, monkeypatch, change):
    before = plan(make_solution("bare.cpp"))
    real = probe.find_torch()
    monkeypatch.setattr(
        recipe, "find_torch", lambda: probe.TorchInstallation(**vars(real) | change)
    )
    after = plan(make_solution("bare.cpp"))
    assert after.key != before.key


def _torch_would_run(folder, sources):
    """Return the flags that torch's own extension builder writes into its ninja file."""
    code = (
        "import sys, torch.utils.cpp_extension as e\n"
        "e.CUDA_HOME = sys.argv[1]\n"
        "cuda = sys.argv[2].endswith('.cu')\n"
        "e._write_ninja_file_to_build_library(path='build.ninja', name='n', sources=sys.argv[2:],\n"
        "    extra_cflags=[], extra_cuda_cflags=[], extra_sycl_cflags=[], extra_include_paths=[],\n"
        "    extra_ldflags=e._prepare_ldflags([], cuda, False, False, False),\n"
        "    with_cuda=cuda, with_sycl=False, is_standalone=False)\n"
    )
    home = str(cuda_home()) if HAS_NVCC else "/usr/local/cuda"
    command = [sys.executable, "-c", code, home, *sources]
    environment = {**os.environ, "TORCH_CUDA_ARCH_LIST": "9.0a"}
    forked.run(command, cwd=folder, check=True, env=environment)
    found = re.findall(r"^(\w+) = (.*)$", (folder / "build.ninja").read_text(), re.MULTILINE)
    return {name: value.split() for name, value in found}


def _after(word, flags):
    return [flags[i + 1] for i, flag in enumerate(flags) if flag == word]
