"""Solutions that cannot be built: what is said, and that nothing stays behind."""

from __future__ import annotations

import sys

import pytest

from flashinfer_bench.errors import BuildError, CapabilityError

pytestmark = pytest.mark.usefixtures("interpreted")

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


def test_a_syntax_error_names_file_and_line(refused, make_solution):
    error = refused(make_solution(HEAD + "def run(x, y, scale)\n    return x\n"))
    assert "main.py:4: SyntaxError" in str(error)


def test_a_missing_entry_symbol_names_the_nearest(refused, make_solution):
    error = refused(make_solution(HEAD + "def ruun(x, y, scale):\n    return x\n"))
    assert "main.py defines no 'run'" in str(error)
    assert "Did you mean 'ruun'?" in str(error)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_a_wrong_number_of_parameters_names_both_right_ones(refused, make_solution, count):
    names = ", ".join("abcde"[:count])
    error = refused(make_solution(f"{HEAD}def run({names}):\n    return 0\n"))
    assert f"takes {count} positional arguments" in str(error)
    assert "Value-returning takes 3 arguments, destination-passing 4." in str(error)


def test_a_stated_convention_that_does_not_fit_names_the_other(refused, make_solution):
    source = HEAD + "def run(x, y, scale):\n    return x\n"
    error = refused(make_solution(source, destination_passing_style=True))
    assert "set destination_passing_style to false" in error.hint


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("import no_such_library_xyz", "No module named 'no_such_library_xyz'"),
        ("from triton.language import no_such_op", "cannot import name 'no_such_op'"),
        ("from .helpers import add", "No module named"),
        ("triton.autotune(configs=3, key=[])(print)", "Error"),
        ("import sys; sys.exit()", "SystemExit"),
    ],
)
def test_an_import_that_raises_tells_where_and_why(refused, make_solution, statement, reason):
    error = refused(make_solution(f"{HEAD}{statement}\ndef run(x, y, scale): pass\n"))
    assert "importing main.py failed: main.py:4:" in str(error)
    assert reason in str(error)
    assert "Traceback" in error.log


def test_an_entry_file_of_another_kind(refused, make_solution):
    error = refused(make_solution(files={"kernel.cu": "x"}, entry="kernel.cu::run"))
    assert "the entry file of a triton solution must be a .py file, not 'kernel.cu'" in str(error)


def test_a_kernel_as_the_entry_point(refused, make_solution):
    error = refused(make_solution(HEAD + KERNEL))
    assert "main.py: 'run' is a Triton kernel, which cannot be called by itself" in str(error)
    assert "launches it" in error.hint


def test_an_autotuned_kernel_as_the_entry_point(refused, make_solution):
    tuned = "@triton.autotune(configs=[triton.Config({'B': 8})], key=[])\n"
    error = refused(make_solution(HEAD + tuned + KERNEL))
    assert "which cannot be called" in str(error)


class TestMode:
    """The variable decides when triton is imported; changing it later cannot work."""

    def test_switched_off_after_the_import(self, build, make_solution, monkeypatch):
        import triton  # noqa: F401 - with the interpreter switched on

        monkeypatch.delenv("TRITON_INTERPRET")
        with pytest.raises(CapabilityError, match="kernels would be compiled, but") as caught:
            build(make_solution())
        assert caught.value.hint == "Set TRITON_INTERPRET before the process imports triton."

    def test_switched_on_after_the_import(self, in_child):
        code = (
            "import os, triton\n"
            "from fib_builder_triton.mode import check_unchanged\n"
            "check_unchanged()\n"
            "os.environ['TRITON_INTERPRET'] = '1'\n"
            "try:\n    check_unchanged()\n"
            "except Exception as error:\n    print(type(error).__name__, error)\n"
        )
        answer = in_child(code).stdout
        assert answer.startswith("CapabilityError TRITON_INTERPRET was changed")
        assert "kernels would be interpreted, but" in answer

    def test_without_triton(self, in_child, definition, make_solution):
        code = (
            "import sys\n"
            "sys.modules['triton'] = None\n"
            "from fib_builder_triton.interpreter import enter\n"
            "try:\n    enter()\n"
            "except Exception as error:\n    print(type(error).__name__, error)\n"
        )
        answer = in_child(code, TRITON_INTERPRET="1").stdout
        assert answer.startswith("CapabilityError triton cannot be imported")
        assert "hint: pip install triton" in answer
