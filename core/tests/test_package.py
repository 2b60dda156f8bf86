"""What ``import flashinfer_bench`` gives, and what it leaves alone."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import flashinfer_bench
from flashinfer_bench._lazy import import_string


def modules_after(code):
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def test_importing_the_package_loads_nothing_heavy():
    loaded = modules_after("import flashinfer_bench")
    assert not loaded & {
        "torch",
        "pydantic",
        "numpy",
        "rich",
        "typer",
        "pluggy",
        "msgspec",
        "safetensors",
    }
    assert {name for name in loaded if name.startswith("flashinfer_bench.")} == {
        "flashinfer_bench._lazy",
        "flashinfer_bench._version",
    }


@pytest.mark.parametrize("package", ["bench", "compile", "data", "plugins", "routing", "tensors"])
def test_a_package_loads_its_modules_when_they_are_used(package):
    """Else threads that import two of them at once, as probes do, wait for each other."""
    loaded = modules_after(f"import flashinfer_bench.{package}")
    assert not [name for name in loaded if name.startswith(f"flashinfer_bench.{package}.")]


@pytest.mark.torch
@pytest.mark.plugin("python")
def test_a_worker_has_all_it_builds_with_when_it_is_forked():
    """And what stands for earlier releases is left alone."""
    code = (
        "import sys\n"
        "from flashinfer_bench.bench.candidate import start\n"
        "start.preload('cpu')\n"
        "from flashinfer_bench.compile import BuilderRegistry\n"
        "from flashinfer_bench.data import Definition, Solution\n"
        "from flashinfer_bench.plugins import default_catalog\n"
        "x = {'shape': ['n'], 'dtype': 'float32'}\n"
        "told = {'name': 'd', 'op_type': 'o', 'axes': {'n': {'type': 'var'}}, 'inputs': {'x': x}}\n"
        "definition = Definition(**told, outputs={'y': x}, reference='def run(x): return x')\n"
        "spec = {'language': 'python', 'target_hardware': ['cpu'], 'entry_point': 'm.py::run'}\n"
        "sources = [{'path': 'm.py', 'content': 'def run(x): return x'}]\n"
        "made = {'name': 's', 'definition': 'd', 'author': 'a', 'spec': spec, 'sources': sources}\n"
        "registry = BuilderRegistry.from_catalog(default_catalog(), device='cpu')\n"
        "before = set(sys.modules)\n"
        "registry.build(definition, Solution(**made))\n"
        "for name in before: sys.modules.pop(name, None)"
    )
    assert not [name for name in modules_after(code) if name.startswith("flashinfer_bench.")]


def test_importing_changes_nothing_process_wide():
    code = (
        "import signal, sys, json\n"
        "def state():\n"
        "    import warnings\n"
        "    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGCHLD]\n"
        "    handlers = [str(signal.getsignal(n)) for n in numbers]\n"
        "    return handlers, list(sys.path), str(sys.excepthook)\n"
        "before = state()\n"
        "import flashinfer_bench, flashinfer_bench.data, flashinfer_bench.plugins\n"
        "import flashinfer_bench.cli.main\n"
        "assert state() == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = flashinfer_bench.nonsense


def module_names():
    path, prefix = flashinfer_bench.__path__, "flashinfer_bench."
    return [
        info.name
        for info in pkgutil.walk_packages(path, prefix)
        if not info.name.endswith("__main__")
    ]


@pytest.mark.slow
def test_every_module_imports_alone_and_without_torch():
    """No hidden order of imports, and nothing heavy at module level."""
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    ours = ('flashinfer_bench', 'fib_')\n"
        "    for loaded in [m for m in sys.modules if m.startswith(ours)]:\n"
        "        del sys.modules[loaded]\n"
        "    importlib.import_module(name)\n"
        "    heavy = {'torch', 'numpy', 'safetensors'} & set(sys.modules)\n"
        "    assert not heavy, f'{name} imports {heavy}'\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, *module_names()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("os.path", ValueError),
        (":join", ValueError),
        ("os.path:", ValueError),
        ("no_such_module_here:x", ImportError),
        ("os.path:nope", AttributeError),
    ],
)
def test_code_is_imported_by_its_name(path, error):
    assert import_string("os.path:join") is __import__("os").path.join
    assert import_string("collections:OrderedDict.fromkeys")
    with pytest.raises(error):
        import_string(path)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["", ".apply", ".bench", ".data", ".routing", ".tracing"])
def test_each_name_that_a_package_exports_is_there(name):
    package = importlib.import_module(f"flashinfer_bench{name}")
    assert [each for each in package.__all__ if not hasattr(package, each)] == []
    assert {*package.__all__} <= {*dir(package)}
