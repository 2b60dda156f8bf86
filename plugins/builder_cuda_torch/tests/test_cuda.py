"""CUDA: what compiles without a GPU, and what runs on one."""

import subprocess

import pytest
import torch

from fib_builder_cuda_torch.builder import TorchBuilder


def test_a_kernel_with_the_stable_abi_compiles(
    definition, make_solution, source, cuda_torch, tmp_path
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


@pytest.mark.gpu
class TestOnAGpu:
    def test_a_cpp_solution_that_uses_cuda(self, build, make_solution, source, on_gpu, expected):
        text = "#include <c10/cuda/CUDAStream.h>\n" + source("module.cpp").replace(
            "PYBIND11_MODULE",
            "#include <ATen/ops/add.h>\n#include <ATen/ops/mul.h>\n"
            "Tensor on_device(const Tensor& x, const Tensor& y, double scale) {\n"
            "  if (c10::cuda::getCurrentCUDAStream().device_index() < 0) return x;\n"
            "  return at::mul(at::add(x, y), scale);\n}\n"
            "PYBIND11_MODULE",
        ).replace('m.def("run", &run', 'm.def("run", &on_device')
        found = build(make_solution(files={"main.cpp": text})).call_value_returning(*on_gpu)
        torch.testing.assert_close(found.cpu(), expected)

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
