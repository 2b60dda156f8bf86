"""Importing folders as packages of their own."""

from __future__ import annotations

import importlib
import inspect
import linecache
import pickle
import subprocess
import sys
import textwrap
import threading
from types import MappingProxyType

import pytest

from flashinfer_bench.compile.toolkit import open_package
from flashinfer_bench.compile.toolkit.pymodule import _finder


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


class Snapshot:
    """What imports may change for the whole process."""

    def __init__(self):
        self.path = list(sys.path)
        self.modules = set(sys.modules)
        self.meta_path = list(sys.meta_path)
        self.importers = set(sys.path_importer_cache)
        self.lines = set(linecache.cache)

    def __eq__(self, other):
        return vars(self) == vars(other)

    def __repr__(self):
        return f"{len(self.modules)} modules, {len(self.path)} paths, {len(self.lines)} files"


class TestImport:
    def test_one_file(self, package):
        module = package({"main.py": "x = 1"}).import_file("main.py")
        assert module.x == 1
        assert module.__name__ == "pkg.main"

    def test_a_file_in_a_folder(self, package):
        module = package({"src/deep/main.py": "x = __name__"}).import_file("src/deep/main.py")
        assert module.x == "pkg.src.deep.main"

    def test_the_file_knows_where_it_is_and_finds_its_neighbours(self, package):
        opened = package(
            {
                "sub/main.py": """
                    from pathlib import Path
                    here = Path(__file__).parent
                    kernel = (here / "kernel.cu").read_text()
                """,
                "sub/kernel.cu": "__global__",
            }
        )
        module = opened.import_file("sub/main.py")
        assert module.kernel == "__global__"
        assert module.here == opened.root / "sub"

    def test_an_init_file_is_run_first(self, package):
        opened = package({"__init__.py": "order = ['init']", "main.py": "from . import order"})
        assert opened.import_file("main.py").order == ["init"]

    def test_an_init_file_can_be_the_entry(self, package):
        opened = package({"__init__.py": "from .a import x", "a.py": "x = 5"})
        assert opened.import_file("__init__.py").x == 5
        opened = package({"sub/__init__.py": "x = __name__", "a.py": ""})
        assert opened.import_file("sub/__init__.py").x.endswith(".sub")

    @pytest.mark.parametrize("name", ["kernel.v2.py", "my-kernel.py", "1st.py", "a b.py"])
    def test_names_that_are_no_identifiers(self, package, name):
        assert package({name: "x = 1"}).import_file(name).x == 1

    def test_dots_in_folder_names(self, package):
        opened = package(
            {"v1.0/main.py": "from .b import x\nimport b\ny = b.x", "v1.0/b.py": "x = 1"}
        )
        module = opened.import_file("v1.0/main.py")
        assert (module.x, module.y, module.__name__) == (1, 1, f"{opened.name}.v1_0.main")

    def test_a_missing_file_is_an_import_error(self, package):
        with pytest.raises(ModuleNotFoundError):
            package({"main.py": ""}).import_file("other.py")

    def test_a_module_is_run_once(self, package):
        opened = package({"main.py": "x = object()"})
        assert opened.import_file("main.py") is opened.import_file("main.py")

    def test_no_bytecode_is_written(self, package):
        opened = package({"main.py": "from . import b", "b.py": ""})
        opened.import_file("main.py")
        assert sorted(file.name for file in opened.root.iterdir()) == ["b.py", "main.py"]

    def test_the_source_can_be_inspected(self, package):
        module = package({"main.py": "def run(x):\n    return x\n"}).import_file("main.py")
        assert inspect.getsource(module.run) == "def run(x):\n    return x\n"

    def test_objects_can_be_pickled_while_it_is_open(self, package):
        module = package({"main.py": "class A:\n    x = 3"}).import_file("main.py")
        assert pickle.loads(pickle.dumps(module.A())).x == 3

    @pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "ValueError"])
    def test_what_a_module_raises_comes_through_and_leaves_no_module(self, package, kind):
        opened = package({"main.py": f"raise {kind}('x')"})
        with pytest.raises(BaseException, match="x") as caught:
            opened.import_file("main.py")
        assert type(caught.value).__name__ == kind
        assert "pkg.main" not in sys.modules


