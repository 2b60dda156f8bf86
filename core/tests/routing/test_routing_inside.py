"""Patched functions within one another, in threads, watched and counted; tables of routes."""

from __future__ import annotations

import threading
from typing import ClassVar

from fib_tests.routed_use import (
    ScaleRoute,
    Scaling,
    counts,
    enable,
    nothing_enabled,  # noqa: F401 - a fixture for each test
    watch,
    wrap,
)


class TestWatched:
    def test_told_once_with_canonical_inputs(self, library):
        wrapper = wrap(library)
        notes, end = watch("scale_h2")
        assert wrapper([1.0, 2.0], weight=3) == [3.0, 6.0]
        end()
        wrapper([1.0, 2.0], 3)
        assert notes == [("scale_h2", "library.scale", ([1.0, 2.0], 3, 1e-6), None)]


class TestNested:
    def test_calls_inside_of_a_solution(self, library):
        wrapper = wrap(library)
        enable(lambda args, kwargs, fallback: [*wrapper(args[0], args[1])])
        notes, end = watch("scale_h2")
        assert wrapper([1.0, 2.0], 3) == [3.0, 6.0]
        end()
        assert len(notes) == 1
        assert counts()["calls"] == 1


class TestThreads:
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
