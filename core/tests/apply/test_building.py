"""Solutions built once for each name: when needed, ahead, and what becomes of those that fail."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

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
    ConfigError,
    StorageError,
)

DEFINITION = Definition.model_validate(runtime_dataset.definition())


def solution(name, source="def run(x):\n    return x * 2\n# {tag}\n", **options):
    # Registries know solutions by content: these differ, as those of a dataset do.
    return Solution.model_validate(
        runtime_dataset.solution(name, "double", name, source, **options)
    )


def slow_to_compile(name):
    made = runtime_dataset.solution(name, source="// SLEEPS\n", language="cpp")
    made["spec"] |= {"entry_point": "main.cpp::run", "destination_passing_style": True}
    made["sources"][0]["path"] = "main.cpp"
    return Solution.model_validate(made)


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
    def test_it_is_built_when_it_is_first_asked_for(self, builds, builder):
        assert builder.asked == []
        first = builds.get("a")
        assert first.metadata.solution_name == "a"
        assert builds.get("a") is first
        assert builder.asked == ["a"]
        assert builds.failed == {}

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

    def test_ctrl_c_is_no_failure_of_the_solution(self, builds, builder):
        builder.actions["a"] = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            builds.get("a")
        assert builds.failed == {}
        builder.actions.clear()
        assert builds.get("a").metadata.solution_name == "a"

    def test_of_several_that_want_the_same_one_builds(self, builds, builder):
        meet, go = threading.Barrier(9), threading.Event()
        builder.actions["a"] = lambda: go.wait(30) and None

        def want(name):
            meet.wait(30)
            return builds.get(name)

        with ThreadPoolExecutor(8) as threads:
            found = [threads.submit(want, "a") for _ in range(8)]
            meet.wait(30)
            # Another one is not kept waiting by it.
            assert builds.get("b").metadata.solution_name == "b"
            go.set()
        assert len({id(each.result()) for each in found}) == 1
        assert sorted(builder.asked) == ["a", "b"]

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

    @pytest.mark.parametrize("jobs", [0, -1, 1.5, "2", True])
    def test_other_numbers_of_jobs_are_refused(self, builds, builder, jobs):
        with pytest.raises(ConfigError, match=f"jobs={jobs!r} is not allowed"):
            builds.ahead("ab", jobs=jobs)
        assert builder.asked == []

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


# -------------------------------------------------------------------------- with a real compiler


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Make a compiler that sleeps over some sources, and a cache of its own."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    for name in ("CC", "MAX_JOBS"):
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "c++"
    script.write_text(
        textwrap.dedent(
            f"""\
            #!/bin/sh
            for each in "$@"; do
              case "$each" in *.cpp)
                if grep -q SLEEPS "$each"; then echo $$ > {tmp_path}/asleep; exec sleep 600; fi;;
              esac
            done
            exec c++ "$@"
            """
        )
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return tmp_path


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
import test_building as here
from flashinfer_bench.apply.runtime import Builds

builds = Builds(here.source(here.slow_to_compile("slow"), here.solution("later")))
try:
    list(builds.ahead(["slow", "later"], jobs=1))
except KeyboardInterrupt:
    assert builds.get("later")(3) == 6  # the process is as good as before
    print("interrupted", sorted(builds.failed), flush=True)
"""


@pytest.mark.torch
@pytest.mark.plugin("python", "tvm_ffi")
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler for C++")
@pytest.mark.skipif(os.name == "nt", reason="it sends signals")
def test_ctrl_c_ends_the_wait_and_no_compiler_holds_up_the_end(compiler):
    def asleep():
        path = compiler / "asleep"
        return path.read_text().strip() if path.exists() else ""

    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, os.path.dirname(__file__)],  # noqa: PTH120
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        while not asleep():
            assert child.poll() is None
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)  # to Python alone: the compiler sleeps on
        line = child.stdout.readline()
        child.wait(60)
    finally:
        child.kill()
        if asleep():  # which ninja has put into a process group of its own
            os.kill(int(asleep()), signal.SIGKILL)
        child.stdout.close()
        child.wait(60)
    assert line == "interrupted []\n"
    assert child.returncode == 0
