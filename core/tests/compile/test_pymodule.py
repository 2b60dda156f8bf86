"""Importing folders as packages of their own."""

import sys
import textwrap
from types import MappingProxyType

import pytest

from flashinfer_bench.compile.toolkit import open_package


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


class TestImport:
    @pytest.mark.parametrize("name", ["kernel.v2.py", "my-kernel.py", "1st.py", "a b.py"])
    def test_names_that_are_no_identifiers(self, package, name):
        assert package({name: "x = 1"}).import_file(name).x == 1

    @pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "ValueError"])
    def test_what_a_module_raises_comes_through_and_leaves_no_module(self, package, kind):
        opened = package({"main.py": f"raise {kind}('x')"})
        with pytest.raises(BaseException, match="x") as caught:
            opened.import_file("main.py")
        assert type(caught.value).__name__ == kind
        assert "pkg.main" not in sys.modules


class TestImportsWithin:
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
    def test_plain(self, package, statement):
        opened = package({"main.py": statement, "helper.py": "x = 7", "sub/deep.py": "x = 7"})
        assert opened.import_file("main.py").x == 7
        assert "helper" not in sys.modules
        assert "sub" not in sys.modules

    def test_the_nearest_folder_wins(self, package):
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

    def test_a_file_may_be_called_like_the_library_that_it_imports(self, package):
        opened = package({"pytest.py": "import pytest\nx = pytest.mark", "b.py": ""})
        assert opened.import_file("pytest.py").x is pytest.mark


class TestIsolation:
    FILES = MappingProxyType(
        {
            "main.py": "import helper\nfrom .sub import tool\nx = helper.x, tool.x",
            "helper.py": "x = '{0}'",
            "sub/tool.py": "import helper\nx = helper.x * 2",
        }
    )

    def files(self, mark):
        return {path: text.format(mark) for path, text in self.FILES.items()}

    def test_the_same_file_names_in_two_packages(self, package):
        first = package(self.files("a"), "first")
        second = package(self.files("b"), "second")
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
