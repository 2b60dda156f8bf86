"""The first error of compilers, linkers and ninja as they are installed here."""

from __future__ import annotations

import shutil

import pytest

from flashinfer_bench.compile.toolkit import (
    check_output,
    cuda_home,
    find_cxx,
    find_ninja,
    find_nvcc,
    first_error,
    run_tool,
)
from flashinfer_bench.errors import BuildError, CapabilityError

NOISE = "int warned(int error_count) { int SomeError; return 0; }\n"

CXX = {
    "undeclared": ("int f() { return nowhere; }", "a.cpp:2:", "nowhere"),
    "syntax": ("void f(", "a.cpp:2:", "error: "),
    "header": ('#include "nowhere.h"', "a.cpp:2:", "nowhere.h: No such file"),
    "#error": ("#error mind the gap", "a.cpp:2:", "mind the gap"),
    "template": (
        "#include <vector>\nstruct X {};\nvoid f() { std::vector<int> v; v.push_back(X{}); }",
        "a.cpp:4:",
        "push_back",
    ),
    "static_assert": ('static_assert(sizeof(int) == 5, "no five");', "a.cpp:2:", "no five"),
    "assembler": ('void f() { asm("frobnicate %eax"); }', "a.cpp:2:", "frobnicate"),
    "warning": ('#pragma GCC error "it\'s me"', "a.cpp:2:", "it's me"),
}

CUDA = {
    "undeclared": ("__global__ void k(float* x) { x[0] = nowhere; }", "a.cu(2): error", "nowhere"),
    "header": ('#include "nowhere.h"', "a.cu:2:", "nowhere.h: No such file"),
    "shared memory": (
        "__global__ void k(float* x) { __shared__ float a[100000]; a[threadIdx.x] = x[0];\n"
        "__syncthreads(); x[1] = a[threadIdx.x + 1]; }",
        "ptxas error",
        "too much shared data",
    ),
    "extern": (
        "extern __device__ float f(float);\n__global__ void k(float* x) { x[0] = f(x[1]); }",
        "ptxas fatal",
        "Unresolved extern function",
    ),
    "assembler": ('__global__ void k() { asm("no.such.thing;"); }', "ptxas ", "error"),
}


@pytest.fixture
def cxx():
    try:
        return find_cxx()
    except CapabilityError as error:
        pytest.skip(str(error))


@pytest.fixture
def nvcc():
    try:
        return find_nvcc()
    except CapabilityError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("text", "start", "inside"), CXX.values(), ids=CXX.keys())
def test_cxx(cxx, tmp_path, text, start, inside):
    (tmp_path / "a.cpp").write_text(NOISE + text)
    result = run_tool([*cxx.command, "-Wall", "-c", "a.cpp", "-o", "a.o"], cwd=tmp_path)
    assert first_error(result.output).startswith(start)
    assert inside in first_error(result.output)
    with pytest.raises(BuildError, match="'s': compiling failed: ") as caught:
        check_output("s", "compiling", result)
    assert caught.value.log == result.output


@pytest.mark.parametrize(("text", "start", "inside"), CUDA.values(), ids=CUDA.keys())
def test_nvcc(nvcc, tmp_path, text, start, inside):
    (tmp_path / "a.cu").write_text(f"__device__ {NOISE}{text}\n")
    command = [*nvcc.command, "-arch=sm_90", "-c", "a.cu", "-o", "a.o"]
    result = run_tool(command, cwd=tmp_path, env={"CUDA_HOME": str(cuda_home())})
    assert result.returncode != 0
    assert first_error(result.output).startswith(start)
    assert inside in first_error(result.output)


@pytest.mark.parametrize("linker", ["bfd", "gold", "lld", "mold"])
def test_linkers(cxx, tmp_path, linker):
    if shutil.which(f"ld.{linker}") is None:
        pytest.skip(f"no ld.{linker}")
    (tmp_path / "a.cpp").write_text('int nowhere(); extern "C" int f() { return nowhere(); }\n')
    command = [*cxx.command, "-shared", "-fPIC", "-Wl,-z,defs", f"-fuse-ld={linker}", "a.cpp"]
    result = run_tool([*command, "-o", "a.so"], cwd=tmp_path)
    assert "nowhere" in first_error(result.output)


def test_a_library_that_is_not_there(cxx, tmp_path):
    (tmp_path / "a.cpp").write_text("int f() { return 0; }\n")
    command = [*cxx.command, "-shared", "-fPIC", "a.cpp", "-lnowhere", "-o", "a.so"]
    assert "cannot find -lnowhere" in first_error(run_tool(command, cwd=tmp_path).output)


def test_an_option_that_there_is_not(cxx, tmp_path):
    (tmp_path / "a.cpp").touch()
    result = run_tool([*cxx.command, "--no-such-option", "-c", "a.cpp"], cwd=tmp_path)
    assert "--no-such-option" in first_error(result.output)


@pytest.fixture
def ninja_build(cxx, tmp_path):
    """Return a function that has ninja compile two files, and returns what it said."""

    def build(text):
        (tmp_path / "a.cpp").write_text(NOISE + text)
        (tmp_path / "b.cpp").write_text(NOISE)
        (tmp_path / "build.ninja").write_text(
            "rule cxx\n"
            f'  command = {" ".join(cxx.command)} -DE="error: no" -Wall -c $in -o $out\n'
            "build b.o: cxx b.cpp\nbuild a.o: cxx a.cpp\n"
        )
        return run_tool([*find_ninja().command, "-v", "-j1"], cwd=tmp_path)

    return build


def test_ninja(ninja_build):
    result = ninja_build("int f() { return nowhere; }\n")
    assert "FAILED: " in result.output
    assert "ninja: build stopped" in result.output
    assert first_error(result.output).startswith("a.cpp:2:")
    assert "nowhere" in first_error(result.output)


def test_ninja_itself(tmp_path):
    (tmp_path / "build.ninja").write_text("rule x\n  command = true\nbuild a: x nowhere.cpp\n")
    result = run_tool(find_ninja().command, cwd=tmp_path)
    assert first_error(result.output).startswith("ninja: error: 'nowhere.cpp'")
