import errno
import sys
import time
from types import ModuleType

import pytest

from fib_tests.threads import at_once
from flashinfer_bench.compile import (
    Builder,
    BuilderRegistry,
    Runnable,
    RunnableMetadata,
    default_registry,
    get_registry,
    reset_default_registry,
)
from flashinfer_bench.errors import BuildCapabilityError, BuildError, CapabilityError, StorageError
from flashinfer_bench.plugins import Availability, BuilderSpec, Catalog, reset_default_catalog


@pytest.fixture
def registry(builder):
    made = BuilderRegistry([builder])
    yield made
    made.cleanup()


class Failing(Builder):
    """Raises what it is told to, and counts."""

    shares_builds = False

    def __init__(self, *errors):
        super().__init__("failing", "failing")
        self.errors = list(errors)
        self.asked = 0

    def can_build(self, solution):
        return True

    def build(self, definition, solution):
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        metadata = RunnableMetadata(
            build_type="f", definition_name=definition.name, solution_name=solution.name
        )
        return Runnable(lambda *args: None, metadata)


class TestCache:
    def test_the_same_content_is_built_once(self, registry, builder, definition, make_solution):
        first = registry.build(definition, make_solution())
        assert registry.build(definition, make_solution()) is first
        assert registry.build(definition.model_copy(deep=True), make_solution()) is first
        assert builder.asked == ["solution"]

    def test_threads_that_want_the_same_build_get_the_same(self, definition, make_solution):
        class Slow(Failing):
            def build(self, definition, solution):
                time.sleep(0.1)
                return super().build(definition, solution)

        builder = Slow()
        registry = BuilderRegistry([builder])
        found = at_once(6, lambda: registry.build(definition, make_solution()))
        assert builder.asked == 1
        assert len({id(runnable) for runnable in found}) == 1


class TestFailures:
    def test_a_failed_build_fails_again_without_another_try(self, definition, make_solution):
        builder = Failing(BuildError("no header", hint="install it", log="the log"))
        registry = BuilderRegistry([builder])
        errors = []
        for _ in range(3):
            with pytest.raises(BuildError, match="no header") as caught:
                registry.build(definition, make_solution())
            errors.append(caught.value)
        assert builder.asked == 1
        assert {(error.message, error.hint, error.log) for error in errors} == {
            ("no header", "install it", "the log")
        }
        assert errors[1] is not errors[2]

    @pytest.mark.parametrize("kind", [ValueError, OSError, SystemExit, RecursionError])
    def test_whatever_a_builder_raises_is_a_build_error(self, definition, make_solution, kind):
        registry = BuilderRegistry([Failing(kind("oops"))])
        with pytest.raises(
            BuildError, match=f"'solution': builder .*Failing raised {kind.__name__}: oops"
        ) as caught:
            registry.build(definition, make_solution())
        assert "Traceback" in caught.value.log

    @pytest.mark.parametrize(
        ("error", "told"),
        [
            (CapabilityError("it is full"), BuildCapabilityError),
            (StorageError("it is full"), StorageError),
            (OSError(errno.ENOSPC, "it is full", "/cache/x"), StorageError),
            (OSError(errno.EDQUOT, "it is full", "/cache/x"), StorageError),
            (KeyboardInterrupt("it is full"), KeyboardInterrupt),
        ],
    )
    def test_what_is_no_fault_of_the_solution_is_tried_again(
        self, definition, make_solution, error, told
    ):
        builder = Failing(error)
        registry = BuilderRegistry([builder])
        with pytest.raises(told, match="it is full"):
            registry.build(definition, make_solution())
        registry.build(definition, make_solution())
        assert builder.asked == 2


class TestCleanup:
    def test_one_broken_cleaner_does_not_stop_the_others(
        self, registry, builder, definition, make_solution, caplog
    ):
        first = registry.build(definition, make_solution(SOURCE + "# 1"))
        registry.build(definition, make_solution(SOURCE + "# 2"))

        def broken():
            raise OSError("busy")

        first._cleaner = broken
        registry.cleanup()
        assert len(builder.cleaned) == 1
        assert "busy" in caplog.text

    def test_many_builds_leave_nothing_in_the_interpreter(
        self, registry, definition, make_solution, cache_folder
    ):
        registry.build(definition, make_solution())
        registry.cleanup()
        before = len(sys.path), len(sys.modules), len(sys.meta_path), len(sys.path_importer_cache)
        for round_ in range(2):
            for index in range(50):
                registry.build(definition, make_solution(f"{SOURCE}# {round_} {index}"))
            registry.cleanup()
        after = len(sys.path), len(sys.modules), len(sys.meta_path), len(sys.path_importer_cache)
        assert after == before
        assert list((cache_folder / "scratch").rglob("*.py")) == []


