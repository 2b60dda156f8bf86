"""Solutions built once for each name: when needed, ahead, and what becomes of those that fail."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from fib_tests import runtime_dataset
from flashinfer_bench.apply.runtime import Builds
from flashinfer_bench.apply.table import Source
from flashinfer_bench.compile import Builder, BuilderRegistry, Runnable, RunnableMetadata
from flashinfer_bench.data import Definition, Solution
from flashinfer_bench.errors import (
    BuildCapabilityError,
    BuildError,
    CapabilityError,
    StorageError,
)

DEFINITION = Definition.model_validate(runtime_dataset.definition())


def solution(name, source="def run(x):\n    return x * 2\n# {tag}\n", **options):
    # Registries know solutions by content: these differ, as those of a dataset do.
    return Solution.model_validate(
        runtime_dataset.solution(name, "double", name, source, **options)
    )


def source(*solutions):
    return Source(None, {"double": DEFINITION}, {each.name: each for each in solutions})


def runnable(name, cleaner=None):
    metadata = RunnableMetadata(build_type="t", definition_name="double", solution_name=name)
    return Runnable(lambda *args: name, metadata, cleaner)


class Scripted(Builder):
    """Does for each solution what the test says, and remembers who asked for what."""

    shares_builds = False

    def __init__(self):
        super().__init__("scripted", "scripted")
        self.actions = {}
        self.asked = []
        self.threads = set()

    def can_build(self, solution):
        return True

    def build(self, definition, solution):
        self.asked.append(solution.name)
        self.threads.add(threading.current_thread())
        action = self.actions.get(solution.name)
        made = action() if callable(action) else action
        if isinstance(made, BaseException):
            raise made
        return made or runnable(solution.name)


@pytest.fixture
def builder():
    return Scripted()


@pytest.fixture
def builds(builder, monkeypatch):
    registry = BuilderRegistry([builder])
    monkeypatch.setattr("flashinfer_bench.compile.default_registry", lambda: registry)
    return Builds(source(*map(solution, "abcdef")))


class TestGet:
    @pytest.mark.parametrize(
        ("raised", "kind", "told"),
        [
            (BuildError("it is wrong", hint="mend it", log="line 1"), BuildError, "it is wrong"),
            (CapabilityError("no gcc", hint="get it"), BuildCapabilityError, "'a': no gcc"),
            (StorageError("the disk is full"), BuildCapabilityError, "the disk is full"),
            (RuntimeError("odd"), BuildError, "raised RuntimeError: odd"),
            (SystemExit(3), BuildError, "raised SystemExit: 3"),
            (MemoryError(), BuildError, "raised MemoryError"),
        ],
    )
    def test_a_failure_is_kept_with_its_reason(self, builds, builder, raised, kind, told):
        builder.actions["a"] = raised
        caught = []
        for _ in range(3):
            with pytest.raises(BuildError, match=told) as info:
                builds.get("a")
            caught.append(info.value)
        assert builder.asked == ["a"]  # it is not tried again on the way of a call
        assert {type(each) for each in caught} == {kind}
        assert len(set(map(id, caught))) == 3  # one raised again would drag its traceback along
        assert told in builds.failed["a"]
        builds.get("b")
        assert list(builds.failed) == ["a"]

    def test_a_failure_keeps_nothing_alive(self, builds, builder):
        class Large:
            pass

        seen = []

        def fail():
            large = Large()
            seen.append(weakref.ref(large))
            raise BuildError("no")

        builder.actions["a"] = fail
        with pytest.raises(BuildError):
            builds.get("a")
        gc.collect()
        assert seen[0]() is None

    def test_what_was_cleaned_up_elsewhere_is_built_again(self, builds, builder):
        first = builds.get("a")
        first.cleanup()
        assert builds.get("a") is not first
        assert not builds.get("a").closed
        assert builder.asked == ["a", "a"]


def test_one_that_needs_itself_fails_instead_of_waiting_for_ever(builds, builder):
    builder.actions["a"] = lambda: builds.get("a")
    with pytest.raises(BuildError, match="'a' is needed while it is being built"):
        builds.get("a")
    assert "a" in builds.failed


def failing(builds, names):
    return {name: error for name, error in builds.ahead(names) if error is not None}


class TestAhead:
    def test_all_are_built_each_once(self, builds, builder):
        assert failing(builds, ["a", "b", "a", "c"]) == {}
        assert sorted(builder.asked) == ["a", "b", "c"]
        builds.get("b")
        assert failing(builds, "ab") == {}
        assert len(builder.asked) == 3

    def test_one_at_a_time_in_the_order_given(self, builds, builder):
        list(builds.ahead(iter("fedcba"), jobs=1))
        assert builder.asked == list("fedcba")

    def test_failures_are_returned_and_cost_nobody_else(self, builds, builder):
        builder.actions = {
            "a": BuildError("wrong"),
            "b": CapabilityError("no gcc"),
            "c": SystemExit(1),
            "d": KeyboardInterrupt(),  # of a module that is being imported: no one pressed Ctrl-C
            "e": GeneratorExit(),
        }
        failures = failing(builds, "abcdefz")
        assert set(failures) == set("abcdez")
        assert all(isinstance(error, BuildError) for error in failures.values())
        assert isinstance(failures["b"], BuildCapabilityError)
        assert "KeyboardInterrupt" in str(failures["d"])
        assert set(builds.failed) == set(failures)
        assert builds.get("f").metadata.solution_name == "f"

    def test_what_lacked_something_is_tried_again_and_what_was_wrong_is_not(self, builds, builder):
        builder.actions = {"a": CapabilityError("the compiler was killed"), "b": BuildError("no")}
        assert set(failing(builds, "ab")) == set("ab")
        with pytest.raises(BuildCapabilityError):
            builds.get("a")
        builder.actions.clear()
        assert set(failing(builds, "ab")) == {"b"}
        assert builds.get("a").metadata.solution_name == "a"
        assert sorted(builder.asked) == ["a", "a", "b"]
        assert set(builds.failed) == {"b"}

    def test_an_interruption_stops_what_has_not_begun(self, builds, builder):
        go = threading.Event()
        for name in "bcdef":
            builder.actions[name] = lambda: go.wait(30) and None
        done = builds.ahead("abcdef", jobs=1)
        next(done)
        done.close()
        go.set()
        for thread in builder.threads:
            thread.join(30)
        assert builder.asked[0] == "a"
        assert len(builder.asked) <= 2  # the thread may have begun the next one meanwhile
        assert failing(builds, "f") == {}  # … and everything still works
