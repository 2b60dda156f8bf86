"""From sources to a function, for all languages that live in Python."""

import gc
import sys
import weakref

import pytest
import torch

from flashinfer_bench.compile.toolkit import load_python
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


def scratch_files(cache_folder):
    return list((cache_folder / "scratch").rglob("*.py"))


def test_a_cleaned_solution_is_freed(definition, make_solution):
    source = "class Big: pass\nbig = Big()\ndef run(x, y):\n    return big\n"
    loaded = load_python(definition, make_solution(source), prefix="test")
    big = weakref.ref(loaded.function(X, X))
    assert big() is not None
    loaded.cleaner()
    del loaded
    gc.collect()
    assert big() is None


class TestErrors:
    def fails(self, load, solution):
        with pytest.raises(BuildError) as caught:
            load(solution)
        assert repr(solution.name) in caught.value.message
        return caught.value

    def test_a_syntax_error(self, load, make_solution):
        error = self.fails(load, make_solution("import torch\ndef run(x, y)\n    return x\n"))
        assert "importing main.py failed: main.py:2: SyntaxError: " in str(error)
        assert "def run(x, y)" in error.log

    @pytest.mark.parametrize(
        "statement",
        [
            "raise SystemExit(3)",
            "import sys; sys.exit('bye')",
            "exit()",
            "class Odd(BaseException): pass\nraise Odd('odd')",
            "raise GeneratorExit",
            "def f(): f()\nf()",
            "raise type('E', (Exception,), {'__str__': lambda self: 1/0})()",
        ],
    )
    def test_nothing_that_a_solution_raises_ends_the_process(self, load, make_solution, statement):
        self.fails(load, make_solution(statement))

    def test_a_missing_symbol_with_a_suggestion(self, load, make_solution):
        error = self.fails(load, make_solution("def rum(x, y): pass\n_private = 1\n"))
        assert "main.py defines no 'run'" in str(error)
        assert error.hint == "Did you mean 'rum'?"

    @pytest.mark.parametrize(
        "source",
        ["import nowhere_xyz", "def run(x): pass", "x = 1", "def f(:", "raise SystemExit"],
    )
    def test_every_failure_leaves_nothing_behind(self, load, make_solution, cache_folder, source):
        modules, meta_path = set(sys.modules), list(sys.meta_path)
        self.fails(load, make_solution(source))
        assert set(sys.modules) == modules
        assert sys.meta_path == meta_path
        assert scratch_files(cache_folder) == []


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
