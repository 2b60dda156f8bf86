"""Patch points, and the router that fills them."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.routing import patch_points
from flashinfer_bench.routing.patch_points import PatchPoint, Router


class Runtime:
    """Answers with its own label, and notes what it was asked."""

    def __init__(self, label, *names, routes=None):
        self.label = label
        self.known = names
        self.routes = routes
        self.asked = []

    def names(self):
        return self.known

    def route(self, name, point):
        self.asked.append((name, point))
        if self.routes is not None:
            return self.routes(name, point)
        return lambda args, kwargs, fallback: (self.label, name, args, kwargs)


class Empty(Runtime):
    """A runtime that is, as a collection, empty."""

    def __len__(self):
        return 0


def original(*args, **kwargs):
    return ("original", args, kwargs)


def take(router, name, *args, fallback=original, **kwargs):
    """Make a call in the function form."""
    call = router.call_of(name)
    return fallback(*args, **kwargs) if call is None else call(args, kwargs or None, fallback)


def through(point, *args, name=None, fallback=original, **kwargs):
    """Make a call as a wrapper does."""
    call = point.call
    if point.name is None and point.routes is not None:
        call = point.routes[name]
    return fallback(*args, **kwargs) if call is None else call(args, kwargs or None, fallback)


@pytest.fixture
def router():
    return Router()


@pytest.fixture
def point(router):
    made = PatchPoint("d", "module.function", inspect.signature(lambda x: x))
    router.connect(made)
    return made


@pytest.fixture
def unnamed(router):
    made = PatchPoint(None, "module.function")
    router.connect(made)
    return made


class TestAPoint:
    def test_is_filled_by_the_runtime_that_starts_and_asks_it_once(self, router, point):
        assert point.call is None
        runtime = Runtime("a", "d")
        router.push(runtime)
        assert runtime.asked == []
        for _ in range(3):
            assert through(point, 1) == ("a", "d", (1,), None)
        assert runtime.asked == [("d", point)]


class TestAPointWithoutAName:
    def test_has_a_route_for_each_definition(self, router, unnamed):
        runtime = Runtime("a", "d", "e")
        router.push(runtime)
        for _ in range(2):
            assert through(unnamed, 1, name="d") == ("a", "d", (1,), None)
            assert through(unnamed, 1, name="e") == ("a", "e", (1,), None)
        assert through(unnamed, 1, name="other") == ("original", (1,), {})
        assert len(runtime.asked) == 2
        router.remove(runtime)
        assert unnamed.routes is None

    def test_keeps_only_so_many_names_that_somebody_watches(self, router, unnamed, monkeypatch):
        monkeypatch.setattr(patch_points, "_MOST_KNOWN", 50)
        seen = []
        router.observe(lambda name, *_: seen.append(name))
        for index in range(200):
            call = unnamed.routes[f"made_up_{index}"]
            assert call((index,), None, lambda x: -x) == -index
        assert len(unnamed.routes) == 50
        assert seen == [f"made_up_{index}" for index in range(200)], "all of them are told of"


class TestSeveralRuntimes:
    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=30))
    def test_it_is_a_stack_from_which_any_may_be_taken(self, steps):
        router, model = Router(), []
        point = PatchPoint("d", "f")
        router.connect(point)
        runtimes = [Runtime(index, "d") for index in range(4)]
        for push, index in steps:
            if push:
                router.push(runtimes[index])
            else:
                assert router.remove(runtimes[index]) is (index in model)
            model = [each for each in model if each != index] + [index] * push
            assert [each.label for each in router.active] == model
            expected = model[-1] if model else "original"
            assert through(point)[0] == take(router, "d")[0] == expected

    def test_one_that_has_changed_is_asked_anew(self, router, point):
        outer, runtime = Runtime("a", "d"), Runtime("b", "d")
        router.push(outer)
        router.push(runtime)
        through(point)
        before = point.call
        router.publish(outer)  # not the innermost: nothing changes
        assert point.call is before
        runtime.label, runtime.known = "new", ("d", "e")
        router.publish(runtime)
        assert through(point)[0] == take(router, "e")[0] == "new"

    def test_a_call_that_began_earlier_does_not_bring_the_old_back(self, router, point):
        began, go_on, found = threading.Event(), threading.Event(), []

        def slowly(name, point):
            began.set()
            assert go_on.wait(60)
            return lambda args, kwargs, fallback: "old"

        router.push(Runtime("slow", "d", routes=slowly))
        thread = threading.Thread(target=lambda: found.append(through(point)))
        thread.start()
        assert began.wait(60)
        router.push(Runtime("a", "d"))
        go_on.set()
        thread.join()
        assert found == ["old"]
        assert through(point)[0] == "a"


class TestTheFunctionForm:
    def test_finds_what_is_active(self, router):
        runtime = Runtime("a", "d")
        router.push(runtime)
        for _ in range(2):
            assert take(router, "d", 1, k=2) == ("a", "d", (1,), {"k": 2})
        assert runtime.asked == [("d", None)]
        before = router.calls
        router.push(Runtime("b", "e"))
        assert set(before) == {"d"}, "it is replaced as a whole"

    def test_a_definition_that_is_not_taken_runs_the_fallback_or_says_why_not(self, router):
        router.push(Runtime("a", "d", routes=lambda name, point: None))
        for _ in range(2):
            assert take(router, "d", 1) == ("original", (1,), {})
            with pytest.raises(RuntimeError, match="'d'"):
                take(router, "d", fallback=None)


def test_a_runtime_that_fails_costs_nothing_but_itself(router, point, caplog):
    router.push(Runtime("a", "d", routes=lambda name, point: 1 / 0))
    for _ in range(3):
        assert through(point, 1) == ("original", (1,), {})
    assert len(caplog.records) == 1
    assert "'d'" in caplog.text
    assert "ZeroDivisionError" in caplog.text


class TestObservers:
    @pytest.fixture
    def seen(self):
        return []

    @pytest.fixture
    def note(self, seen):
        return lambda *call: seen.append(call)

    @pytest.mark.parametrize("taken", [False, True])
    def test_are_told_of_each_call(self, router, point, unnamed, seen, note, taken):
        if taken:
            router.push(Runtime("a", "d", "x"))
        router.observe(note)
        answers = [through(point, 1, k=2), through(unnamed, 1, name="x"), take(router, "d", 3)]
        assert {answer[0] for answer in answers} == {"a" if taken else "original"}
        assert seen == [
            ("d", point, (1,), {"k": 2}),
            ("x", unnamed, (1,), None),
            ("d", None, (3,), None),
        ]

    def test_end_one_by_one_and_then_cost_nothing(self, router, point, seen, note):
        first = []
        ends = [router.observe(lambda *call: first.append(call)), router.observe(note)]
        through(point)
        ends[0]()
        ends[0]()
        through(point)
        ends[1]()
        assert point.call is None
        assert (len(first), len(seen)) == (1, 2)

    def test_that_fail_are_logged_and_break_nothing(self, router, point, caplog):
        router.observe(lambda *_: 1 / 0)
        router.push(Runtime("a", "d"))
        for _ in range(2):
            assert through(point)[0] == "a"
        assert caplog.text.count("division by zero\n") == 1

    def test_what_a_call_raises_goes_on_to_the_caller(self, router, point, note):
        router.observe(note)
        with pytest.raises(KeyError, match="mine"):
            through(point, fallback=lambda: {}["mine"])


def test_wanted_is_what_the_innermost_and_watchers_want(router):
    assert router.wanted() == []
    router.push(Runtime("a", "x"))
    router.push(Empty("b", "b"))
    router.observe(lambda *_: None, "a")
    router.observe(lambda *_: None, "b")
    assert router.wanted() == ["b", "a"]


@pytest.mark.parametrize("broken", ["None", "type(sys)('broken')"])
def test_what_cannot_be_imported_costs_adapters_alone(broken):
    """An installation with a part missing: everything else goes on."""
    code = dedent(f"""
        import logging, sys
        logging.basicConfig(format="%(name)s: %(message)s")
        sys.modules["flashinfer_bench.routing.installation"] = {broken}
        from flashinfer_bench.routing.patch_points import router
        end = router.observe(lambda *_: print("told"), "d")
        router.call_of("d")((), None, lambda: print("called"))
        end()
        print(router.in_use)
    """)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["told", "called", "False"], done.stderr
    assert "patch_points: adapters could not be brought up" in done.stderr
