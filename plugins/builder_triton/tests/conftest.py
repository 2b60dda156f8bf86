"""The problem that the tests of all builders pose, in Triton."""

from functools import partial

import pytest

from fib_builder_triton.builder import TritonBuilder
from fib_tests.builds import cache_folder
from fib_tests.scaled_add import (
    build,
    definition,
    inputs,
    maker_of,
    on_gpu,
    pytest_collection_modifyitems,
    run_in_child,
)

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


@pytest.fixture(autouse=True)
def triton_cache(cache_folder, monkeypatch):
    """Triton's own cache is the test's own, too."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache_folder / "of_triton"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture
def interpreted(monkeypatch):
    """Switch the interpreter on; nothing in this process may have imported triton without it."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def in_child():
    """Return a function that runs Python code in a process of its own, where triton compiles."""
    return partial(run_in_child, TRITON_INTERPRET="")


@pytest.fixture
def builder_class():
    return TritonBuilder


@pytest.fixture
def make_solution():
    """Return a function that makes a solution from a source, or from several files."""
    return maker_of(RETURNS, "triton", "cuda")
