"""CUDA: what compiles without a GPU, and what runs on one."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fib_builder_cuda_torch.builder import TorchBuilder
from fib_builder_cuda_torch.installation import packaged_cuda_headers
from fib_builder_cuda_torch.ninjafile import BUILD_FILE, ninja_file
from flashinfer_bench.compile.toolkit import cuda_home
from flashinfer_bench.errors import BuildError, CapabilityError


class TestWithoutAGpu:
    def test_a_kernel_with_the_stable_abi_compiles(
        self, definition, make_solution, source, cuda_torch, tmp_path
    ):
        # The object only: what it would be linked with is in torch's builds for CUDA alone.
        solution = make_solution("stable.cu", language="cuda")
        plan = TorchBuilder().plan(definition, solution)
        (tmp_path / "sources").mkdir()
        (tmp_path / "sources" / "stable.cu").write_text(source("stable.cu"))
        (tmp_path / BUILD_FILE).write_text(ninja_file(plan.settings, "fib_name"))
        command = [*plan.settings.ninja.command, "objects/0_stable.o"]
        subprocess.run(command, cwd=tmp_path, check=True)
        made = (tmp_path / "objects" / "0_stable.o").read_bytes()
        assert b"fib_name" in made
        assert b"sm_90a" in made or b"compute_90a" in made

    def test_an_error_names_file_and_line(self, definition, make_solution, cuda_torch, own_cache):
        files = {"src/kernel.cu": "__global__ void k() {\n  int x = undefined_name;\n}\n"}
        with pytest.raises(BuildError) as caught:
            TorchBuilder().compile(definition, make_solution(files=files, language="cuda"))
        assert "sources/src/kernel.cu(2): error: identifier" in str(caught.value)

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
    def test_a_module(self, build, make_solution, on_gpu):
        solution = make_solution("binding.cpp", "kernel.cu", language="cuda")
        runnable = build(solution)
        assert runnable.metadata.destination_passing_style is True
        check(runnable, on_gpu)
        assert not build(solution).metadata.misc["fresh"]

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
        log = runnable.metadata.misc["library"].rpartition("/")[0] + "/compiler.log"
        major, minor = torch.cuda.get_device_capability()
        with open(log, encoding="utf-8") as file:  # noqa: PTH123 - a plain name
            assert f"sm_{major}{minor}" in file.read()

    def test_another_process_loads_what_is_compiled(self, definition, build, make_solution):
        solution = make_solution("binding.cpp", "kernel.cu", language="cuda")
        build(solution)
        code = (
            "import sys, time\n"
            "import torch\n"
            "from fib_builder_cuda_torch.builder import TorchBuilder\n"
            "from flashinfer_bench.data import Definition, Solution\n"
            "d = Definition.model_validate_json(sys.argv[1])\n"
            "s = Solution.model_validate_json(sys.argv[2])\n"
            "start = time.perf_counter()\n"
            "runnable = TorchBuilder().build(d, s)\n"
            "took = (time.perf_counter() - start) * 1e3\n"
            "print(runnable.metadata.misc['fresh'], torch.cuda.is_initialized())\n"
            "print(f'warm load: {took:.1f} ms', file=sys.stderr)\n"
        )
        arguments = [d.model_dump_json(exclude_unset=True) for d in (definition, solution)]
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.PIPE, text=True
        )
        assert done.stdout == "False False\n"
