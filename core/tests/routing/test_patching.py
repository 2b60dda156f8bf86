"""The manager of patches: what is put on, where else it is found, and what is taken off again."""

from __future__ import annotations

import functools
import importlib
import math
import sys
import types

import pytest

from flashinfer_bench.errors import CapabilityError, ConfigError
from flashinfer_bench.routing import PatchSpec, PatchStatus, resolve
from flashinfer_bench.routing.patch_manager import (
    NotPatchedError,
    Order,
    look_up,
)


@pytest.fixture
def lib(world):
    return importlib.import_module(world.library())


CALLS = []


def wrapping(spec, orig):
    @functools.wraps(orig)
    def wrapper(*args, **kwargs):
        CALLS.append(spec.path.rpartition(".")[2])
        return orig(*args, **kwargs)

    return wrapper


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


def order(path, adapter="a", **fields):
    return Order(adapter, PatchSpec(path, "function", "x", **fields), wrapping)


def put_on(manager, *paths):
    return manager.patch_all([order(path) for path in paths])


def user_of(world, lib, code="from {lib} import scale, Wrapper as Taken\n", name="user"):
    return importlib.import_module(world.write(name, code.format(lib=lib.__name__)))


class TestResolve:
    @pytest.mark.parametrize("path", ["", "function", "a..b", "a.b()", ".a.b", "a:b"])
    def test_a_path_must_be_dotted(self, path):
        with pytest.raises(ConfigError, match="is not a dotted path"):
            PatchSpec(path, "function", "x")

    @pytest.mark.parametrize(
        ("path", "told"),
        [
            ("gone", "has no 'gone'"),
            ("Gone.run", "has no 'Gone'"),
            ("scale.x", "is neither a module nor a class"),
            ("Wrapper.gone", "Wrapper has no 'gone'"),
        ],
    )
    def test_what_is_not_there_is_named(self, world, lib, path, told):
        with pytest.raises(CapabilityError, match=told):
            resolve(f"{lib.__name__}.{path}")
        with pytest.raises(CapabilityError, match="no_such_library_xyz cannot be imported"):
            resolve("no_such_library_xyz.a.b")


class TestOnAndOff:
    def test_wrappers_are_called_and_then_are_gone(self, world):
        name, manager = world.library(), world.manager  # it is imported by the first patch
        paths = [f"{name}.{each}" for each in ("scale", "Wrapper.plan", "Wrapper.run")]
        assert all(manager.patch(order(path).spec, wrapping) for path in paths)
        lib, made = sys.modules[name], sys.modules[name].Wrapper()
        made.plan(3)
        assert (lib.scale(2), made.run(2)) == (4, 6)
        assert CALLS == ["plan", "scale", "run"]
        assert manager.patched == tuple(paths)
        manager.unpatch_all()
        assert manager.patched == ()
        lib.scale(2)
        lib.Wrapper().plan(1)
        assert len(CALLS) == 3

    def test_static_and_class_methods_stay_what_they_are(self, world):
        code = """
            class Made:
                @staticmethod
                def version():
                    return "1.0"
                @classmethod
                def make(cls):
                    return cls()
            class Derived(Made):
                pass
        """
        lib = importlib.import_module(world.library(more=code))
        before = {name: vars(lib.Made)[name] for name in ("version", "make")}
        for name, kind in (("version", staticmethod), ("make", classmethod)):
            path = f"{lib.__name__}.Made.{name}"
            assert resolve(path).function is before[name].__func__
            assert world.manager.patch(order(path).spec, wrapping)
            assert isinstance(vars(lib.Made)[name], kind)
        assert lib.Made.version() == lib.Made().version() == "1.0"
        assert type(lib.Derived.make()) is lib.Derived
        assert CALLS == ["version", "version", "make"]
        world.manager.unpatch_all()
        assert {name: vars(lib.Made)[name] for name in before} == before

    def test_an_inherited_method_is_taken_off_the_class_again(self, world, lib):
        put_on(world.manager, f"{lib.__name__}.Derived.plan")
        lib.Derived().plan(1)
        lib.Wrapper().plan(1)
        assert CALLS == ["plan"]
        world.manager.unpatch_all()
        assert "plan" not in vars(lib.Derived)
        assert lib.Derived.plan is lib.Wrapper.plan

    def test_a_factory_that_raises_leaves_the_target_alone(self, world, lib):
        original = lib.scale
        with pytest.raises(ZeroDivisionError):
            world.manager.patch(order(f"{lib.__name__}.scale").spec, lambda spec, orig: 1 / 0)
        assert lib.scale is original
        assert world.manager.patched == ()


