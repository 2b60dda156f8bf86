"""Finding compilers: real ones, and some that only pretend."""

import os
import shlex

import pytest

from fib_native_toolkit import cuda_home, find_cxx, find_nvcc, tools
from flashinfer_bench.errors import CapabilityError

NVCC = """\
nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Built on Wed_Aug_20_01:58:59_PM_PDT_2025
Cuda compilation tools, release 13.0, V13.0.88
Build cuda_13.0.r13.0/compiler.36424714_0"""


@pytest.fixture
def only(tmp_path, monkeypatch):
    """Leave nothing on PATH but an empty folder, and nothing in the usual places."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(tools, "_USUAL_CUDA", tmp_path / "no-cuda")
    return folder


@pytest.fixture
def says(script):
    """Return a function that makes a program which answers ``--version``."""

    def make(name, text, folder):
        return script(name, f"echo {shlex.quote(text)}", folder)

    return make


class TestCompilers:
    def test_one_that_is_broken_is_passed_over(self, only, says, script):
        script("c++", "echo cannot find cc1plus >&2; exit 1", only)
        with pytest.raises(CapabilityError, match=r"c\+\+ does not run: cannot find cc1plus"):
            find_cxx()
        says("g++", "g++ 1.2", only)
        assert find_cxx().path.name == "g++"

    @pytest.mark.parametrize("command", ["no-such", "'open quote", "/no/such/file"])
    def test_a_variable_that_is_wrong_is_an_error(self, only, says, monkeypatch, command):
        says("c++", "1.0", only)
        monkeypatch.setenv("CXX", command)
        with pytest.raises(CapabilityError, match=r"\$CXX is ") as caught:
            find_cxx()
        assert "Unset CXX" in caught.value.hint


def toolkit(root, says, *, headers="include"):
    says("nvcc", NVCC, root / "bin")
    (root / headers).mkdir(parents=True)
    (root / headers / "cuda_runtime.h").touch()
    return root


class TestCuda:
    def test_none(self, only, tmp_path):
        with pytest.raises(CapabilityError) as caught:
            find_nvcc()
        assert caught.value.message == (
            f"nvcc not found: $CUDA_HOME not set, $CUDA_PATH not set, PATH, {tmp_path}/no-cuda"
        )
        assert "CUDA_HOME" in caught.value.hint
        with pytest.raises(CapabilityError, match="nvcc not found"):
            cuda_home()

    @pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
    def test_the_variable_goes_first(self, only, says, tmp_path, monkeypatch, variable):
        toolkit(tmp_path / "a", says)
        monkeypatch.setenv("PATH", str(toolkit(tmp_path / "b", says) / "bin"), prepend=os.pathsep)
        assert cuda_home() == tmp_path / "b"
        monkeypatch.setenv(variable, str(tmp_path / "a"))
        assert find_nvcc().path == tmp_path / "a" / "bin" / "nvcc"
        assert cuda_home() == tmp_path / "a"

    def test_a_link_to_the_compiler(self, only, says, tmp_path):
        root = toolkit(tmp_path / "real", says)
        (only / "nvcc").symlink_to(root / "bin" / "nvcc")
        assert find_nvcc().path == only / "nvcc"
        assert cuda_home() == root


def test_a_program_that_hangs_is_named(only, script, monkeypatch):
    monkeypatch.setattr(tools, "_ANSWER_S", 0.3)
    script("nvcc", "exec /bin/sleep 60", only)
    with pytest.raises(CapabilityError, match=r"nvcc --version did not answer within 0\.3 s"):
        find_nvcc()
    script("c++", "exec /bin/sleep 60", only)
    with pytest.raises(CapabilityError, match=r"c\+\+ --version did not answer"):
        find_cxx()
