"""Solutions that cannot be built: what is said, and that nothing stays behind."""

from __future__ import annotations

import gc
import sys

import pytest

from fib_builder_tilelang.loading import load_tilelang
from flashinfer_bench.errors import BuildError

HEAD = "import torch\nimport tilelang\nimport tilelang.language as T\n"
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

GOOD = "def run(x, y, scale):\n    return x\n"


def kernel(statement, *, target='"c"', backend=', execution_backend="cython"'):
    """Return a source that compiles a kernel while it is imported."""
    return (
        f"{HEAD}@T.prim_func\ndef kernel(x: T.Tensor((24,), 'float32')):\n"
        f"    with T.Kernel(1) as _:\n        x[0] = {statement}\n"
        f"compiled = tilelang.compile(kernel, target={target}{backend})\n{GOOD}"
    )


@pytest.fixture
def refused(build, cache_folder):
    """Return a function that builds a solution that cannot be built and returns the error."""
    load_tilelang()

    def run(solution) -> BuildError:
        before = list(sys.path), list(sys.meta_path)
        with pytest.raises(BuildError) as caught:
            build(solution)
        assert (list(sys.path), list(sys.meta_path)) == before
        assert [name for name in sys.modules if name.startswith("fib_tilelang_")] == []
        assert list(cache_folder.rglob("*.py")) == []
        assert f"solution {solution.name!r}" in str(caught.value)
        assert "\n" not in caught.value.message
        return caught.value

    yield run
    # TileLang leaves a file open where a C or CUDA compiler fails.
    gc.collect()


class TestCompiledWhileImported:
    @pytest.mark.parametrize(
        ("statement", "reason"),
        [
            ("T.nosuch(x[0])", "module 'tilelang.language' has no attribute 'nosuch'"),
            ("nosuch", "NameError: name 'nosuch' is not defined"),
        ],
    )
    def test_what_the_language_refuses(self, refused, make_solution, statement, reason):
        error = refused(make_solution(kernel(statement)))
        assert "importing main.py failed: main.py:7: " in str(error)
        assert reason in str(error)
        assert "Traceback" in error.log

    def test_what_the_c_compiler_refuses(self, refused, make_solution):
        error = refused(make_solution(kernel("T.call_extern('float32', '1bad', x[0])")))
        assert "importing main.py failed: the generated code does not compile" in str(error)
        assert "1bad" in error.log
