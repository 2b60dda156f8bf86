"""Solutions that can be built, run by the interpreter."""

from __future__ import annotations

import sys

import pytest
import torch

from fib_builder_triton.builder import TritonBuilder

pytestmark = pytest.mark.usefixtures("interpreted")

KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, out, scale, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total * scale, mask=inside)

def launch(x, y, scale, out):
    kernel[(triton.cdiv(x.numel(), 32),)](x, y, out, scale, x.numel(), BLOCK=32)
"""
RETURNS = (
    KERNEL
    + "\ndef run(x, y, scale):\n    out = torch.empty_like(x)\n    launch(x, y, scale, out)\n"
    "    return out\n"
)
WRITES = KERNEL + "\ndef run(x, y, scale, out):\n    launch(x, y, scale, out)\n"


def expected(inputs):
    x, y, scale = inputs
    return (x + y) * scale


class TestRunnable:
    def test_it_computes(self, build, make_solution, inputs):
        assert torch.equal(build(make_solution())(*inputs), expected(inputs))

    def test_by_name(self, build, make_solution, inputs):
        x, y, scale = inputs
        assert torch.equal(build(make_solution())(scale=scale, y=y, x=x), expected(inputs))

    def test_destination_passing(self, build, make_solution, inputs):
        runnable = build(make_solution(WRITES, destination_passing_style=True))
        out = torch.empty(3, 8)
        assert runnable(*inputs, out) is None
        assert torch.equal(out, expected(inputs))
        assert torch.equal(runnable.call_value_returning(*inputs), expected(inputs))

    def test_metadata(self, build, make_solution, definition):
        metadata = build(make_solution(name="my kernel")).metadata
        assert metadata.build_type == "triton"
        assert metadata.definition is definition
        assert metadata.solution_name == "my kernel"
        assert metadata.misc["entry_point"] == "main.py::run"
        assert metadata.misc["package"].startswith("fib_triton_my_kernel_")
        assert metadata.misc["interpreted"] is True
        assert metadata.misc["notes"] == []

    @pytest.mark.parametrize("binding", [None, "torch", "tvm-ffi"])
    def test_a_binding_is_ignored(self, build, make_solution, inputs, binding):
        runnable = build(make_solution(binding=binding))
        assert torch.equal(runnable(*inputs), expected(inputs))

    def test_can_build(self, make_solution):
        builder = TritonBuilder()
        assert builder.is_available()
        assert builder.can_build(make_solution())
        assert builder.can_build(make_solution(language="Triton"))
        assert not builder.can_build(make_solution(language="python"))


@pytest.mark.parametrize(
    ("source", "destination_passing"),
    [
        (RETURNS, False),
        (WRITES, True),
        (RETURNS.replace("run(x, y, scale)", "run(x, y, scale, eps=1e-6)"), False),
        (WRITES.replace("run(x, y, scale, out)", "run(*a) -> None").replace(
            "    launch(x, y, scale, out)\n", "    launch(*a)\n"
        ) + KERNEL, True),
    ],
    ids=["returns", "writes", "with a default", "any number"],
)  # fmt: skip
def test_where_the_convention_is_not_stated_the_signature_tells(
    build, make_solution, inputs, source, destination_passing
):
    runnable = build(make_solution(source))
    assert runnable.metadata.destination_passing_style is destination_passing


class TestFiles:
    HELPERS = (
        "import triton\nimport triton.language as tl\n"
        "@triton.jit\ndef add(a, b):\n    return a + b\n"
        "@triton.jit\ndef row_sum(a):\n    return tl.sum(a, axis=0) + tl.zeros((), tl.float32)\n"
    )
    MAIN = (
        "import torch, triton\nimport triton.language as tl\n{imports}\n"
        "@triton.jit\n"
        "def kernel(x, y, out, scale, n, BLOCK: tl.constexpr):\n"
        "    at = tl.arange(0, BLOCK)\n"
        "    a = tl.load(x + at, mask=at < n, other=0.0)\n"
        "    b = tl.load(y + at, mask=at < n, other=0.0)\n"
        "    tl.store(out + at, {call}(a, b) * scale, mask=at < n)\n"
        "def run(x, y, scale):\n"
        "    out = torch.empty_like(x)\n"
        "    kernel[(1,)](x, y, out, scale, x.numel(), BLOCK=32)\n"
        "    return out\n"
    )

    @pytest.mark.parametrize(
        ("imports", "call"),
        [
            ("from .ops.helpers import add", "add"),
            ("from ops.helpers import add", "add"),
            ("import ops.helpers as helpers", "helpers.add"),
        ],
    )
    def test_functions_for_kernels_in_another_file(
        self, build, make_solution, inputs, imports, call
    ):
        files = {
            "main.py": self.MAIN.format(imports=imports, call=call),
            "ops/helpers.py": self.HELPERS,
        }
        assert torch.equal(build(make_solution(files=files))(*inputs), expected(inputs))

    def test_functions_of_triton_s_library_in_another_file(self, build, make_solution, inputs):
        main = self.MAIN.format(imports="from helpers import row_sum", call="tl.maximum")
        files = {
            "main.py": main.replace("tl.maximum(a, b)", "row_sum(a)"),
            "helpers.py": self.HELPERS,
        }
        x, _, scale = inputs
        found = build(make_solution(files=files))(*inputs)
        assert torch.allclose(found, torch.full((3, 8), float(x.sum() * scale)))

    def test_kernels_in_another_file(self, build, make_solution, inputs):
        files = {
            "host.py": "import torch, kernels\ndef run(x, y, scale):\n"
            "    out = torch.empty_like(x)\n    kernels.launch(x, y, scale, out)\n    return out\n",
            "kernels.py": KERNEL,
        }
        runnable = build(make_solution(files=files, entry="host.py::run"))
        assert torch.equal(runnable(*inputs), expected(inputs))


class TestIsolation:
    def files(self, factor):
        return {
            "main.py": "import torch, consts\nfrom .kernels import launch\n"
            "def run(x, y, scale):\n    out = torch.empty_like(x)\n"
            "    launch(x, y, scale * consts.FACTOR, out)\n    return out\n",
            "kernels.py": KERNEL.replace("total * scale", f"total * scale + {factor}"),
            "consts.py": f"FACTOR = {factor}\n",
        }

    def test_solutions_with_the_same_file_names_do_not_meet(self, build, make_solution, inputs):
        runnables = [build(make_solution(files=self.files(i))) for i in range(3)]
        for _ in range(2):
            for i, runnable in enumerate(runnables):
                assert torch.allclose(runnable(*inputs), expected(inputs) * i + i)

    def test_neither_path_nor_modules_change_for_others(self, build, make_solution, inputs):
        build(make_solution("import triton, torch\ndef run(x, y, scale):\n    return x\n"))
        path, modules = list(sys.path), set(sys.modules)
        runnable = build(make_solution(files=self.files(1)))
        runnable(*inputs)
        assert sys.path == path
        added = {name for name in set(sys.modules) - modules if not name.startswith("triton.")}
        assert all(name.startswith("fib_triton_") for name in added)
        runnable.cleanup()
        assert [
            name for name in sys.modules if name.startswith(runnable.metadata.misc["package"])
        ] == []

    def test_files_go_and_the_runnable_refuses(self, build, make_solution, inputs, cache_folder):
        runnable = build(make_solution())
        assert len(list(cache_folder.rglob("main.py"))) == 1
        runnable(*inputs)
        runnable.cleanup()
        runnable.cleanup()
        assert list(cache_folder.rglob("main.py")) == []
        with pytest.raises(RuntimeError, match="cleaned up"):
            runnable(*inputs)


def test_a_huge_source(build, make_solution, inputs):
    source = RETURNS + "".join(f"CONSTANT_{i} = {i}  # {'x' * 80}\n" for i in range(40_000))
    assert len(source) > 4_000_000
    assert torch.equal(build(make_solution(source))(*inputs), expected(inputs))
