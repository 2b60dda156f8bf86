"""Solutions that can be built, run by the interpreter."""

from __future__ import annotations

import sys

import pytest
import torch

from flashinfer_bench.errors import BuildError, CapabilityError

pytestmark = pytest.mark.usefixtures("interpreted")


def expected(inputs):
    x, y, scale = inputs
    return (x + y) * scale


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


HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
KERNEL = "@triton.jit\ndef run(x, y, scale, B: tl.constexpr):\n    pass\n"


@pytest.fixture
def refused(build, cache_folder):
    """Return a function that builds a solution that cannot be built and returns the error."""
    import triton  # noqa: F401 - what it brings along is none of the solution's modules

    def run(solution) -> BuildError:
        path, packages = list(sys.path), list(sys.meta_path)
        with pytest.raises(BuildError) as caught:
            build(solution)
        assert (list(sys.path), list(sys.meta_path)) == (path, packages)
        assert [name for name in sys.modules if name.startswith("fib_triton_")] == []
        assert list(cache_folder.rglob("*.py")) == []
        assert f"solution {solution.name!r}" in str(caught.value)
        return caught.value

    return run


def test_a_kernel_as_the_entry_point(refused, make_solution):
    error = refused(make_solution(HEAD + KERNEL))
    assert "main.py: 'run' is a Triton kernel, which cannot be called by itself" in str(error)
    assert "launches it" in error.hint


class TestMode:
    """The variable decides when triton is imported; changing it later cannot work."""

    def test_switched_off_after_the_import(self, build, make_solution, monkeypatch):
        import triton  # noqa: F401 - with the interpreter switched on

        monkeypatch.delenv("TRITON_INTERPRET")
        with pytest.raises(CapabilityError, match="kernels would be compiled, but") as caught:
            build(make_solution())
        assert caught.value.hint == "Set TRITON_INTERPRET before the process imports triton."
