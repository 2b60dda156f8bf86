"""Solutions that cannot be built, and a mode that has been changed."""

from __future__ import annotations

import sys

import pytest

from flashinfer_bench.errors import BuildError, CapabilityError

pytestmark = pytest.mark.usefixtures("interpreted")

KERNEL = "import triton\n@triton.jit\ndef run(x, y, scale):\n    pass\n"


def test_a_kernel_as_the_entry_point(build, make_solution, cache_folder):
    import triton  # noqa: F401 - what it brings along is none of the solution's modules

    path, finders = list(sys.path), list(sys.meta_path)
    with pytest.raises(BuildError) as caught:
        build(make_solution(KERNEL))
    wanted = "main.py: 'run' is a Triton kernel, which cannot be called by itself"
    assert caught.value.message == f"solution 'my_solution': {wanted}"
    assert "launches it" in caught.value.hint
    assert (list(sys.path), list(sys.meta_path)) == (path, finders)
    assert [name for name in sys.modules if name.startswith("fib_triton_")] == []
    assert list(cache_folder.rglob("*.py")) == []


def test_switched_off_after_the_import(build, make_solution, monkeypatch):
    """The variable decides when triton is imported; changing it later cannot work."""
    import triton  # noqa: F401 - with the interpreter switched on

    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(CapabilityError, match="kernels would be compiled, but") as caught:
        build(make_solution())
    assert caught.value.hint == "Set TRITON_INTERPRET before the process imports triton."
