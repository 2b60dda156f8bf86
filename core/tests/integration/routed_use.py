"""What tests of patched functions do with the library of `routed_library`."""

from __future__ import annotations

import gc
import importlib.util
from pathlib import Path

import pytest

from flashinfer_bench.integration import routed
from flashinfer_bench.integration.routing import route_calls, route_stats
from flashinfer_bench.integration.slots import board

spec = importlib.util.spec_from_file_location(
    "routed_library", Path(__file__).with_name("routed_library.py")
)
routed_library = importlib.util.module_from_spec(spec)
spec.loader.exec_module(routed_library)
Library, Runtime = routed_library.Library, routed_library.Runtime
ScaleRoute, Scaling = routed_library.ScaleRoute, routed_library.Scaling
missing, negative = routed_library.missing, routed_library.negative


@pytest.fixture(autouse=True)
def nothing_enabled(monkeypatch):
    monkeypatch.setattr(routed, "_counters", {})
    board.clear()
    yield
    board.clear()
    gc.collect()


@pytest.fixture
def library():
    return Library()


def wrap(library, route=None):
    return route_calls(route or ScaleRoute(), library.function())


def enable(call=negative, *names, **more):
    runtime = Runtime(call, *(names or ("scale_h2",)), **more)
    board.push(runtime)
    return runtime


def counts(label="library.scale"):
    return route_stats()[label]


def watch(*names):
    """Have calls noted; returns the notes and what ends it."""
    notes = []

    class Watcher:
        def names(self):
            return names

        def watch(self, name, slot):
            return lambda args, kwargs: notes.append((name, slot.label, args, kwargs))

    return notes, board.watch(Watcher())
