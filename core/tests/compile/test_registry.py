from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time

import pytest
import torch

from flashinfer_bench.compile import (
    Builder,
    BuilderRegistry,
    Runnable,
    RunnableMetadata,
    default_registry,
    get_registry,
    reset_default_registry,
)
from flashinfer_bench.compile.toolkit import build_once
from flashinfer_bench.errors import (
    BuildCapabilityError,
    BuildError,
    CapabilityError,
    StorageError,
)
from flashinfer_bench.plugins import Availability, BuilderSpec, Catalog, reset_default_catalog

X = torch.ones(2, 4)


@pytest.fixture
def registry(builder):
    made = BuilderRegistry([builder])
    yield made
    made.cleanup()


class Failing(Builder):
    """Raises what it is told to, and counts."""

    shares_builds = False

    def __init__(self, *errors: BaseException) -> None:
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


class TestBuild:
    def test_a_solution_becomes_a_function(self, registry, definition, make_solution):
        runnable = registry.build(definition, make_solution())
        assert torch.equal(runnable(X, X), X + X)
        assert runnable.metadata.solution_name == "solution"
        assert runnable.metadata.definition is definition

    def test_the_reference_becomes_a_function(self, registry, definition):
        runnable = registry.build_reference(definition)
        assert torch.equal(runnable(X, X), X + X)
        assert runnable.metadata.destination_passing_style is False
        assert runnable.metadata.solution_name == "add_k4__reference"

    def test_a_registry_without_builders_is_refused(self):
        with pytest.raises(ValueError, match="at least one builder"):
            BuilderRegistry([])

    def test_the_first_builder_that_can_is_taken(self, definition, make_solution, builder):
        class Never(Failing):
            def can_build(self, solution):
                return False

        never, second = Never(), Failing()
        registry = BuilderRegistry([never, builder, second])
        registry.build(definition, make_solution())
        assert (never.asked, len(builder.asked), second.asked) == (0, 1, 0)

    def test_without_one_that_can_the_language_is_named(self, registry, definition, make_solution):
        with pytest.raises(BuildError, match=r"language 'mojo' .*'x'.*CountingBuilder"):
            registry.build(definition, make_solution(language="mojo", name="x"))


