"""Being told of imports, without anybody else noticing."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from importlib.machinery import ModuleSpec

import pytest

from flashinfer_bench.routing.patch_manager import ImportHook, is_here


@pytest.fixture
def told():
    return []


@pytest.fixture
def hook(told):
    """Notes which of the modules that it waits for are there when it is told."""
    made = ImportHook(lambda: told.append(sorted(name for name in made.names if is_here(name))))
    yield made
    made.wait_for(())


def test_an_import_is_told_of_and_not_changed(world, hook, told):
    plain, watched = world.write("plain", "X = 1\n"), world.write("watched", "X = 1\n")
    hook.wait_for([watched])
    one, other = importlib.import_module(plain), importlib.import_module(watched)
    assert told == [[watched]]
    assert type(other.__spec__) is ModuleSpec
    assert type(other.__loader__) is type(one.__loader__)
    assert other.__spec__.loader is other.__loader__
    assert vars(other.__spec__).keys() == vars(one.__spec__).keys()
    assert vars(other).keys() == vars(one).keys()
    assert pickle.loads(pickle.dumps(other.__spec__)) == other.__spec__
    assert importlib.reload(other) is other
    assert other.__file__.endswith(f"{watched}.py")


def test_a_module_that_fails(world, hook, told):
    name = world.write("fails", "import sys\nif not hasattr(sys, 'p1_ok'):\n    raise OSError('x')")
    hook.wait_for([name])
    with pytest.raises(OSError, match="x"):
        importlib.import_module(name)
    assert name not in sys.modules
    assert told == [[]]
    sys.p1_ok = True
    try:
        importlib.import_module(name)
    finally:
        del sys.p1_ok
    assert told == [[], [name]]


def test_packages_submodules_and_namespaces(world, hook, told):
    package = world.write("pack", "X = 1\n")
    world.write("pack.sub", "from . import X\n")
    (world.folder / f"{world.prefix}_space").mkdir()
    inner = world.write("space.inner", "Y = 2\n")
    space = inner.partition(".")[0]
    hook.wait_for([package, f"{package}.sub", space, inner])
    assert importlib.import_module(f"{package}.sub").X == 1
    assert importlib.import_module(inner).Y == 2
    assert told[0] == [package]
    assert told[-1] == sorted([package, f"{package}.sub", space, inner])
    assert list(sys.modules[space].__path__) == [str(world.folder / space)]


def test_a_module_that_loads_lazily(world, hook, told):
    """It is not woken; the next import of anything tells once it is awake."""
    name, other = world.write("sleepy", "X = 1\n"), world.write("other", "")
    hook.wait_for([name])
    spec = importlib.util.find_spec(name)
    loader = importlib.util.LazyLoader(spec.loader)
    spec.loader = loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    hook.find_spec("json_p1")
    assert told == []
    assert not is_here(name)
    assert module.X == 1
    importlib.import_module(other)
    assert told[0] == [name]


def test_another_finder_that_asks_all_others(world, hook, told):
    """As import hooks of other libraries do; neither asks the other without end."""
    name = world.write("both", "X = 1\n")

    class Other:
        asked = 0

        def find_spec(self, fullname, path=None, target=None):
            if fullname != name or self.asked > 5:
                return None
            self.asked += 1
            for finder in sys.meta_path:
                if finder is not self and (spec := finder.find_spec(fullname, path, target)):
                    return spec
            return None

    other = Other()
    sys.meta_path.insert(0, other)
    hook.wait_for([name])
    sys.meta_path.append(other)
    try:
        assert importlib.import_module(name).X == 1
    finally:
        while other in sys.meta_path:
            sys.meta_path.remove(other)
    assert told == [[name]]


def test_what_the_callback_raises_does_not_reach_the_import(world, caplog):
    name = world.write("quiet", "X = 1\n")
    hook = ImportHook(lambda: [][1])
    hook.wait_for([name])
    try:
        assert importlib.import_module(name).X == 1
    finally:
        hook.wait_for(())
    assert "IndexError" in caplog.text
