"""What tests of patched functions do with the library of `routed_library`."""

from __future__ import annotations

import gc

import pytest

from fib_tests.routed_library import (  # noqa: F401 - for tests
    Library,
    Runtime,
    ScaleRoute,
    Scaling,
    missing,
    negative,
)
from flashinfer_bench.routing import routes as routed
from flashinfer_bench.routing.patch_points import router
from flashinfer_bench.routing.routes import route_calls, route_stats


@pytest.fixture(autouse=True)
def nothing_enabled(monkeypatch):
    monkeypatch.setattr(routed, "_counters", {})
    router.clear()
    yield
    router.clear()
    gc.collect()


@pytest.fixture
def library():
    return Library()


def wrap(library, route=None):
    return route_calls(route or ScaleRoute(), library.function())


def enable(call=negative, *names, **more):
    runtime = Runtime(call, *(names or ("scale_h2",)), **more)
    router.push(runtime)
    return runtime


def counts(label="library.scale"):
    return route_stats()[label]


def watch(*names):
    """Have calls noted; returns the notes and what ends it."""
    notes = []

    class Watcher:
        def names(self):
            return names

        def watch(self, name, point):
            return lambda args, kwargs: notes.append((name, point.label, args, kwargs))

    return notes, router.watch(Watcher())