class TestCache:
    def test_the_same_content_is_built_once(self, registry, builder, definition, make_solution):
        first = registry.build(definition, make_solution())
        assert registry.build(definition, make_solution()) is first
        assert registry.build(definition.model_copy(deep=True), make_solution()) is first
        assert builder.asked == ["solution"]

    def test_the_name_does_not_count(self, registry, definition, make_solution):
        first = registry.build(definition, make_solution(name="one"))
        assert registry.build(definition, make_solution(name="two")) is first

    @pytest.mark.parametrize(
        "change",
        [
            {"source": "def run(x, y):\n    return x - y\n"},
            {"destination_passing_style": False},
            {"dependencies": ["torch"]},
        ],
        ids=["source", "style", "dependencies"],
    )
    def test_other_content_is_built_anew(
        self, registry, builder, definition, make_solution, change
    ):
        registry.build(definition, make_solution())
        registry.build(definition, make_solution(**change))
        assert len(builder.asked) == 2

    def test_the_same_solution_for_another_interface_is_built_anew(
        self, registry, builder, make_definition, make_solution
    ):
        first = registry.build(make_definition(), make_solution())
        changed = make_definition(outputs={"z": {"shape": ["n", "k"], "dtype": "float16"}})
        second = registry.build(changed, make_solution())
        assert first is not second
        assert second.metadata.definition is changed

    def test_references_of_two_definitions_are_two_builds(self, registry, make_definition):
        plus = make_definition()
        minus = make_definition(reference="def run(x, y):\n    return x - y\n")
        assert torch.equal(registry.build_reference(plus)(X, X), X + X)
        assert torch.equal(registry.build_reference(minus)(X, X), X - X)

    def test_what_was_cleaned_up_elsewhere_is_built_again(
        self, registry, builder, definition, make_solution
    ):
        registry.build(definition, make_solution()).cleanup()
        again = registry.build(definition, make_solution())
        assert torch.equal(again(X, X), X + X)
        assert len(builder.asked) == 2

    def test_two_registries_do_not_share(self, definition, make_solution, builder):
        one, other = BuilderRegistry([builder]), BuilderRegistry([builder])
        first, second = (r.build(definition, make_solution()) for r in (one, other))
        assert first is not second
        one.cleanup()
        assert torch.equal(second(X, X), X + X)
        other.cleanup()

    def test_threads_that_want_the_same_build_get_the_same(self, definition, make_solution):
        class Slow(Failing):
            def build(self, definition, solution):
                time.sleep(0.1)
                return super().build(definition, solution)

        builder = Slow()
        registry = BuilderRegistry([builder])
        found = []
        threads = [
            threading.Thread(
                target=lambda: found.append(registry.build(definition, make_solution()))
            )
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert builder.asked == 1
        assert len({id(runnable) for runnable in found}) == 1

    def test_different_builds_run_side_by_side(self, definition, make_solution):
        barrier = threading.Barrier(2, timeout=20)

        class Meeting(Failing):
            def build(self, definition, solution):
                barrier.wait()
                return super().build(definition, solution)

        registry = BuilderRegistry([Meeting()])
        threads = [
            threading.Thread(
                target=registry.build, args=(definition, make_solution(f"x = {index}\n"))
            )
            for index in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not barrier.broken


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

    def test_tracebacks_do_not_grow_with_each_try(self, definition, make_solution):
        registry = BuilderRegistry([Failing(BuildError("no"))])
        depths = []
        for _ in range(4):
            try:
                registry.build(definition, make_solution())
            except BuildError as error:
                trace, depth = error.__traceback__, 0
                while trace is not None:
                    trace, depth = trace.tb_next, depth + 1
                depths.append(depth)
        assert len(set(depths[1:])) == 1

    def test_other_solutions_are_not_concerned(self, definition, make_solution):
        registry = BuilderRegistry([Failing(BuildError("no"))])
        with pytest.raises(BuildError):
            registry.build(definition, make_solution("x = 1\n"))
        registry.build(definition, make_solution("x = 2\n"))

    @pytest.mark.parametrize("kind", [ValueError, OSError, SystemExit, RecursionError])
    def test_whatever_a_builder_raises_is_a_build_error(self, definition, make_solution, kind):
        registry = BuilderRegistry([Failing(kind("oops"))])
        with pytest.raises(
            BuildError, match=f"'solution': builder .*Failing raised {kind.__name__}: oops"
        ) as caught:
            registry.build(definition, make_solution())
        assert "Traceback" in caught.value.log

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_a_full_disk_is_no_fault_of_the_solution_whoever_notices(
        self, definition, make_solution, number
    ):
        registry = BuilderRegistry([Failing(OSError(number, "it is full", "/cache/x"))])
        with pytest.raises(StorageError, match=r"'solution': .*it is full.*/cache/x"):
            registry.build(definition, make_solution())
        registry.build(definition, make_solution())

    def test_a_missing_capability_is_told_apart_and_looked_for_again(
        self, definition, make_solution
    ):
        error = CapabilityError("nvcc was not found", hint="install CUDA")
        builder = Failing(error)
        registry = BuilderRegistry([builder])
        with pytest.raises(BuildError, match="'solution': nvcc was not found") as caught:
            registry.build(definition, make_solution())
        assert isinstance(caught.value, CapabilityError)
        assert caught.value.hint == "install CUDA"
        registry.build(definition, make_solution())
        assert builder.asked == 2

    def test_a_builder_that_names_the_solution_is_not_repeated(self, definition, make_solution):
        error = CapabilityError("solution 'solution': compiling was killed")
        with pytest.raises(BuildCapabilityError) as caught:
            BuilderRegistry([Failing(error)]).build(definition, make_solution())
        assert caught.value.message == "solution 'solution': compiling was killed"

    def test_a_builder_that_lacks_what_it_needs_to_choose(self, definition, make_solution):
        class Unsure(Failing):
            def can_build(self, solution):
                raise CapabilityError("no parser", hint="install one")

        with pytest.raises(BuildCapabilityError, match="'solution': no parser") as caught:
            BuilderRegistry([Unsure()]).build(definition, make_solution())
        assert caught.value.hint == "install one"

    @pytest.mark.parametrize("error", [StorageError("disk full"), KeyboardInterrupt()])
    def test_what_is_no_fault_of_the_solution_is_tried_again(
        self, definition, make_solution, error
    ):
        builder = Failing(error)
        registry = BuilderRegistry([builder])
        with pytest.raises(type(error)):
            registry.build(definition, make_solution())
        registry.build(definition, make_solution())
        assert builder.asked == 2

    def test_a_builder_that_cannot_say_whether_it_can(self, definition, make_solution):
        class Unsure(Failing):
            def can_build(self, solution):
                raise AttributeError("spec")

        with pytest.raises(BuildError, match="choosing a builder failed: AttributeError: spec"):
            BuilderRegistry([Unsure()]).build(definition, make_solution())

    def test_a_reference_that_cannot_be_imported(self, registry, make_definition):
        broken = make_definition(reference="import nowhere_xyz\ndef run(x, y): pass\n")
        with pytest.raises(BuildError, match=r"reference.py:1: ModuleNotFoundError"):
            registry.build_reference(broken)


class Compiling(Failing):
    """Compiles into a shared set, as others do into a cache."""

    def __init__(self, *errors: BaseException, cache=None) -> None:
        super().__init__(*errors)
        self.cache = set() if cache is None else cache
        self.compiled = 0

    def compile(self, definition, solution):
        if self.errors:
            raise self.errors.pop(0)
        self.compiled += 1
        fresh = solution.hash() not in self.cache
        self.cache.add(solution.hash())
        return type("Artefact", (), {"fresh": fresh})()


class TestCompile:
    def test_what_was_there_is_not_fresh(self, definition, make_solution):
        cache = set()
        first, second = (BuilderRegistry([Compiling(cache=cache)]) for _ in range(2))
        assert first.compile(definition, make_solution()).fresh
        assert not second.compile(definition, make_solution()).fresh
        assert second.compile(definition, make_solution()).builder == "Compiling"

    def test_nothing_is_built(self, definition, make_solution):
        builder = Compiling()
        BuilderRegistry([builder]).compile(definition, make_solution())
        assert (builder.compiled, builder.asked) == (1, 0)

    def test_what_is_built_need_not_be_compiled(self, definition, make_solution):
        builder = Compiling()
        registry = BuilderRegistry([builder])
        runnable = registry.build(definition, make_solution())
        assert not registry.compile(definition, make_solution()).fresh
        assert builder.compiled == 0
        runnable.cleanup()
        registry.compile(definition, make_solution())
        assert builder.compiled == 1

    def test_building_goes_on_after_it(self, definition, make_solution):
        builder = Compiling()
        registry = BuilderRegistry([builder])
        registry.compile(definition, make_solution())
        assert isinstance(registry.build(definition, make_solution()), Runnable)

    def test_a_builder_that_does_not_compile(self, registry, builder, definition, make_solution):
        assert not registry.compile(definition, make_solution()).fresh
        assert builder.asked == []

    def test_a_builder_that_does_not_tell(self, definition, make_solution):
        class Silent(Failing):
            def compile(self, definition, solution):
                self.asked += 1

        assert BuilderRegistry([Silent()]).compile(definition, make_solution()).fresh

    def test_a_failure_is_the_build_s_too(self, definition, make_solution):
        registry = BuilderRegistry([Compiling(BuildError("no header", log="the log"))])
        errors = []
        for work in (registry.compile, registry.build, registry.compile):
            with pytest.raises(BuildError, match="no header") as caught:
                work(definition, make_solution())
            errors.append(caught.value)
        assert [error.log for error in errors] == ["the log"] * 3

    def test_and_the_build_s_failure_is_this_one_s(self, definition, make_solution):
        builder = Failing(BuildError("no symbol"))
        registry = BuilderRegistry([builder])
        for work in (registry.build, registry.compile):
            with pytest.raises(BuildError, match="no symbol"):
                work(definition, make_solution())

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (StorageError("disk full"), StorageError),
            (CapabilityError("no nvcc"), BuildCapabilityError),
        ],
    )
    def test_what_is_no_fault_of_the_solution_is_tried_again(
        self, definition, make_solution, error, kind
    ):
        registry = BuilderRegistry([Compiling(error)])
        with pytest.raises(kind):
            registry.compile(definition, make_solution())
        assert registry.compile(definition, make_solution()).fresh

    def test_whatever_it_raises_is_a_build_error(self, definition, make_solution):
        registry = BuilderRegistry([Compiling(ZeroDivisionError("oops"))])
        with pytest.raises(BuildError, match=r"Compiling raised ZeroDivisionError: oops") as caught:
            registry.compile(definition, make_solution())
        assert "Traceback" in caught.value.log

    def test_processes_take_turns_where_the_builder_does_not_lock(
        self, definition, make_solution, cache_folder
    ):
        class Sharing(Compiling):
            shares_builds = True

        BuilderRegistry([Sharing()]).compile(definition, make_solution())
        assert list(cache_folder.rglob("*.building.lock"))


