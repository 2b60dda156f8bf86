"""Solutions that cannot be built: what is said, and that nothing stays behind."""

from __future__ import annotations

import sys

import pytest

from flashinfer_bench.errors import BuildError

GOOD = "def run(x, y, scale):\n    return x\n"


def _modules_of_solutions():
    # The first refusal imports what words it; that may stay.
    return {name for name in sys.modules if name.startswith("fib_python_")}


@pytest.fixture
def refused(build, cache_folder):
    """Return a function that builds a solution that cannot be built and returns the error."""

    def run(solution, of=None) -> BuildError:
        before = _modules_of_solutions(), list(sys.path), list(sys.meta_path)
        with pytest.raises(BuildError) as caught:
            build(solution, of)
        assert (_modules_of_solutions(), list(sys.path), list(sys.meta_path)) == before
        assert list(cache_folder.rglob("*.py")) == []
        assert f"solution {solution.name!r}" in str(caught.value)
        return caught.value

    return run


def test_an_entry_file_of_another_kind(refused, make_solution):
    error = refused(make_solution(files={"kernel.cu": "x"}, entry="kernel.cu::run"))
    assert "the entry file of a python solution must be a .py file, not 'kernel.cu'" in str(error)


def test_a_syntax_error_names_file_and_line(refused, make_solution):
    error = refused(make_solution("import torch\n\ndef run(x, y, scale)\n    return x\n"))
    assert "main.py:3: SyntaxError" in str(error)
    assert "def run(x, y, scale)" in error.log


def test_a_syntax_error_in_a_helper_names_the_helper(refused, make_solution):
    error = refused(make_solution(files={"main.py": "import helper\n" + GOOD, "helper.py": "x ="}))
    assert "helper.py:1: SyntaxError" in str(error)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("import no_such_library_xyz", "No module named 'no_such_library_xyz'"),
        ("from math import no_such_name", "cannot import name 'no_such_name'"),
        ("assert 1 > 2, 'needs a GPU'", "AssertionError: needs a GPU"),
        ("open('/no/such/file')", "FileNotFoundError"),
        ("import torch; torch.ops.no_such.op()", "AttributeError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sys; sys.exit()", "SystemExit"),
        ("class E(BaseException): pass\nraise E('out')", "E: out"),
    ],
)
def test_an_import_that_raises_tells_where_and_why(refused, make_solution, statement, reason):
    error = refused(make_solution(f"import math\n{statement}\n{GOOD}"))
    assert "importing main.py failed: main.py:" in str(error)
    assert reason in str(error)
    assert "Traceback" in error.log


def test_a_missing_symbol(refused, make_solution):
    error = refused(make_solution("def ruun(x, y, scale):\n    return x\n"))
    assert "main.py defines no 'run'" in str(error)
    assert "Did you mean 'ruun'?" in str(error)


@pytest.mark.parametrize("value", ["3", "None", "'text'", "[]"])
def test_a_symbol_that_is_no_function(refused, make_solution, value):
    assert "which cannot be called" in str(refused(make_solution(f"run = {value}\n")))


@pytest.mark.parametrize(
    ("parameters", "count"),
    [("", "0"), ("x, y", "2"), ("x, y, scale, out, more", "5"), ("x=0", "0 to 1")],
)
def test_a_wrong_number_of_parameters_names_both_right_ones(
    refused, make_solution, parameters, count
):
    error = refused(make_solution(f"def run({parameters}): pass\n"))
    assert f"takes {count} positional arguments" in str(error)
    assert "Value-returning takes 3 arguments, destination-passing 4." in str(error)


@pytest.mark.parametrize("style", [True, False])
def test_a_stated_convention_that_does_not_fit_names_the_other(refused, make_solution, style):
    parameters = "x, y, scale" if style else "x, y, scale, out"
    solution = make_solution(f"def run({parameters}): pass\n", destination_passing_style=style)
    error = refused(solution)
    assert f"set destination_passing_style to {str(not style).lower()}" in error.hint


def test_keyword_only_parameters(refused, make_solution):
    error = refused(make_solution("def run(x, y, scale, *, stream): pass\n"))
    assert "'stream' is keyword-only" in str(error)


@pytest.mark.parametrize("returns", ["tuple[int]", "tuple[int, int, int]", "tuple[()]"])
def test_a_tuple_of_another_length(refused, make_solution, two_outputs, returns):
    error = refused(make_solution(f"def run(x, y, scale) -> {returns}: pass\n"), two_outputs)
    assert "'scaled_add_sum_h8' has 2 outputs: out, total" in str(error)


def test_the_next_build_works(refused, build, make_solution, inputs):
    refused(make_solution("raise SystemExit"))
    assert build(make_solution())(*inputs) is not None


def test_the_right_tuple_is_accepted(build, make_solution, two_outputs):
    solution = make_solution("def run(x, y, scale) -> tuple[int, int]:\n    return 1, 2\n")
    assert build(solution, two_outputs)(1, 2, 3) == (1, 2)
