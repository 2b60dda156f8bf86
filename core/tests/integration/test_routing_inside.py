"""Patched functions within one another, in threads, watched and counted; tables of routes."""

from __future__ import annotations

import gc
import importlib.util
import os
import pickle
import signal
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

from flashinfer_bench.integration import routed
from flashinfer_bench.integration.routing import (
    Route,
    Understood,
    UnroutableError,
    route_calls,
    route_stats,
)
from flashinfer_bench.integration.slots import board

spec = importlib.util.spec_from_file_location(
    "routed_use", Path(__file__).with_name("routed_use.py")
)
routed_use = importlib.util.module_from_spec(spec)
spec.loader.exec_module(routed_use)
Library, Runtime = routed_use.Library, routed_use.Runtime
ScaleRoute, Scaling = routed_use.ScaleRoute, routed_use.Scaling
missing, negative = routed_use.missing, routed_use.negative
nothing_enabled, library = routed_use.nothing_enabled, routed_use.library
wrap, enable = routed_use.wrap, routed_use.enable
counts, watch = routed_use.counts, routed_use.watch


class TestWatched:
    def test_told_once_with_canonical_inputs(self, library):
        wrapper = wrap(library)
        notes, end = watch("scale_h2")
        assert wrapper([1.0, 2.0], weight=3) == [3.0, 6.0]
        end()
        wrapper([1.0, 2.0], 3)
        assert notes == [("scale_h2", "library.scale", ([1.0, 2.0], 3, 1e-6), None)]

    def test_before_a_solution_answers(self, library):
        wrapper = wrap(library)
        enable()
        notes, end = watch("scale_h2")
        assert wrapper([1.0, 2.0], 3) == [-1.0, -2.0]
        end()
        assert len(notes) == 1

    def test_what_a_watcher_raises_goes_no_further(self, library):
        wrapper = wrap(library)
        end = board.observe(lambda *args: 1 // 0)
        assert wrapper([1.0, 2.0], 3) == [3.0, 6.0]
        end()

    def test_calls_that_are_not_understood(self, library):
        wrapper = wrap(library)
        notes, end = watch("scale_h2")
        wrapper((1.0, 2.0), 3)
        wrapper([1.0], 3)
        end()
        assert notes == []


class TestNested:
    def test_calls_inside_of_a_solution(self, library):
        wrapper = wrap(library)
        enable(lambda args, kwargs, fallback: [*wrapper(args[0], args[1])])
        notes, end = watch("scale_h2")
        assert wrapper([1.0, 2.0], 3) == [3.0, 6.0]
        end()
        assert len(notes) == 1
        assert counts()["calls"] == 1

    def test_of_another_function(self, library):
        other = wrap(library)
        wrapper = route_calls(ScaleRoute(), lambda input, weight: other(input, weight))
        enable(missing)
        assert wrapper([1.0, 2.0], 3) == [3.0, 6.0]
        assert counts()["calls"] == 1

    def test_of_an_original_that_is_not_routed(self, library):
        """What was not understood is no routed call: those inside of it may be."""
        other = wrap(library)
        wrapper = route_calls(ScaleRoute(), lambda input, weight: other([*input], weight))
        enable()
        assert wrapper((1.0, 2.0), 3) == [-1.0, -2.0]

    def test_after_an_exception(self, library):
        wrapper = wrap(library)
        enable(missing)
        with pytest.raises(TypeError):
            wrapper([None, None], 2.0)
        wrapper([1.0, 2.0], 3)
        assert counts()["routed"] == 2

    def test_in_another_thread(self, library):
        wrapper = wrap(library)

        def in_thread(args, kwargs, fallback):
            if threading.current_thread() is threading.main_thread():
                thread = threading.Thread(target=lambda: got.append(wrapper([5.0, 6.0], 1)))
                thread.start()
                thread.join()
            return negative(args, kwargs, fallback)

        got = []
        enable(in_thread)
        assert wrapper([1.0, 2.0], 3) == [-1.0, -2.0]
        assert got == [[-5.0, -6.0]]


class TestThreads:
    def test_enabling_and_disabling_while_calls_run(self, library):
        wrapper, wrong, over = wrap(library), [], threading.Event()

        def work():
            while not over.is_set():
                got = wrapper([1.0, 2.0], 3)
                if got not in ([3.0, 6.0], [-1.0, -2.0]):
                    wrong.append(got)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(300):
            runtime = enable(negative if number % 2 else missing)
            _, end = watch("scale_h2")
            board.remove(runtime)
            end()
        over.set()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert wrapper.__apply_slot__.routes is None

    def test_counts_add_up(self, library):
        wrapper = wrap(library)
        enable()

        def work():
            for _ in range(500):
                wrapper([1.0, 2.0], 3)
                wrapper((1.0, 2.0), 3)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts() == {"calls": 4000, "routed": 2000, "refused": {"no list": 2000}}


class TestStats:
    def test_several_functions_of_one_label(self, library):
        first, second = wrap(library), wrap(library)
        enable()
        first([1.0, 2.0], 3)
        second([1.0, 2.0], 3)
        assert counts()["routed"] == 2

    def test_counts_outlive_the_wrapper(self, library):
        wrapper = wrap(library)
        enable()
        wrapper([1.0, 2.0], 3)
        del wrapper
        gc.collect()
        assert counts()["routed"] == 1

    def test_they_are_plain_values(self, library):
        wrap(library)
        assert pickle.loads(pickle.dumps(route_stats())) == route_stats()


class TestAdapter:
    def test_targets(self):
        function, method = Scaling().targets()
        assert (function.path, function.kind, function.name) == (
            *("library.scale", "function", "scale"),
        )
        assert (method.kind, method.name) == ("method", "scale")
        assert function.definitions == ("scale_h*", "Scale")

    def test_kind_that_the_route_says_itself(self):
        class Private(ScaleRoute):
            kind = "method"

        class Adapter(Scaling):
            routes: ClassVar = {"library.lower.scale": Private, "library._Hidden.scale": ScaleRoute}

        assert [each.kind for each in Adapter().targets()] == ["method", "method"]

    def test_expectations_of_the_route(self):
        class Picky(ScaleRoute):
            def expects(self, original):
                return f"unlike {original}"

        class Adapter(Scaling):
            routes: ClassVar = {"library.scale": Picky}

        (target,) = Adapter().targets()
        assert target.expects("mine") == "unlike mine"

    def test_wrappers(self, library):
        adapter = Scaling()
        wrapper = adapter.make_wrapper(adapter.targets()[0], library.function())
        enable()
        assert wrapper([1.0, 2.0], 3) == [-1.0, -2.0]

    def test_abstract(self):
        with pytest.raises(TypeError):
            Route()

    def test_a_route_without_outputs_to_compare(self):
        class Plain(ScaleRoute):
            outputs = Route.outputs

        with pytest.raises(UnroutableError, match="no outputs to compare with"):
            Plain().outputs(None, Understood("x", ()), ())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_forked_while_a_call_is_counted_can_count():
    """The thread that held the lock is not in the child."""
    counters = routed.counters_of("library.forked")
    with counters._lock:
        child = os.fork()
        if child == 0:
            counters.refuse("arguments")
            os._exit(0)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended[0] == child
    assert ended[1] == 0