class TestCleanup:
    def test_everything_is_cleaned_and_forgotten(
        self, registry, builder, definition, make_solution
    ):
        solutions = [make_solution(f"{SOURCE}# {index}") for index in range(3)]
        kept = [registry.build(definition, solution) for solution in solutions]
        registry.cleanup()
        assert len(builder.cleaned) == 3
        assert all(runnable.closed for runnable in kept)
        registry.build(definition, solutions[0])
        assert len(builder.asked) == 4

    def test_failures_are_forgotten_too(self, definition, make_solution):
        builder = Failing(BuildError("once"))
        registry = BuilderRegistry([builder])
        with pytest.raises(BuildError):
            registry.build(definition, make_solution())
        registry.clear()
        registry.build(definition, make_solution())

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

    def test_thousands_of_builds_leave_nothing_in_the_interpreter(
        self, registry, definition, make_solution, cache_folder
    ):
        registry.build(definition, make_solution())
        registry.cleanup()
        before = len(sys.path), len(sys.modules), len(sys.meta_path), len(sys.path_importer_cache)
        for round_ in range(4):
            for index in range(250):
                registry.build(definition, make_solution(f"{SOURCE}# {round_} {index}"))
            registry.cleanup()
        after = len(sys.path), len(sys.modules), len(sys.meta_path), len(sys.path_importer_cache)
        assert after == before
        assert list((cache_folder / "scratch").rglob("*.py")) == []


