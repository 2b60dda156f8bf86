"""Adapters, and the manager that puts their wrappers on and takes them off."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from flashinfer_bench.errors import CapabilityError, ConfigError
from flashinfer_bench.integration import Adapter, PatchManager, PatchSpec, get_manager, resolve

LIBRARY = "fib_target_library"


@pytest.fixture
def library(monkeypatch):
    """A module of its own for each test."""
    place = Path(__file__).with_name("target_library.py")
    spec = importlib.util.spec_from_file_location(LIBRARY, place)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, LIBRARY, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def manager():
    made = PatchManager()
    yield made
    made.unpatch_all()


def spec(path, kind="function", **fields):
    return PatchSpec(f"{LIBRARY}.{path}", kind, path.rpartition(".")[2], **fields)


class Counting(Adapter):
    """Counts calls."""

    def __init__(self):
        self.calls = []

    def targets(self):
        return (spec("scale"), spec("Wrapper.plan", "method"), spec("Wrapper.run", "method"))

    def make_wrapper(self, spec, orig):
        @functools.wraps(orig)
        def wrapper(*args, **kwargs):
            self.calls.append(spec.name)
            return orig(*args, **kwargs)

        return wrapper


class TestPatchSpec:
    def test_fields(self):
        one = PatchSpec("a.b.c", "method", "run", ctx_key="b")
        assert (one.path, one.kind, one.name, one.ctx_key) == ("a.b.c", "method", "run", "b")
        assert PatchSpec("a.b", "function", "b").ctx_key == ""
        assert len({one, PatchSpec("a.b.c", "method", "run", ctx_key="b")}) == 1

    @pytest.mark.parametrize("path", ["", "function", "a..b", "a.b()", ".a.b", "a:b"])
    def test_a_path_must_be_dotted(self, path):
        with pytest.raises(ConfigError, match="is no dotted path"):
            PatchSpec(path, "function", "x")

    def test_the_kind_is_one_of_two(self):
        with pytest.raises(ConfigError, match="neither 'function' nor 'method'"):
            PatchSpec("a.b", "module", "x")


class TestResolve:
    def test_a_function(self, library):
        target = resolve(f"{LIBRARY}.scale")
        assert (target.owner, target.attribute, target.own) == (library, "scale", True)
        assert target.function is library.scale

    def test_a_method(self, library):
        target = resolve(f"{LIBRARY}.Wrapper.run")
        assert target.owner is library.Wrapper
        assert target.function is library.Wrapper.run

    def test_static_and_class_methods_as_they_are_stored(self, library):
        for name, kind in (("version", staticmethod), ("make", classmethod)):
            target = resolve(f"{LIBRARY}.Wrapper.{name}")
            assert isinstance(target.found, kind)
            assert target.function is target.found.__func__

    def test_an_inherited_method_is_not_the_class_s_own(self, library):
        assert not resolve(f"{LIBRARY}.Derived.run").own

    @pytest.mark.parametrize(
        ("path", "told"),
        [
            ("no_such_library_xyz.a.b", "no_such_library_xyz cannot be imported"),
            (f"{LIBRARY}.missing", "has no 'missing'"),
            (f"{LIBRARY}.Missing.run", "has no 'Missing'"),
            (f"{LIBRARY}.Wrapper.missing", "Wrapper has no 'missing'"),
        ],
    )
    def test_what_is_not_there_is_named(self, library, path, told):
        with pytest.raises(CapabilityError, match=told):
            resolve(path)

    def test_a_module_that_lacks_a_library_of_its_own(self, tmp_path, monkeypatch):
        (tmp_path / "fib_half_installed.py").write_text("import no_such_library_xyz\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(CapabilityError, match="No module named 'no_such_library_xyz'"):
            resolve("fib_half_installed.run")

    def test_a_module_that_raises_import_error(self, tmp_path, monkeypatch):
        (tmp_path / "fib_not_here.py").write_text("raise ImportError('needs a GPU')\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(CapabilityError, match="needs a GPU"):
            resolve("fib_not_here.run")


class TestPatchManager:
    def test_wrappers_are_called_and_then_are_gone(self, library, manager):
        adapter, before = Counting(), dict(vars(library.Wrapper))
        original = library.scale
        assert all(manager.patch(each, adapter.make_wrapper) for each in adapter.targets())
        made = library.Wrapper()
        made.plan(3)
        assert (library.scale(2), made.run(2)) == (4, 6)
        assert adapter.calls == ["plan", "scale", "run"]
        assert len(manager.patched) == 3
        manager.unpatch_all()
        assert library.scale is original
        assert all(vars(library.Wrapper)[name] is value for name, value in before.items())
        assert manager.patched == ()
        library.scale(2)
        assert len(adapter.calls) == 3

    def test_a_second_patch_changes_nothing(self, library, manager):
        adapter = Counting()
        assert manager.patch(spec("scale"), adapter.make_wrapper)
        wrapper = library.scale
        assert manager.patch(spec("scale"), adapter.make_wrapper)
        assert library.scale is wrapper
        library.scale(1)
        assert adapter.calls == ["scale"]

    def test_unpatching_twice_changes_nothing(self, library, manager):
        original = library.scale
        manager.patch(spec("scale"), Counting().make_wrapper)
        manager.unpatch_all()
        manager.unpatch_all()
        assert library.scale is original

    def test_what_is_not_there_is_left_out(self, library, manager):
        assert manager.patch(spec("missing"), Counting().make_wrapper) is False
        assert manager.patch(PatchSpec("no_such_library_xyz.f", "function", "f"), None) is False
        assert manager.patched == ()

    def test_static_and_class_methods_stay_what_they_are(self, library, manager):
        adapter = Counting()
        before = {name: vars(library.Wrapper)[name] for name in ("version", "make")}
        for name in before:
            assert manager.patch(spec(f"Wrapper.{name}", "method"), adapter.make_wrapper)
        assert library.Wrapper.version() == library.Wrapper().version() == "1.0"
        assert library.Derived.make(4).run(2) == 8
        assert type(library.Derived.make(4)) is library.Derived
        assert adapter.calls == ["version", "version", "make", "make"]
        manager.unpatch_all()
        assert {name: vars(library.Wrapper)[name] for name in before} == before

    def test_an_inherited_method_is_taken_off_the_class_again(self, library, manager):
        adapter = Counting()
        manager.patch(spec("Derived.plan", "method"), adapter.make_wrapper)
        library.Derived().plan(1)
        library.Wrapper().plan(1)
        assert adapter.calls == ["plan"]
        manager.unpatch_all()
        assert "plan" not in vars(library.Derived)
        assert library.Derived.plan is library.Wrapper.plan

    def test_two_managers_stack(self, library, manager):
        other, first, second = PatchManager(), Counting(), Counting()
        original = library.scale
        manager.patch(spec("scale"), first.make_wrapper)
        other.patch(spec("scale"), second.make_wrapper)
        library.scale(1)
        assert (first.calls, second.calls) == (["scale"], ["scale"])
        other.unpatch_all()
        manager.unpatch_all()
        assert library.scale is original

    def test_a_factory_that_raises_leaves_the_target_alone(self, library, manager):
        original = library.scale

        def factory(spec, orig):
            raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            manager.patch(spec("scale"), factory)
        assert library.scale is original
        assert manager.patched == ()

    def test_the_process_has_one(self):
        assert get_manager() is get_manager()


def test_an_adapter_must_say_both():
    class Half(Adapter):
        def targets(self):
            return ()

    with pytest.raises(TypeError, match="abstract"):
        Half()


def test_the_old_place_of_patch_spec():
    from flashinfer_bench.integration import patch_manager

    assert patch_manager.PatchSpec is PatchSpec


def test_nothing_heavy_is_imported():
    code = (
        "import sys, flashinfer_bench.integration\n"
        "print({'torch', 'flashinfer', 'numpy', 'pydantic'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