class TestImportsWithin:
    def test_relative(self, package):
        opened = package(
            {
                "main.py": "from .helper import x\nfrom . import helper\nfrom .sub.deep import y",
                "helper.py": "x = 1",
                "sub/deep.py": "from ..helper import x as y",
            }
        )
        module = opened.import_file("main.py")
        assert (module.x, module.y, module.helper.x) == (1, 1, 1)

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

    def test_plain_and_relative_give_one_module(self, package):
        opened = package(
            {"main.py": "import helper\nfrom . import helper as again", "helper.py": ""}
        )
        module = opened.import_file("main.py")
        assert module.helper is module.again

    def test_late_imports_within_functions(self, package):
        opened = package(
            {"main.py": "def run():\n    import late\n    return late.x", "late.py": "x = 3"}
        )
        run = opened.import_file("main.py").run
        assert "pkg.late" not in sys.modules
        assert run() == 3

    def test_helpers_import_helpers(self, package):
        opened = package(
            {"main.py": "import a", "a.py": "import b", "b.py": "from c import x", "c.py": "x = 4"}
        )
        assert opened.import_file("main.py").a.b.x == 4

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

    def test_cycles(self, package):
        opened = package({"main.py": "import a", "a.py": "import b\nx = 1", "b.py": "import a"})
        module = opened.import_file("main.py")
        assert module.a.b.a is module.a

    def test_the_standard_library_cannot_be_shadowed(self, package):
        opened = package(
            {"main.py": "import random, json", "random.py": "", "json/__init__.py": ""}
        )
        module = opened.import_file("main.py")
        assert module.random is sys.modules["random"]
        assert module.json is sys.modules["json"]

    def test_a_file_may_be_called_like_the_library_that_it_imports(self, package):
        opened = package({"pytest.py": "import pytest\nx = pytest.mark", "b.py": ""})
        assert opened.import_file("pytest.py").x is pytest.mark

    def test_other_files_find_the_file_and_not_the_library(self, package):
        opened = package({"main.py": "import pytest\nx = pytest.x", "pytest.py": "x = 'ours'"})
        assert opened.import_file("main.py").x == "ours"
        assert sys.modules["pytest"] is pytest

    def test_what_is_nowhere_is_reported_by_its_plain_name(self, package):
        opened = package({"main.py": "import helper", "helper.py": "import no_such_module_xyz"})
        with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module_xyz'"):
            opened.import_file("main.py")

    def test_a_name_missing_from_a_helper(self, package):
        opened = package({"main.py": "from helper import missing", "helper.py": ""})
        with pytest.raises(ImportError, match="cannot import name 'missing'"):
            opened.import_file("main.py")

    def test_import_module_works_with_the_full_name(self, package):
        opened = package(
            {
                "main.py": "import importlib\nx = importlib.import_module('.b', __package__).x",
                "b.py": "x = 2",
            }
        )
        assert opened.import_file("main.py").x == 2

    def test_dataclasses_and_type_hints_resolve(self, package):
        opened = package(
            {
                "main.py": """
                    from __future__ import annotations
                    import dataclasses, typing
                    from helper import Kind

                    @dataclasses.dataclass
                    class Config:
                        kind: Kind
                        sizes: typing.ClassVar[int] = 3

                    hints = typing.get_type_hints(Config)
                """,
                "helper.py": "class Kind: pass",
            }
        )
        module = opened.import_file("main.py")
        assert module.hints["kind"] is module.Kind

    def test_builtins_are_complete(self, package):
        opened = package({"main.py": "x = sorted(range(3)); assert len(x) == 3", "b.py": ""})
        assert opened.import_file("main.py").x == [0, 1, 2]

    def test_a_single_file_keeps_the_usual_import(self, package):
        module = package({"main.py": "", "kernel.cu": ""}).import_file("main.py")
        import builtins

        assert vars(module)["__builtins__"] in (vars(builtins), builtins)


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

    def test_the_same_name_is_given_once(self, package):
        first, second, third = (package({"main.py": f"x = {i}"}, "same") for i in range(3))
        assert [p.name for p in (first, second, third)] == ["same", "same_2", "same_3"]
        assert [p.import_file("main.py").x for p in (first, second, third)] == [0, 1, 2]

    def test_a_name_that_is_an_installed_module_is_not_taken(self, package):
        assert package({"main.py": ""}, "pytest").name == "pytest_2"

    def test_closing_one_leaves_the_others(self, package):
        first, second = package(self.files("a"), "first"), package(self.files("b"), "second")
        first.import_file("main.py")
        first.close()
        assert second.import_file("main.py").x == ("b", "bb")
        assert not any(name.split(".")[0] == "first" for name in sys.modules)

    def test_a_name_is_free_again_after_closing(self, package):
        first = package({"main.py": "x = 1"}, "again")
        first.import_file("main.py")
        first.close()
        second = package({"main.py": "x = 2"}, "again")
        assert second.name == "again"
        assert second.import_file("main.py").x == 2

    def test_closing_twice_does_not_close_a_successor(self, package):
        first = package({"main.py": "x = 1"}, "again")
        first.close()
        second = package({"main.py": "x = 2"}, "again")
        first.close()
        assert second.import_file("main.py").x == 2

    def test_functions_work_after_closing(self, package):
        opened = package(
            {"main.py": "import helper\ndef run(): return helper.x", "helper.py": "x = 1"}
        )
        run = opened.import_file("main.py").run
        opened.close()
        assert run() == 1

    def test_nothing_is_left_behind(self, package):
        before = Snapshot()
        for index in range(30):
            opened = package(self.files(str(index)))
            module = opened.import_file("main.py")
            assert module.x == (str(index), str(index) * 2)
            linecache.getlines(module.__file__)
            opened.close()
        assert Snapshot() == before

    def test_nothing_is_left_behind_by_a_failing_import(self, package):
        before = Snapshot()
        opened = package({"main.py": "import helper\nraise ValueError('broken')", "helper.py": ""})
        with pytest.raises(ValueError, match="broken"):
            opened.import_file("main.py")
        opened.close()
        assert Snapshot() == before

    def test_sys_path_is_never_touched_even_in_between(self, package):
        before = list(sys.path)
        opened = package({"main.py": "import sys, helper\nseen = list(sys.path)", "helper.py": ""})
        assert opened.import_file("main.py").seen == before

    def test_threads_can_import_at_once(self, package):
        packages = [package(self.files(str(index)), f"thread{index}") for index in range(8)]
        results = {}

        def load(index):
            results[index] = packages[index].import_file("main.py").x

        threads = [threading.Thread(target=load, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {index: (str(index), str(index) * 2) for index in range(8)}

    def test_the_finder_passes_over_everything_else(self, package):
        package({"main.py": ""})
        assert _finder.find_spec("json") is None
        assert importlib.util.find_spec("no_such_module_xyz") is None
        assert importlib.util.find_spec("pkg.no_such_module") is None
        assert importlib.util.find_spec("pkg.main") is not None


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


def test_opening_a_package_imports_nothing_heavy():
    code = "import sys, flashinfer_bench.compile.toolkit; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