SOURCE = "def run(x, y):\n    return x + y\n"

SHARING = """
import sys, time
from pathlib import Path
from flashinfer_bench.compile import Builder, BuilderRegistry, Runnable, RunnableMetadata
from flashinfer_bench.compile.toolkit import build_once
from flashinfer_bench.data import Definition, Solution

log = Path(sys.argv[1])

class Sharing(Builder):
    def __init__(self):
        super().__init__("sharing", "sharing")
    def can_build(self, solution):
        return True
    def build(self, definition, solution):
        def produce(folder):
            with log.open("a") as stream:
                stream.write("compiled\\n")
            time.sleep(0.3)
            (folder / "lib").write_text("42")
        folder = build_once(self.build_path(definition, solution), produce)
        text = (folder / "lib").read_text()
        metadata = RunnableMetadata(build_type="s", definition_name="d", solution_name="s")
        return Runnable(lambda: int(text), metadata)

definition = Definition.model_validate_json(sys.argv[2])
solution = Solution.model_validate_json(sys.argv[3])
print(BuilderRegistry([Sharing()]).build(definition, solution)())
"""


def test_processes_that_want_one_build_compile_it_once(
    tmp_path, definition, make_solution, cache_folder
):
    log = tmp_path / "log"
    arguments = [definition.model_dump_json(), make_solution().model_dump_json()]
    command = [sys.executable, "-c", SHARING, str(log), *arguments]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0] for process in processes] == ["42\n"] * 3
    assert log.read_text() == "compiled\n"
    # … and a later process, with a lock left behind, compiles it no more.
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "42\n"
    assert log.read_text() == "compiled\n"


