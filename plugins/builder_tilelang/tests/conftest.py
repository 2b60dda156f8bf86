"""The problem that the tests of all builders pose, in TileLang."""

import pytest

from fib_builder_tilelang.builder import TileLangBuilder
from fib_tests.builds import cache_folder
from fib_tests.scaled_add import build, definition, expected, inputs, maker_of

KERNEL = """
import tilelang
import tilelang.language as T

@tilelang.jit(TARGET)
def scaled_add(n):
    @T.prim_func
    def kernel(
        x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32"), scale: T.float32,
        out: T.Tensor((n,), "float32"),
    ):
        with T.Kernel(1) as _:
            for i in T.serial(n):
                out[i] = (x[i] + y[i]) * scale
    return kernel
"""
RETURNS = (
    KERNEL.replace("TARGET", 'out_idx=[-1], target="c", execution_backend="cython"')
    + "\ndef run(x, y, scale):\n"
    "    return scaled_add(x.numel())(x.flatten(), y.flatten(), scale).view(x.shape)\n"
)


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory):
    """TileLang's own cache, one for all tests: it takes half a second to compile anything."""
    return tmp_path_factory.mktemp("of_tilelang")


@pytest.fixture(autouse=True)
def tilelang_cache(monkeypatch, kernel_cache):
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(kernel_cache))


@pytest.fixture
def source():
    """The source of a solution, to be changed."""
    return RETURNS


@pytest.fixture
def builder_class():
    return TileLangBuilder


@pytest.fixture
def make_solution():
    """Return a function that makes a solution from a source, or from several files."""
    return maker_of(RETURNS, "tilelang", "cpu")
