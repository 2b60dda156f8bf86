"""CUDA: compiled and loaded anywhere with a toolkit, run where there is a GPU."""

import pytest
import torch

from fib_builder_tvmffi.builder import TVMFFIBuilder
from flashinfer_bench.errors import BuildError, CapabilityError

SCALE = "#pragma once\n__device__ inline float scaled(float v, float s) { return v * s; }\n"


@pytest.fixture
def cuda_solution(make_solution, kernels):
    """Return a function that makes a solution of ``add.cu`` and a header."""

    def make(symbol="run", files=None, **spec):
        given = {"add.cu": (kernels / "add.cu").read_text(), "scale.cuh": SCALE}
        spec = {"language": "cuda", "target_hardware": ["cuda"]} | spec
        return make_solution(files=files or given, entry=f"add.cu::{symbol}", **spec)

    return make


class TestWithoutGpu:
    """Architectures are given, so that any machine with a toolkit can do it."""

    @pytest.fixture(autouse=True)
    def architectures(self, nvcc, monkeypatch):
        monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a")

    def test_without_a_gpu_a_call_says_so(self, build, cuda_solution):
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        runnable = build(cuda_solution())
        x = torch.zeros(3, 8)
        with pytest.raises(RuntimeError, match="CUDA driver"):
            runnable(x, x, 1.0, x)

    def test_functions_of_the_gpu_in_several_files(self, build, make_solution):
        files = {
            "add.cu": "__device__ float twice(float);\n"
            "__global__ void k(float* x) { *x = twice(*x); }\n"
            'extern "C" int __tvm_ffi_run() { k<<<1, 1>>>(nullptr); return 0; }\n',
            "twice.cu": "__device__ float twice(float x) { return 2 * x; }\n",
        }
        make = {"files": files, "entry": "add.cu::run", "language": "cuda"}
        build(make_solution(options={"cuda_cflags": ["-rdc=true"]}, **make))
        with pytest.raises(BuildError, match="Unresolved extern function '_Z5twicef'"):
            build(make_solution(**make))

    def test_an_architecture_that_nvcc_does_not_know(self, build, cuda_solution, monkeypatch):
        monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "3.5")
        with pytest.raises(CapabilityError, match="compute_35"):
            build(cuda_solution())

    def test_an_error_in_a_kernel_names_file_and_line(self, build, cuda_solution):
        files = {"add.cu": "__global__ void k() {\n  nope();\n}\n"}
        with pytest.raises(BuildError, match=r"compiling failed: add\.cu\(2\): error") as caught:
            build(cuda_solution(files=files))
        assert '"nope" is undefined' in caught.value.log

    def test_the_wrapper_of_nvcc_on_path_does_no_harm(
        self, build, cuda_solution, nvcc, monkeypatch, tmp_path
    ):
        import os

        wrapper = tmp_path / "nvcc"
        wrapper.write_text(f'#!/bin/sh\nexec {nvcc.home}/bin/nvcc "$@"\n')
        wrapper.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_HOME", raising=False)
        monkeypatch.delenv("CUDA_PATH", raising=False)
        plan = TVMFFIBuilder().plan(None, cuda_solution())
        assert f"-L{nvcc.home}/lib64" in plan.settings.libraries


@pytest.mark.gpu
def test_it_waits_for_what_its_stream_does(build, cuda_solution, on_gpu, expected):
    runnable = build(cuda_solution())
    x, y, scale = on_gpu
    late, out = torch.zeros_like(x), torch.zeros_like(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        runnable(late, y, scale, out)
    stream.synchronize()
    assert torch.equal(out.cpu(), expected)
