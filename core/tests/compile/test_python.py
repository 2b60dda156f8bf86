"""From sources to a function: folders as packages, entry points, calling conventions."""

import gc
import sys
import textwrap
import weakref

import pytest
import torch

from flashinfer_bench.compile.toolkit import choose_style, load_python, open_package
from flashinfer_bench.errors import BuildError

X = torch.arange(8.0).reshape(2, 4)


@pytest.fixture
def load(definition):
    loaded = []

    def run(solution):
        loaded.append(load_python(definition, solution, prefix="test"))
        return loaded[-1]

    yield run
    for each in loaded:
        each.cleaner()


def test_a_cleaned_solution_is_freed(definition, make_solution):
    source = "class Big: pass\nbig = Big()\ndef run(x, y):\n    return big\n"
    loaded = load_python(definition, make_solution(source), prefix="test")
    big = weakref.ref(loaded.function(X, X))
    assert big() is not None
    loaded.cleaner()
    del loaded
    gc.collect()
    assert big() is None


def fails(load, solution):
    with pytest.raises(BuildError) as caught:
        load(solution)
    assert repr(solution.name) in caught.value.message
    return caught.value


def test_a_syntax_error(load, make_solution):
    error = fails(load, make_solution("import torch\ndef run(x, y)\n    return x\n"))
    assert "importing main.py failed: main.py:2: SyntaxError: " in str(error)
    assert "def run(x, y)" in error.log


def test_a_missing_symbol_with_a_suggestion(load, make_solution):
    error = fails(load, make_solution("def rum(x, y): pass\n_private = 1\n"))
    assert "main.py defines no 'run'" in str(error)
    assert error.hint == "Did you mean 'rum'?"


@pytest.mark.parametrize(
    "source",
    [
        "import nowhere_xyz",
        "def run(x): pass",
        "x = 1",
        "def f(:",
        "raise SystemExit(3)",
        "import sys; sys.exit('bye')",
        "exit()",
        "class Odd(BaseException): pass\nraise Odd('odd')",
        "raise GeneratorExit",
        "def f(): f()\nf()",
        "raise type('E', (Exception,), {'__str__': lambda self: 1/0})()",
    ],
)
def test_no_failure_ends_the_process_or_leaves_anything_behind(
    load, make_solution, cache_folder, source
):
    modules, meta_path = set(sys.modules), list(sys.meta_path)
    fails(load, make_solution(source))
    assert set(sys.modules) == modules
    assert sys.meta_path == meta_path
    assert list((cache_folder / "scratch").rglob("*.py")) == []


@pytest.mark.parametrize("entry", ["json.py", "types.py", "__init__.py", "__main__.py"])
def test_an_entry_file_with_a_special_name_may_import_the_file_beside_it(
    load, make_solution, entry
):
    files = {entry: "import helper\ndef run(x, y):\n    return helper.F * x", "helper.py": "F = 3"}
    loaded = load(make_solution(files=files, entry_point=f"{entry}::run"))
    assert torch.equal(loaded.function(X, X), 3 * X)


@pytest.mark.parametrize("encoding", ["latin-1", "no-such-encoding"])
def test_sources_are_text_whatever_encoding_they_declare(load, make_solution, encoding):
    source = f"# -*- coding: {encoding} -*-\ndef run(x, y):\n    return 'é'"
    assert load(make_solution(source)).function(X, X) == "é"


# ------------------------------------------------------------------------- calling conventions


def function(signature):
    namespace = {}
    exec(f"def run({signature}): pass", namespace)
    return namespace["run"]


# Two inputs and one output.
@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("x, y", False),
        ("x, y, z", True),
        ("x, y, z=None", False),
        ("x, y, eps=1e-6", False),
        ("x, y, **kwargs", False),
        ("*args", False),
        ("*args, **kwargs", False),
        ("x, *rest", False),
        ("x, y, z, *rest", True),
        ("a, b, c, d=1", True),
    ],
)
def test_the_number_of_parameters_decides(definition, make_solution, signature, expected):
    assert choose_style(function(signature), definition, make_solution()) is expected