class TestByValue:
    def test_modules_that_took_it_before_and_after(self, world, lib):
        before, original = user_of(world, lib), lib.scale
        (status,) = put_on(world.manager, f"{lib.__name__}.scale")
        after = user_of(world, lib, name="after")
        assert status == PatchStatus(
            f"{lib.__name__}.scale",
            "a",
            "patched",
            version="1.2.3",
            rebound=(f"{before.__name__}.scale",),
            definitions=("*",),
        )
        assert before.scale is after.scale is lib.scale is not original
        world.manager.unpatch_all()
        assert before.scale is after.scale is lib.scale is original

    def test_what_has_changed_meanwhile_is_left(self, world, lib):
        user, mine = user_of(world, lib), object()
        put_on(world.manager, f"{lib.__name__}.scale")
        user.scale = mine
        world.manager.unpatch_all()
        assert user.scale is mine

    def test_our_own_modules_are_left_alone(self, world, lib):
        own = types.ModuleType("fib_something_own")
        own.scale = original = lib.scale
        sys.modules["fib_something_own"] = own
        try:
            put_on(world.manager, f"{lib.__name__}.scale")
            assert own.scale is original
        finally:
            del sys.modules["fib_something_own"]

    def test_odd_modules(self, world, lib):
        class Stubborn(types.ModuleType):
            def __setattr__(self, name, value):
                raise TypeError("frozen")

            def __getattr__(self, name):
                raise AssertionError(f"{name} was looked up")

        stubborn = Stubborn("stubborn")
        vars(stubborn)["scale"] = original = lib.scale
        slots = type("Slots", (), {"__slots__": ()})()
        sys.modules.update({f"{world.prefix}_a": stubborn, f"{world.prefix}_b": slots})
        sys.modules[f"{world.prefix}_c"] = None
        (status,) = put_on(world.manager, f"{lib.__name__}.scale")
        assert (status.state, status.rebound) == ("patched", ())
        assert vars(stubborn)["scale"] is original

    def test_two_paths_of_one_function(self, world, lib):
        user, original = user_of(world, lib), lib.Wrapper.plan
        put_on(world.manager, f"{lib.__name__}.Wrapper.plan", f"{lib.__name__}.Wrapper.begin")
        assert lib.Wrapper.plan is not lib.Wrapper.begin
        assert lib.Wrapper.plan.__wrapped__ is lib.Wrapper.begin.__wrapped__ is original
        world.manager.unpatch({f"{lib.__name__}.Wrapper.begin"})
        assert lib.Wrapper.begin is original
        assert lib.Wrapper.plan is not original
        world.manager.unpatch_all()
        assert lib.Wrapper.plan is lib.Wrapper.begin is original
        assert user.Taken is lib.Wrapper


class TestPeculiarTargets:
    @pytest.mark.parametrize(
        ("code", "told"),
        [
            ("class C:\n    @property\n    def x(self): return 1\n", "is a property"),
            ("import functools\nclass C:\n    x = functools.cached_property(len)\n", "a property"),
            ("class C:\n    class x: pass\n", "is a class: name one of its methods"),
            ("class C:\n    x = 3\n", "is a int, which cannot be called"),
        ],
    )
    def test_refused_with_the_reason(self, world, code, told):
        module = importlib.import_module(world.write("odd", code))
        before = vars(module.C)["x"]
        (status,) = put_on(world.manager, f"{module.__name__}.C.x")
        assert status.state == "failed"
        assert told in status.reason
        assert vars(module.C)["x"] is before
        assert world.manager.patch(PatchSpec(status.path, "method", "x"), wrapping) is False

    def test_built_in_functions(self, world):
        module = importlib.import_module(world.write("c", "from math import sqrt, floor\n"))
        (status,) = put_on(world.manager, f"{module.__name__}.sqrt")
        assert status.state == "patched"
        assert module.sqrt(4) == 2
        assert module.sqrt is not math.sqrt
        assert type(math.sqrt) is types.BuiltinFunctionType  # the table of C code is left alone
        world.manager.unpatch_all()
        assert module.sqrt is math.sqrt

    def test_one_failure_costs_only_itself(self, world, lib):
        path = lib.__name__
        statuses = put_on(world.manager, f"{path}.no", f"{path}.scale", f"{path}_no.x")
        assert [status.state for status in statuses] == ["missing", "patched", "waiting"]
        assert [status.reason for status in statuses] == [
            f"{path} has no 'no'",
            "",
            f"{path}_no is not imported yet",
        ]


def test_looking_up_imports_and_wakes_nothing(world):
    name = world.write("lazy", "def __getattr__(name):\n    raise OSError(name)\n")
    world.write("lazy.sub", "def f(): pass\n")
    with pytest.raises(NotPatchedError, match=f"^{name} is not imported yet") as caught:
        look_up(f"{name}.sub.f")
    assert caught.value.state == "waiting"
    assert name not in sys.modules
    importlib.import_module(name)
    with pytest.raises(NotPatchedError, match=f"^{name}.sub is not imported yet"):
        look_up(f"{name}.sub.f")
    assert f"{name}.sub" not in sys.modules
    with pytest.raises(NotPatchedError, match="creates some names on demand") as caught:
        look_up(f"{name}.f")
    assert caught.value.state == "missing"
    importlib.import_module(f"{name}.sub")
    assert look_up(f"{name}.sub.f").function is sys.modules[f"{name}.sub"].f