def test_a_builder_has_names_and_folders_of_its_own(
    builder, definition, make_solution, cache_folder
):
    solution = make_solution(name="My Kernel")
    assert builder.is_available()
    assert builder.build_dir == cache_folder / "counting"
    name = builder.package_name(definition, solution)
    assert name.startswith("counting_my_kernel_")
    path = builder.build_path(definition, solution, "sm_90")
    assert path.parent == builder.build_dir
    assert path != builder.build_path(definition, solution, "sm_100")
    assert path == builder.build_path(definition, make_solution(name="Renamed"), "sm_90")
    assert build_once(path, lambda folder: None) == path


def test_a_builder_must_say_what_it_can_build_and_how():
    with pytest.raises(TypeError, match="abstract"):
        Builder("prefix", "folder")


PLUGIN = """
from conftest_builder import CountingBuilder

class {name}(CountingBuilder):
    languages = {languages!r}
    def __init__(self):
        super().__init__("{name}")
    def can_build(self, solution):
        source = solution.sources[0].content
        return solution.spec.language in self.languages and "not {name}" not in source
"""


class TestCatalog:
    """Builders that are named by string, as plugins do."""

    @pytest.fixture
    def catalog(self, tmp_path, monkeypatch, builder):
        """Return a function that makes a catalog of builders, each with its own module."""
        monkeypatch.syspath_prepend(str(tmp_path))
        stand_in = type(sys)("conftest_builder")
        stand_in.CountingBuilder = type(builder)
        monkeypatch.setitem(sys.modules, "conftest_builder", stand_in)
        made = []

        def make(*records):
            specs = []
            for name, handles, options in records:
                module = f"fib_test_{name.lower()}_{len(made)}"
                made.append(module)
                source = options.pop("source", None) or PLUGIN.format(
                    name=name, languages=[language for language, _ in handles]
                )
                (tmp_path / f"{module}.py").write_text(source)
                factory = options.pop("factory", f"{module}:{name}")
                specs.append(BuilderSpec(name=name, handles=handles, factory=factory, **options))
            return Catalog.of(*specs, distribution="fib-test", version="1.0")

        yield make
        for module in made:
            sys.modules.pop(module, None)

    def test_a_builder_is_imported_when_it_is_first_needed(
        self, catalog, definition, make_solution
    ):
        registry = BuilderRegistry.from_catalog(catalog(("A", (("python", None),), {})))
        assert "fib_test_a_0" not in sys.modules
        runnable = registry.build(definition, make_solution())
        assert torch.equal(runnable(X, X), X + X)
        assert "fib_test_a_0" in sys.modules
        registry.cleanup()

    def test_it_is_made_once(self, catalog, definition, make_solution):
        registry = BuilderRegistry.from_catalog(catalog(("A", (("python", None),), {})))
        builders = {id(registry._choose(make_solution(f"{SOURCE}# {index}"))) for index in range(3)}
        assert len(builders) == 1

    def test_priority_decides(self, catalog, make_solution):
        records = (
            ("A", (("python", None),), {"priority": 10}),
            ("B", (("python", "*"),), {"priority": 90}),
        )
        registry = BuilderRegistry.from_catalog(catalog(*records))
        assert type(registry._choose(make_solution())).__name__ == "B"

    def test_one_that_declines_is_passed_over(self, catalog, make_solution):
        records = (
            ("A", (("python", None),), {"priority": 90}),
            ("B", (("python", None),), {"priority": 10}),
        )
        registry = BuilderRegistry.from_catalog(catalog(*records))
        assert type(registry._choose(make_solution("# not A\n"))).__name__ == "B"

    def test_if_all_decline_the_first_is_named(self, catalog, definition, make_solution):
        registry = BuilderRegistry.from_catalog(catalog(("A", (("python", None),), {})))
        with pytest.raises(BuildError, match=r"no builder takes .* although 'a' handles"):
            registry.build(definition, make_solution("# not A\n"))

    @pytest.fixture
    def absent(self, monkeypatch):
        """Path of a probe that says no."""
        module = type(sys)("fib_test_absent")
        module.probe = lambda: Availability(False, "torch is not installed.", "pip install torch")
        monkeypatch.setitem(sys.modules, "fib_test_absent", module)
        return "fib_test_absent:probe"

    def test_if_all_decline_what_would_have_taken_it_is_named(
        self, catalog, definition, make_solution, absent
    ):
        records = (
            ("A", (("python", None),), {}),
            ("B", (("python", None),), {"priority": 10, "probe": absent}),
        )
        registry = BuilderRegistry.from_catalog(catalog(*records))
        with pytest.raises(BuildCapabilityError) as caught:
            registry.build(definition, make_solution("# not A\n", name="s"))
        assert caught.value.message == (
            "no builder takes solution 's', although 'a' handles language 'python' with binding "
            "None; b (fib-test 1.0) would, but cannot be used here: torch is not installed"
        )
        assert caught.value.hint == "pip install torch"

    def test_an_absent_one_that_would_not_take_it_either_is_not_named(
        self, catalog, definition, make_solution, absent
    ):
        records = (
            ("A", (("python", None),), {}),
            ("B", (("python", None),), {"priority": 10, "probe": absent}),
        )
        registry = BuilderRegistry.from_catalog(catalog(*records))
        with pytest.raises(BuildError, match="although 'a' handles") as caught:
            registry.build(definition, make_solution("# not A, not B\n"))
        assert not isinstance(caught.value, CapabilityError)
        assert "would" not in caught.value.message

    def test_an_absent_one_that_cannot_even_be_imported_might_have_taken_it(
        self, catalog, definition, make_solution, absent
    ):
        records = (
            ("A", (("python", None),), {}),
            ("B", (("python", None),), {"probe": absent, "source": "import nowhere_xyz"}),
        )
        registry = BuilderRegistry.from_catalog(catalog(*records))
        with pytest.raises(BuildCapabilityError, match=r"b \(fib-test 1.0\) would, but"):
            registry.build(definition, make_solution("# not A\n"))

    def test_one_for_another_device_that_would_take_it(self, catalog, definition, make_solution):
        records = (
            ("A", (("python", None),), {}),
            ("B", (("python", None),), {"devices": ("cuda",)}),
        )
        registry = BuilderRegistry.from_catalog(catalog(*records), device="cpu")
        with pytest.raises(
            BuildCapabilityError, match=r"b \(fib-test 1.0\) would, but is for cuda"
        ):
            registry.build(definition, make_solution("# not A\n"))

    @pytest.mark.parametrize(
        ("device", "name"), [("cuda:1", "B"), ("cuda", "B"), (None, "B"), ("cpu", "A")]
    )
    def test_the_device_counts(self, catalog, make_solution, device, name):
        records = (
            ("A", (("python", None),), {"priority": 10}),
            ("B", (("python", None),), {"devices": ("cuda",)}),
        )
        registry = BuilderRegistry.from_catalog(catalog(*records), device=device)
        assert type(registry._choose(make_solution())).__name__ == name

    def test_a_language_for_another_device_is_no_fault_of_the_solution(
        self, catalog, definition, make_solution
    ):
        records = catalog(("B", (("python", None),), {"devices": ("cuda",)}))
        registry = BuilderRegistry.from_catalog(records, device="cpu")
        with pytest.raises(BuildCapabilityError, match="is for device 'cpu'"):
            registry.build(definition, make_solution())

    def test_compilations_tell_the_name_of_the_record(self, catalog, definition, make_solution):
        records = (
            ("A", (("python", None),), {}),
            ("B", (("python", None),), {"priority": 10}),
        )
        registry = BuilderRegistry.from_catalog(catalog(*records))
        assert registry.builder_of(make_solution()) == "a"
        assert registry.compile(definition, make_solution()).builder == "a"
        assert registry.compile(definition, make_solution("# not A\n")).builder == "b"

    def test_an_unknown_language_names_the_ones_there_are(self, catalog, definition, make_solution):
        registry = BuilderRegistry.from_catalog(catalog(("A", (("python", None),), {})))
        with pytest.raises(BuildError, match=r"No builder for language 'mojo' .*'s1'") as caught:
            registry.build(definition, make_solution(language="mojo", name="s1"))
        assert "python" in str(caught.value)

    def test_the_binding_counts(self, catalog, definition, make_solution):
        registry = BuilderRegistry.from_catalog(catalog(("A", (("cuda", "torch"),), {})))
        assert type(registry._choose(make_solution(language="cuda", binding="torch")))
        with pytest.raises(BuildError, match="cuda"):
            registry.build(definition, make_solution(language="cuda", binding="tvm-ffi"))

    def test_a_missing_builder_is_looked_for_again_later(self, definition, make_solution, catalog):
        registry = BuilderRegistry.from_catalog(Catalog.of())
        with pytest.raises(BuildError):
            registry.build(definition, make_solution())
        registry._select._given = catalog(("A", (("python", None),), {}))
        registry.build(definition, make_solution())
        registry.cleanup()

    def test_a_plugin_that_cannot_be_imported(self, catalog, definition, make_solution):
        broken = ("A", (("python", None),), {"source": "import nowhere_xyz"})
        registry = BuilderRegistry.from_catalog(catalog(broken))
        with pytest.raises(BuildError, match=r"fib-test 1.0 cannot be imported .*nowhere_xyz"):
            registry.build(definition, make_solution())

    def test_a_factory_that_makes_something_else(self, catalog, definition, make_solution):
        odd = ("A", (("python", None),), {"source": "A = dict"})
        registry = BuilderRegistry.from_catalog(catalog(odd))
        with pytest.raises(BuildError, match=r"made a dict, not a .*compile\.Builder"):
            registry.build(definition, make_solution())

    def test_an_unsafe_source_path_is_the_solution_s_fault(
        self, catalog, definition, make_solution
    ):
        text = (
            "from flashinfer_bench.compile.toolkit import check_relative_path\n"
            "from conftest_builder import CountingBuilder\n"
            "class A(CountingBuilder):\n"
            "    def __init__(self):\n"
            "        super().__init__('A')\n"
            "    def can_build(self, solution):\n"
            "        return True\n"
            "    def build(self, definition, solution):\n"
            "        check_relative_path('back\\\\slash.py')\n"
        )
        registry = BuilderRegistry.from_catalog(
            catalog(("A", (("python", None),), {"source": text}))
        )
        with pytest.raises(BuildError, match=r"'solution': source path .* has a backslash"):
            registry.build(definition, make_solution())

    def test_a_broken_builder_leaves_the_language_to_the_next(
        self, catalog, definition, make_solution, caplog
    ):
        handles = (("python", None),)
        broken = ("A", handles, {"source": "def A(): raise RuntimeError('no driver')"})
        good = ("B", handles, {})
        registry = BuilderRegistry.from_catalog(catalog(broken, good))
        for name in ("one", "two"):
            solution = make_solution(name=name)
            assert registry.build(definition, solution).metadata.build_type
        warnings = [record.message for record in caplog.records if "is broken" in record.message]
        assert len(warnings) == 1
        assert "RuntimeError: no driver" in warnings[0]

    def test_a_factory_that_raises(self, catalog, definition, make_solution):
        broken = ("A", (("python", None),), {"source": "def A(): raise RuntimeError('no driver')"})
        registry = BuilderRegistry.from_catalog(catalog(broken))
        with pytest.raises(BuildError, match="RuntimeError: no driver"):
            registry.build(definition, make_solution())

    def test_the_shared_registry_uses_the_catalog_of_the_process(
        self, catalog, definition, make_solution
    ):
        reset_default_registry()
        reset_default_catalog(catalog(("A", (("python", None),), {})))
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
