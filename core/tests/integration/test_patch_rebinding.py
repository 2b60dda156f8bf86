"""References that modules hold by value, and everything that is peculiar about a target."""

from __future__ import annotations

import enum
import functools
import importlib
import math
import sys
import threading
import types

import pytest

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.integration import PatchSpec, PatchStatus
from flashinfer_bench.integration.patch_manager import Order
from flashinfer_bench.integration.rebinding import replace_everywhere, swap
from flashinfer_bench.integration.targets import NotFoundError, look_up


@pytest.fixture
def lib(world):
    return importlib.import_module(world.library())


def wrapping(spec, orig):
    @functools.wraps(orig)
    def wrapper(*args, **kwargs):
        return orig(*args, **kwargs)

    return wrapper


def order(path, adapter="a", **fields):
    return Order(adapter, PatchSpec(path, "function", "x", **fields), wrapping)


def put_on(manager, *paths):
    return manager.patch_all([order(path) for path in paths])


def user_of(world, lib, code="from {lib} import scale, Wrapper as Taken\n", name="user"):
    return importlib.import_module(world.write(name, code.format(lib=lib.__name__)))


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
        )
        assert before.scale is after.scale is lib.scale is not original
        world.manager.unpatch_all()
        assert before.scale is after.scale is lib.scale is original

    def test_under_another_name_and_in_a_module_with_two_names(self, world, lib):
        user = user_of(world, lib, "from {lib} import scale as one\ntwo = one\n")
        sys.modules[f"{world.prefix}_alias"] = user
        (status,) = put_on(world.manager, f"{lib.__name__}.scale")
        assert len(status.rebound) == 2
        assert user.one is user.two is lib.scale
        world.manager.unpatch_all()
        assert user.one is user.two is lib.scale
        assert not hasattr(user.one, "__wrapped__")

    def test_what_has_changed_meanwhile_is_left(self, world, lib):
        user, mine = user_of(world, lib), object()
        put_on(world.manager, f"{lib.__name__}.scale")
        user.scale = mine
        world.manager.unpatch_all()
        assert user.scale is mine

    def test_modules_that_nobody_can_find_any_more(self, world, lib):
        user, original = user_of(world, lib), lib.scale
        put_on(world.manager, f"{lib.__name__}.scale")
        del sys.modules[user.__name__]
        world.manager.unpatch_all()
        assert user.scale is original

    def test_methods_that_were_taken(self, world, lib):
        user = user_of(world, lib, "from {lib} import Wrapper\nrun = Wrapper.run\n")
        original = lib.Wrapper.run
        put_on(world.manager, f"{lib.__name__}.Wrapper.run")
        assert user.run is lib.Wrapper.run is not original
        world.manager.unpatch_all()
        assert user.run is lib.Wrapper.run is original

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
        assert not swap(stubborn, "scale", original, None)
        assert replace_everywhere({}) == {}

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

    def test_a_place_that_wears_the_wrapper_of_another_path(self, world, lib):
        user, original = user_of(world, lib), lib.scale
        put_on(world.manager, f"{lib.__name__}.scale")
        (status,) = put_on(world.manager, f"{user.__name__}.scale")
        assert status.state == "patched"
        assert user.scale is not lib.scale
        assert user.scale.__wrapped__ is lib.scale.__wrapped__ is original
        world.manager.unpatch({f"{user.__name__}.scale"})
        assert user.scale is lib.scale is not original
        world.manager.unpatch_all()
        assert user.scale is lib.scale is original

    def test_an_old_wrapper_is_not_wrapped_again(self, world, lib):
        original = lib.scale
        put_on(world.manager, f"{lib.__name__}.scale")
        old = lib.scale
        world.manager.unpatch_all()
        lib.scale = old
        put_on(world.manager, f"{lib.__name__}.scale")
        assert lib.scale.__wrapped__ is original
        world.manager.unpatch_all()
        assert lib.scale is original

    def test_a_base_and_what_inherits_from_it(self, world, lib):
        original = lib.Wrapper.run
        put_on(world.manager, f"{lib.__name__}.Wrapper.run", f"{lib.__name__}.Derived.run")
        assert lib.Derived.run.__wrapped__ is lib.Wrapper.run.__wrapped__ is original
        world.manager.unpatch({f"{lib.__name__}.Wrapper.run"})
        world.manager.unpatch_all()
        put_on(world.manager, f"{lib.__name__}.Wrapper.run")
        put_on(world.manager, f"{lib.__name__}.Derived.run")
        assert lib.Derived.run.__wrapped__ is original
        world.manager.unpatch_all()
        assert "run" not in vars(lib.Derived)
        assert lib.Derived.run is lib.Wrapper.run is original


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

    def test_classes_that_cannot_be_changed(self, world):
        code = "class Meta(type):\n    def __setattr__(self, *a): raise TypeError('frozen')\n"
        code += "class C(metaclass=Meta):\n    def x(self): return 1\n"
        module = importlib.import_module(world.write("frozen", code))
        frozen, builtin = put_on(world.manager, f"{module.__name__}.C.x", "builtins.str.upper")
        assert (frozen.state, frozen.reason) == ("failed", "TypeError: frozen")
        assert builtin.state == "failed"
        assert "immutable type" in builtin.reason
        assert world.manager.patched == ()
        world.manager.unpatch_all()
        assert module.C().x() == 1

    def test_one_that_does_not_keep_what_it_is_given(self, world, lib):
        class Forgetful(types.ModuleType):
            def __setattr__(self, name, value):
                pass

        module = Forgetful(f"{world.prefix}_forgetful")
        vars(module)["x"] = lib.scale
        sys.modules[module.__name__] = module
        (status,) = put_on(world.manager, f"{module.__name__}.x")
        assert status.state == "failed"
        assert "does not keep" in status.reason

    def test_built_in_functions(self, world):
        module = importlib.import_module(world.write("c", "from math import sqrt, floor\n"))
        (status,) = put_on(world.manager, f"{module.__name__}.sqrt")
        assert status.state == "patched"
        assert module.sqrt(4) == 2
        assert module.sqrt is not math.sqrt
        assert type(math.sqrt) is types.BuiltinFunctionType  # the table of C code is left alone
        world.manager.unpatch_all()
        assert module.sqrt is math.sqrt

    def test_what_a_class_does_not_bind(self, world):
        code = "import functools\nclass C:\n    size = len\n"
        code += "    def run(self, x, y=1): return (x, y)\n"
        code += "    twice = functools.partialmethod(run, y=2)\n"
        module = importlib.import_module(world.write("unbound", code))
        before = dict(vars(module.C))
        statuses = put_on(
            world.manager, *(f"{module.__name__}.C.{name}" for name in ("size", "twice"))
        )
        assert [status.state for status in statuses] == ["patched", "patched"]
        made = module.C()
        assert (made.size("abc"), made.twice(5)) == (3, (5, 2))
        world.manager.unpatch_all()
        assert all(vars(module.C)[name] is value for name, value in before.items())

    def test_an_enum_s_method(self, world):
        code = "import enum\nclass C(enum.Enum):\n    A = 1\n    def x(self): return self.value\n"
        module = importlib.import_module(world.write("e", code))
        put_on(world.manager, f"{module.__name__}.C.x")
        assert isinstance(module.C.A, enum.Enum)
        assert module.C.A.x() == 1

    @pytest.mark.parametrize("made", [None, "same"])
    def test_a_factory_that_makes_no_wrapper(self, world, lib, made):
        bad = Order(
            "a",
            PatchSpec(f"{lib.__name__}.scale", "function", "x"),
            lambda spec, orig: orig if made else None,
        )
        (status,) = world.manager.patch_all([bad])
        assert status.state == "failed"
        assert "no wrapper" in status.reason

    def test_one_failure_costs_only_itself(self, world, lib):
        path = lib.__name__
        statuses = put_on(world.manager, f"{path}.no", f"{path}.scale", f"{path}_no.x")
        assert [status.state for status in statuses] == ["missing", "patched", "waiting"]
        assert [status.reason for status in statuses] == [
            f"{path} has no 'no'",
            "",
            f"{path}_no is not imported yet",
        ]

    def test_patching_again_changes_nothing(self, world, lib):
        (first,) = put_on(world.manager, f"{lib.__name__}.scale")
        wrapper = lib.scale
        (second,) = put_on(world.manager, f"{lib.__name__}.scale")
        assert (first, lib.scale) == (second, wrapper)
        (other,) = world.manager.patch_all([order(f"{lib.__name__}.scale", "b")])
        assert (other.state, other.reason) == ("unwanted", "the adapter 'a' has it")
        assert world.manager.adapter_of(f"{lib.__name__}.scale") == "a"
        assert world.manager.adapter_of("x.y") is world.manager.status("x.y") is None

    def test_threads(self, world, lib):
        original, wrong = lib.scale, []

        def storm():
            for _ in range(50):
                put_on(world.manager, f"{lib.__name__}.scale")
                if lib.scale(2) != 4:
                    wrong.append(1)
                world.manager.unpatch_all()

        threads = [threading.Thread(target=storm) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert (wrong, lib.scale) == ([], original)


class TestLookUp:
    def test_nothing_is_imported_or_woken(self, world):
        name = world.write("lazy", "def __getattr__(name):\n    raise OSError(name)\n")
        world.write("lazy.sub", "def f(): pass\n")
        with pytest.raises(NotFoundError) as caught:
            look_up(f"{name}.sub.f")
        assert (caught.value.state, caught.value.module) == ("waiting", name)
        assert name not in sys.modules
        importlib.import_module(name)
        with pytest.raises(NotFoundError) as caught:
            look_up(f"{name}.sub.f")
        assert (caught.value.state, caught.value.module) == ("waiting", f"{name}.sub")
        assert f"{name}.sub" not in sys.modules
        with pytest.raises(NotFoundError, match="makes some names on demand") as caught:
            look_up(f"{name}.f")
        assert caught.value.state == "missing"
        importlib.import_module(f"{name}.sub")
        assert look_up(f"{name}.sub.f").function is sys.modules[f"{name}.sub"].f

    @pytest.mark.parametrize(
        ("path", "told"),
        [
            ("gone.x", "has no 'gone'"),
            ("scale.x", "is neither a module nor a class"),
            ("Wrapper.gone", "Wrapper has no 'gone'"),
            ("Wrapper.gone.x", "Wrapper has no 'gone'"),
        ],
    )
    def test_what_is_missing(self, lib, path, told):
        with pytest.raises(NotFoundError, match=told) as caught:
            look_up(f"{lib.__name__}.{path}")
        assert caught.value.state == "missing"

    def test_a_module_that_is_being_imported(self, world):
        name = world.write("half", "def f(): pass\nimport sys\nsys.p1_half(__name__)\n")
        seen = []

        def look(module):
            with pytest.raises(NotFoundError) as caught:
                look_up(f"{module}.f")
            seen.append((caught.value.state, caught.value.reason))

        sys.p1_half = look
        try:
            importlib.import_module(name)
        finally:
            del sys.p1_half
        assert seen == [("waiting", f"{name} is being imported")]


class TestSpecs:
    @pytest.mark.parametrize(
        ("patterns", "names", "wanted"),
        [
            (("*",), [], False),
            (("*",), ["a"], True),
            (("rmsnorm_h*",), ["fused_rmsnorm_h1"], False),
            (("rmsnorm_h*", "x"), ["b", "x"], True),
            ((), ["x"], False),
        ],
    )
    def test_wanted(self, patterns, names, wanted):
        spec = PatchSpec("a.b.c", "function", "c", definitions=patterns)
        assert spec.wanted(names) is wanted
        assert spec.library == "a"

    def test_two_are_the_same_with_other_functions(self):
        one, two = (PatchSpec("a.b", "function", "b", expects=lambda _: None) for _ in range(2))
        assert one == two
        assert len({one, two}) == 1
        with pytest.raises(ConfigError):
            PatchSpec("a", "function", "b")

    def test_a_status_is_plain_data(self):
        status = PatchStatus("a.b", "x", "patched", rebound=("c.d",))
        assert status.as_dict() == {
            "path": "a.b",
            "adapter": "x",
            "state": "patched",
            "reason": "",
            "version": "",
            "rebound": ["c.d"],
        }
