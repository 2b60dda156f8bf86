"""Solutions that cannot be built: what is said, and that nothing stays behind."""

from __future__ import annotations

import gc
import shutil
import sys

import pytest

from fib_builder_tilelang.loading import load_tilelang
from flashinfer_bench.errors import BuildCapabilityError, BuildError

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


def test_a_syntax_error_names_file_and_line(refused, make_solution):
    error = refused(make_solution(HEAD + "def run(x, y, scale)\n    return x\n"))
    assert "main.py:4: SyntaxError" in str(error)


def test_a_missing_entry_symbol_names_the_nearest(refused, make_solution):
    error = refused(make_solution(GOOD.replace("run", "ruun")))
    assert "main.py defines no 'run'" in str(error)
    assert "Did you mean 'ruun'?" in str(error)


@pytest.mark.parametrize("count", [0, 2, 5])
def test_a_wrong_number_of_parameters_names_both_right_ones(refused, make_solution, count):
    names = ", ".join("abcde"[:count])
    error = refused(make_solution(f"def run({names}):\n    return 0\n"))
    assert f"takes {count} positional arguments" in str(error)
    assert "Value-returning takes 3 arguments, destination-passing 4." in str(error)


def test_a_stated_convention_that_does_not_fit_names_the_other(refused, make_solution):
    error = refused(make_solution(GOOD, destination_passing_style=True))
    assert "set destination_passing_style to false" in error.hint


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("import no_such_library_xyz", "No module named 'no_such_library_xyz'"),
        ("from tilelang.language import no_such_op", "cannot import name 'no_such_op'"),
        ("from .kernels import scale", "No module named"),
        ("raise ValueError('first line\\nsecond line')", "ValueError: first line"),
        ("import sys; sys.exit()", "SystemExit"),
    ],
)
def test_an_import_that_raises_tells_where_and_why(refused, make_solution, statement, reason):
    error = refused(make_solution(f"{HEAD}{statement}\n{GOOD}"))
    assert "importing main.py failed: main.py:4:" in str(error)
    assert reason in str(error)
    assert "Traceback" in error.log


def test_a_function_that_was_not_compiled_as_the_entry_point(refused, make_solution):
    source = kernel("1.0").replace(GOOD, "").replace("def kernel", "def run")
    error = refused(make_solution(source.replace("(kernel,", "(run,")))
    assert "'run' is a PrimFunc, which cannot be called" in str(error)


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

    @pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not in PATH")
    def test_what_nvcc_refuses(self, refused, make_solution):
        target = "{'kind': 'cuda', 'arch': 'sm_90a'}"
        source = kernel("T.call_extern('float32', 'nosuch', x[0])", target=target, backend="")
        error = refused(make_solution(source.replace("Kernel(1)", "Kernel(1, threads=32)")))
        assert "importing main.py failed: the generated code does not compile: " in str(error)
        assert 'error: identifier "nosuch" is undefined' in str(error)
        assert "__global__" in error.log

    def test_without_a_gpu_and_without_a_target(self, refused, make_solution, monkeypatch):
        from tilelang.backend import target

        monkeypatch.setattr(target, "_TARGET_DETECTORS", {}, raising=False)
        if target.list_target_detectors():
            pytest.skip("this release keeps its detectors elsewhere")
        error = refused(make_solution(kernel("1.0", target="'auto'", backend="")))
        assert isinstance(error, BuildCapabilityError)
        assert "there is no GPU that TileLang could compile for" in str(error)
        assert "target=" in error.hint
