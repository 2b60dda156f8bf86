"""CUDA: what compiles without a GPU, and what runs on one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from fib_builder_cuda_torch.builder import TorchBuilder
from fib_builder_cuda_torch.installation import packaged_cuda_headers
from fib_native_toolkit import cuda_home
from flashinfer_bench.errors import BuildError, CapabilityError


class TestWithoutAGpu:
    def test_a_kernel_with_the_stable_abi_compiles(
        self, definition, make_solution, source, cuda_torch, tmp_path
    ):
        # The object only: what it would be linked with is in torch's builds for CUDA alone.
        solution = make_solution("stable.cu", language="cuda")
        plan = TorchBuilder().plan(definition, solution)
        (tmp_path / "stable.cu").write_text(source("stable.cu"))
        command = [*plan.settings.compilers["cuda"], "-DTORCH_EXTENSION_NAME=fib_name"]
        subprocess.run([*command, "-c", "stable.cu", "-o", "made.o"], cwd=tmp_path, check=True)
        made = (tmp_path / "made.o").read_bytes()
        assert b"fib_name" in made
        assert b"sm_90a" in made or b"compute_90a" in made

    def test_an_error_names_file_and_line(self, definition, make_solution, cuda_torch, own_cache):
        files = {"src/kernel.cu": "__global__ void k() {\n  int x = undefined_name;\n}\n"}
        with pytest.raises(BuildError) as caught:
            TorchBuilder().compile(definition, make_solution(files=files, language="cuda"))
        assert "src/kernel.cu(2): error: identifier" in str(caught.value)

    def test_an_architecture_that_nvcc_does_not_know(
        self, definition, make_solution, cuda_torch, own_cache, monkeypatch
    ):
        monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "3.5")
        solution = make_solution(files={"kernel.cu": "//\n"}, language="cuda")
        with pytest.raises(CapabilityError, match="compute_35"):
            TorchBuilder().compile(definition, solution)

    def test_one_that_the_solution_asks_for(self, definition, make_solution, cuda_torch, own_cache):
        options = {"cuda_cflags": ["-arch=sm_35"]}
        files = {"kernel.cu": "//\n"}
        solution = make_solution(files=files, language="cuda", compile_options=options)
        with pytest.raises(BuildError, match="Unsupported gpu architecture"):
            TorchBuilder().compile(definition, solution)


@pytest.fixture
def on_gpu(inputs):
    """Return the inputs on the GPU."""
    return tuple(x.cuda() if isinstance(x, torch.Tensor) else x for x in inputs)


def check(runnable, arguments):
    x, y, scale = arguments
    torch.testing.assert_close(runnable.call_value_returning(*arguments), (x + y) * scale)


@pytest.mark.gpu
class TestOnAGpu:
    def test_operators_with_the_stable_abi(self, build, make_solution, on_gpu):
        check(build(make_solution("stable.cu", language="cuda")), on_gpu)

    def test_a_kernel_without_a_binding_stated(self, build, make_solution, on_gpu):
        solution = make_solution("binding.cpp", "kernel.cu", language="cuda", binding=None)
        assert TorchBuilder().can_build(solution)
        check(build(solution), on_gpu)

    def test_a_cpp_solution_that_uses_cuda(self, build, make_solution, source, on_gpu):
        text = "#include <c10/cuda/CUDAStream.h>\n" + source("module.cpp").replace(
            "PYBIND11_MODULE",
            "#include <ATen/ops/add.h>\n#include <ATen/ops/mul.h>\n"
            "Tensor on_device(const Tensor& x, const Tensor& y, double scale) {\n"
            "  if (c10::cuda::getCurrentCUDAStream().device_index() < 0) return x;\n"
            "  return at::mul(at::add(x, y), scale);\n}\n"
            "PYBIND11_MODULE",
        ).replace('m.def("run", &run', 'm.def("run", &on_device')
        check(build(make_solution(files={"main.cpp": text})), on_gpu)

    def test_cublas_needs_no_flag(self, build, make_solution, on_gpu):
        folders = [cuda_home() / "include", *packaged_cuda_headers()]
        if not any((folder / "cublas_v2.h").is_file() for folder in folders):
            pytest.skip("the headers of cuBLAS are not installed")
        text = (
            "#include <ATen/core/Tensor.h>\n#include <ATen/ops/empty_like.h>\n"
            "#include <ATen/ops/add.h>\n#include <ATen/cuda/CUDAContext.h>\n"
            "#include <torch/csrc/utils/pybind.h>\n#include <cublas_v2.h>\n"
            "at::Tensor run(at::Tensor x, at::Tensor y, double scale) {\n"
            "  at::Tensor out = at::add(x, y);\n"
            "  float factor = scale;\n"
            "  cublasSscal(at::cuda::getCurrentCUDABlasHandle(), out.numel(), &factor,\n"
            "              out.mutable_data_ptr<float>(), 1);\n"
            "  return out;\n}\n"
            'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }\n'
        )
        check(build(make_solution(files={"main.cpp": text}, language="cuda")), on_gpu)

    def test_it_runs_on_the_current_stream(self, build, make_solution, on_gpu):
        runnable = build(make_solution("binding.cpp", "kernel.cu", language="cuda"))
        x, y, scale = on_gpu
        x, out = torch.zeros_like(x), torch.empty_like(x)
        runnable(x, y, scale, out)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            # On another stream the kernel would not wait, and would see the old x.
            torch.cuda._sleep(200_000_000)
            x.fill_(1)
            runnable(x, y, scale, out)
        stream.synchronize()
        torch.testing.assert_close(out, (1 + y) * scale)

    def test_it_can_be_captured_in_a_graph(self, build, make_solution, on_gpu):
        runnable = build(make_solution("binding.cpp", "kernel.cu", language="cuda"))
        x, y, scale = on_gpu
        out = torch.empty_like(x)
        runnable(x, y, scale, out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            runnable(x, y, scale, out)
        x.fill_(2)
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(out, (2 + y) * scale)

    def test_compiled_for_this_gpu(self, build, make_solution):
        runnable = build(make_solution("binding.cpp", "kernel.cu", language="cuda"))
        log = Path(runnable.metadata.misc["library"]).parents[1] / "compiler.log"
        major, minor = torch.cuda.get_device_capability()
        assert f"sm_{major}{minor}" in log.read_text(encoding="utf-8")