@pytest.mark.parametrize(
    ("signature", "count"), [("x", "1"), ("x, y, z, w", "4"), ("", "0"), ("x=0", "0 to 1")]
)
def test_where_neither_fits_both_numbers_are_told(definition, make_solution, signature, count):
    with pytest.raises(BuildError, match=f"run: takes {count} positional arguments") as caught:
        choose_style(function(signature), definition, make_solution())
    assert "gets 2: x, y" in str(caught.value)
    assert "Value-returning takes 2 arguments, destination-passing 3." in str(caught.value)


@pytest.mark.parametrize(
    ("style", "signature", "fix"),
    [(True, "x, y", "false"), (False, "x, y, z", "true")],
)
def test_a_mistaken_declaration_is_named_with_the_fix(
    definition, make_solution, style, signature, fix
):
    solution = make_solution(destination_passing_style=style, name="mistaken")
    with pytest.raises(BuildError, match="solution 'mistaken': run: takes") as caught:
        choose_style(function(signature), definition, solution)
    assert caught.value.hint == (
        f"It fits the other convention: set destination_passing_style to {fix}."
    )


# ------------------------------------------------------------------------------------- packages


@pytest.fixture
def package(tmp_path_factory):
    """Return a function that writes files and opens them as a package."""
    opened = []

    def make(files, name="pkg"):
        root = tmp_path_factory.mktemp("root")
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(textwrap.dedent(text))
        opened.append(open_package(name, root))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.mark.parametrize("name", ["kernel.v2.py", "my-kernel.py", "1st.py", "a b.py"])
def test_names_that_are_no_identifiers(package, name):
    assert package({name: "x = 1"}).import_file(name).x == 1


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "ValueError"])
def test_what_a_module_raises_comes_through_and_leaves_no_module(package, kind):
    opened = package({"main.py": f"raise {kind}('x')"})
    with pytest.raises(BaseException, match="x") as caught:
        opened.import_file("main.py")
    assert type(caught.value).__name__ == kind
    assert "pkg.main" not in sys.modules


@pytest.mark.parametrize(
    "statement",
    [
        "import helper\nx = helper.x",
        "import helper as h\nx = h.x",
        "from helper import x",
        "from helper import *",
        "x = __import__('helper').x",
        "import sub.deep\nx = sub.deep.x",
        "import sub.deep as d\nx = d.x",
        "from sub import deep\nx = deep.x",
        "from sub.deep import x",
        "exec('import helper')\nx = helper.x",
        "import os, helper\nx = helper.x",
    ],
)
def test_imports_of_files_beside(package, statement):
    opened = package({"main.py": statement, "helper.py": "x = 7", "sub/deep.py": "x = 7"})
    assert opened.import_file("main.py").x == 7
    assert "helper" not in sys.modules
    assert "sub" not in sys.modules


def test_the_nearest_folder_wins(package):
    opened = package(
        {
            "helper.py": "x = 'root'",
            "only_root.py": "x = 'root'",
            "sub/helper.py": "x = 'sub'",
            "sub/main.py": "import helper, only_root\nx = helper.x, only_root.x",
            "main.py": "import helper\nx = helper.x",
        }
    )
    assert opened.import_file("sub/main.py").x == ("sub", "root")
    assert opened.import_file("main.py").x == "root"


def test_a_file_may_be_called_like_the_library_that_it_imports(package):
    opened = package({"pytest.py": "import pytest\nx = pytest.mark", "b.py": ""})
    assert opened.import_file("pytest.py").x is pytest.mark


def test_the_same_file_names_in_two_packages(package):
    def files(mark):
        return {
            "main.py": "import helper\nfrom .sub import tool\nx = helper.x, tool.x",
            "helper.py": f"x = '{mark}'",
            "sub/tool.py": "import helper\nx = helper.x * 2",
        }

    first, second = package(files("a"), "first"), package(files("b"), "second")
    assert first.import_file("main.py").x == ("a", "aa")
    assert second.import_file("main.py").x == ("b", "bb")
    assert first.import_file("main.py").x == ("a", "aa")


@pytest.mark.slow
def test_torch_compile_goes_through_modules_with_our_import(package):
    import torch

    opened = package(
        {
            "main.py": """
                import torch
                from helper import scale

                @torch.compile(backend="eager")
                def run(x):
                    import late
                    return scale(x) + late.y
            """,
            "helper.py": "def scale(x):\n    return x * 2",
            "late.py": "y = 1",
        }
    )
    assert opened.import_file("main.py").run(torch.ones(2)).tolist() == [3.0, 3.0]