SOURCE = "def run(x, y):\n    return x + y\n"


class TestCatalog:
    """Builders that are named by string, as plugins do."""

    @pytest.fixture
    def catalog(self, monkeypatch, builder):
        """Return a function that makes a catalog; builders decline sources that say so."""
        module = ModuleType("fib_test_builders")
        monkeypatch.setitem(sys.modules, module.__name__, module)

        def of_name(name):
            def can_build(self, solution):
                return f"not {name}" not in solution.sources[0].content

            return type(name, (type(builder),), {"can_build": can_build})

        def make(*records):
            specs = []
            for name, options in records:
                setattr(module, name, options.pop("made", None) or of_name(name))
                common = {"handles": (("python", None),), "factory": f"fib_test_builders:{name}"}
                specs.append(BuilderSpec(name=name, **{**common, **options}))
            return Catalog.of(*specs, distribution="fib-test", version="1.0")

        return make

    @pytest.mark.parametrize(
        ("device", "source", "name"),
        [("cuda:1", "", "b"), (None, "", "b"), ("cpu", "", "a"), (None, "# not B\n", "a")],
    )
    def test_priority_device_and_the_builder_s_word_decide(
        self, catalog, make_solution, device, source, name
    ):
        records = (
            ("A", {"priority": 10}),
            ("B", {"handles": (("python", "*"),), "devices": ("cuda",)}),
        )
        registry = BuilderRegistry.from_catalog(catalog(*records), device=device)
        assert registry.builder_of(make_solution(source or SOURCE)) == name

    @pytest.fixture
    def absent(self, monkeypatch):
        """Path of a probe that says no."""
        module = ModuleType("fib_test_absent")
        module.probe = lambda: Availability(False, "torch is not installed.", "pip install torch")
        monkeypatch.setitem(sys.modules, "fib_test_absent", module)
        return "fib_test_absent:probe"

    def test_if_all_decline_the_others_of_the_language_are_named(
        self, catalog, definition, make_solution, absent
    ):
        records = (
            ("A", {}),
            ("B", {"priority": 10, "probe": absent}),
            ("C", {"devices": ("cuda",)}),
        )
        registry = BuilderRegistry.from_catalog(catalog(*records), device="cpu")
        with pytest.raises(BuildCapabilityError) as caught:
            registry.build(definition, make_solution("# not A\n", name="s"))
        message = caught.value.message
        assert "no builder accepts solution 's': a (fib-test 1.0) declines it; " in message
        assert "b (fib-test 1.0) cannot be used here: torch is not installed" in message
        assert "c (fib-test 1.0) is for cuda" in message
        assert caught.value.hint == "pip install torch"

    @pytest.mark.parametrize(
        ("broken", "message"),
        [
            ({"factory": "nowhere_xyz:A"}, r"fib-test 1.0 cannot be imported .*nowhere_xyz"),
            ({"made": dict}, r"made a dict, not a .*compile\.Builder"),
        ],
    )
    def test_a_plugin_that_is_broken(self, catalog, definition, make_solution, broken, message):
        registry = BuilderRegistry.from_catalog(catalog(("A", broken)))
        with pytest.raises(BuildError, match=message):
            registry.build(definition, make_solution())

    def test_a_broken_builder_leaves_the_language_to_the_next(
        self, catalog, definition, make_solution, caplog
    ):
        def broken():
            raise RuntimeError("no driver")

        registry = BuilderRegistry.from_catalog(catalog(("A", {"made": broken}), ("B", {})))
        for name in ("one", "two"):
            solution = make_solution(name=name)
            assert registry.build(definition, solution).metadata.build_type
        warnings = [record.message for record in caplog.records if "is broken" in record.message]
        assert len(warnings) == 1
        assert "RuntimeError: no driver" in warnings[0]

    def test_the_shared_registry_uses_the_catalog_of_the_process(
        self, catalog, definition, make_solution
    ):
        reset_default_registry()
        reset_default_catalog(catalog(("A", {})))
        try:
            registry = default_registry()
            assert BuilderRegistry.get_instance() is registry
            assert get_registry() is registry
            runnable = registry.build(definition, make_solution())
            reset_default_registry()
            assert runnable.closed
            assert default_registry() is not registry
        finally:
            reset_default_registry()
            reset_default_catalog()


@pytest.mark.parametrize("returned", [None, lambda x, y: x + y])
def test_a_builder_that_returns_something_else(definition, make_solution, returned):
    class Odd(Failing):
        def build(self, definition, solution):
            self.asked += 1
            return returned

    builder = Odd()
    registry = BuilderRegistry([builder])
    for _ in range(2):
        with pytest.raises(BuildError, match=r"returned a (NoneType|function), not a Runnable"):
            registry.build(definition, make_solution())
    assert builder.asked == 1
    registry.cleanup()
