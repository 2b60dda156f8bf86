"""What results depend on: complete, the same everywhere, and nothing of where things are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flashinfer_bench.compile.toolkit import (
    cpu_description,
    cuda_fingerprint,
    fingerprint,
    host_fingerprint,
    python_abi,
)
from flashinfer_bench.compile.toolkit.tools import Tool

CXX = Tool("c++", Path("/some/where/c++"), "c++ (GCC) 1.2.3")
NVCC = Tool("nvcc", Path("/some/where/nvcc"), "release 13.0, V13.0.88")

X86 = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Some CPU @ 2.0 GHz
cpu MHz\t\t: 2100.123
cache size\t: 1 KB
bogomips\t: 4200.00
flags\t\t: fpu vme avx512f

processor\t: 1
vendor_id\t: Other
"""
ARM = """\
processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd sve
CPU implementer\t: 0x41
CPU part\t: 0xd4f
"""


def test_everything_that_counts_for_the_cpu():
    found = host_fingerprint(CXX, ["-O2", "-DA=b c"])
    assert sorted(found) == ["compiler", "flags", "libc", "machine", "variables"]
    assert found["compiler"] == "c++ (GCC) 1.2.3"
    assert json.loads(found["flags"]) == ["-O2", "-DA=b c"]
    assert found["machine"].startswith(sys.platform)
    assert found["libc"]
    assert all(isinstance(value, str) for value in found.values())


def test_where_the_compiler_is_does_not_count():
    other = Tool("c++", Path("/else/where/g++"), CXX.version)
    assert host_fingerprint(CXX) == host_fingerprint(other)


def test_what_stands_before_its_arguments_does():
    other = Tool("c++", CXX.path, CXX.version, ("-m32",))
    assert host_fingerprint(CXX) != host_fingerprint(other)


def test_python_counts_where_it_is_asked_for():
    assert "python" not in host_fingerprint(CXX)
    assert host_fingerprint(CXX, python=True)["python"] == python_abi()
    assert python_abi().startswith(f"{sys.version_info.major}.{sys.version_info.minor} .")


@pytest.mark.parametrize(
    "variable",
    [
        "CPATH",
        "CPLUS_INCLUDE_PATH",
        "LIBRARY_PATH",
        "NVCC_PREPEND_FLAGS",
        "CCC_OVERRIDE_OPTIONS",
        "NIX_LDFLAGS",
        "NIX_CFLAGS_COMPILE_x86_64_unknown_linux_gnu",
        "SPACK_INCLUDE_DIRS",
    ],
)
def test_variables_that_compilers_read_count(monkeypatch, variable):
    monkeypatch.delenv(variable, raising=False)
    plain = host_fingerprint(CXX)
    monkeypatch.setenv(variable, "x")
    assert json.loads(host_fingerprint(CXX)["variables"])[variable] == "x"
    assert host_fingerprint(CXX) != plain
    monkeypatch.setenv(variable, "")
    assert host_fingerprint(CXX) == plain


def test_cuda():
    assert cuda_fingerprint(NVCC, ["9.0a", "10.0a"]) == {
        "nvcc": "release 13.0, V13.0.88",
        "cuda_architectures": "9.0a 10.0a",
    }


def test_native_code_for_gpus_counts_those_that_are_here(monkeypatch):
    monkeypatch.setattr(fingerprint, "gpu_architectures", lambda: ("8.0", "9.0"))
    assert cuda_fingerprint(NVCC, [], ["-arch=native"])["gpus"] == "8.0 9.0"
    assert "gpus" not in cuda_fingerprint(NVCC, ["9.0a"], ["-O3"])


class TestCpu:
    @pytest.fixture
    def cpu(self, tmp_path, monkeypatch):
        def pretend(text):
            path = tmp_path / "cpuinfo"
            if text is not None:
                path.write_text(text)
            monkeypatch.setattr(fingerprint, "_CPU_INFO", path)
            return cpu_description()

        return pretend

    def test_x86(self, cpu):
        assert cpu(X86) == (
            "vendor_id: GenuineIntel; model name: Some CPU @ 2.0 GHz; cache size: 1 KB; "
            "flags: fpu vme avx512f"
        )

    def test_what_changes_all_the_time_is_left_out(self, cpu):
        assert cpu(X86) == cpu(X86.replace("2100.123", "3999.9"))

    def test_arm(self, cpu):
        assert cpu(ARM) == "Features: fp asimd sve; CPU implementer: 0x41; CPU part: 0xd4f"

    def test_nothing_is_known(self, cpu):
        assert " of " in cpu(None)

    @pytest.mark.parametrize(
        ("flags", "counts"),
        [
            (["-O3", "-march=native"], True),
            (["-mcpu=native"], True),
            (["-Xcompiler", "-O2,-mtune=native"], True),
            (["-O3", "-march=x86-64-v3"], False),
            ([], False),
        ],
    )
    def test_it_counts_for_native_code_only(self, flags, counts):
        assert ("cpu" in host_fingerprint(CXX, flags)) is counts


def test_the_system_s_library_is_named_without_one(monkeypatch):
    monkeypatch.delattr("os.confstr")
    assert host_fingerprint(CXX)["libc"]
