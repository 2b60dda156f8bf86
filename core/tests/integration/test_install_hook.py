"""Being told of imports, without anybody else noticing."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
import threading
import zipfile
from importlib.machinery import ModuleSpec

import pytest

from flashinfer_bench.integration.import_hook import ImportHook, is_here, notice


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


def test_it_is_in_the_path_only_while_it_waits(hook):
    before = list(sys.meta_path)
    hook.wait_for(["no_such_module_p1"])
    hook.wait_for(["no_such_module_p1", "another_p1"])
    assert sys.meta_path == [hook, *before]
    hook.wait_for(())
    hook.wait_for(())
    assert sys.meta_path == before


def test_what_is_not_there_stays_not_there(hook, told):
    hook.wait_for(["no_such_module_p1"])
    assert importlib.util.find_spec("no_such_module_p1") is None
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module_p1'") as caught:
        importlib.import_module("no_such_module_p1")
    assert caught.value.name == "no_such_module_p1"
    assert told == []


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


def test_a_spec_that_is_only_looked_at(world, hook, told):
    name = world.write("looked", "X = 1\n")
    hook.wait_for([name])
    spec = importlib.util.find_spec(name)
    assert isinstance(spec, ModuleSpec)
    copied = pickle.loads(pickle.dumps(spec))
    assert type(copied) is ModuleSpec
    assert copied == spec
    assert (copied.origin, copied.has_location) == (spec.origin, spec.has_location)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.X == 1
    assert told == []


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


def test_a_zip_file(world, hook, told, monkeypatch):
    archive = world.folder / "some.zip"
    name = f"{world.prefix}_zipped"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(f"{name}.py", "Z = 3\n")
    monkeypatch.syspath_prepend(str(archive))
    hook.wait_for([name])
    module = importlib.import_module(name)
    assert (module.Z, told) == (3, [[name]])
    assert module.__loader__.get_source(name) == "Z = 3\n"


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


def test_a_module_that_is_being_imported_already(world, hook, told):
    name = world.write("amid", "import sys\nsys.p1_amid()\nX = 1\n")
    sys.p1_amid = lambda: hook.wait_for([name])
    try:
        module = importlib.import_module(name)
    finally:
        del sys.p1_amid
    assert told == [[name]]
    assert type(module.__spec__) is ModuleSpec


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


def test_a_spec_of_somebody_s_own_class(told):
    class Mine(ModuleSpec):
        pass

    spec = Mine("x", None)
    assert not notice(spec, told.append)
    assert type(spec) is Mine


def test_what_the_callback_raises_stays_here(world, caplog):
    name = world.write("quiet", "X = 1\n")

    def fail():
        raise RuntimeError("ours")

    hook = ImportHook(fail)
    hook.wait_for([name])
    try:
        assert importlib.import_module(name).X == 1
    finally:
        hook.wait_for(())
    assert "ours" in caplog.text


def test_imports_of_several_threads(world, hook, told):
    names = [world.write(f"many{i}", f"import time\ntime.sleep(0.01)\nX = {i}\n") for i in range(6)]
    hook.wait_for(names)
    found, wrong = {}, []

    def load(name):
        try:
            found[name, threading.get_ident()] = importlib.import_module(name).X
        except ImportError as error:
            wrong.append(error)

    threads = [threading.Thread(target=load, args=(name,)) for name in names * 3]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []
    assert {name: x for (name, _), x in found.items()} == dict(zip(names, range(6), strict=True))
    assert all(type(sys.modules[name].__spec__) is ModuleSpec for name in names)
    assert sorted(told)[-1]
    assert len(told) >= 6


def test_this_interpreter_marks_specs_as_it_is_expected(world):
    """The mark has no public name: this says if a new Python does without."""
    seen = []
    name = world.write("marked", "import sys\nsys.p1_seen(__spec__._initializing)\n")
    sys.p1_seen = seen.append
    try:
        spec = importlib.import_module(name).__spec__
    finally:
        del sys.p1_seen
    assert seen == [True]
    assert vars(spec)["_initializing"] is False
