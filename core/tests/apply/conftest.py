"""What keeps tests of apply apart: from the user's settings, and from one another."""

from __future__ import annotations

import gc

import pytest

from fib_tests.routed_library import Runtime
from flashinfer_bench.routing import routes
from flashinfer_bench.routing.patch_points import router


@pytest.fixture
def enable():
    """Have calls of definitions taken, and told what with: ``enable(*names)``."""

    def push(*names):
        router.push(made := Runtime(lambda *call: ("taken", *call), *names))
        return made

    router.clear()
    router.asked()
    yield push
    router.clear()


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


@pytest.fixture
def nothing_enabled(own_cache, monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "no-dataset"))
    for name in ("FIB_APPLY_PATH", "FIB_ENABLE_APPLY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(routes, "_counters", {})
    router.clear()
    router.asked()
    yield
    router.clear()
    gc.collect()


@pytest.fixture
def on_the_cpu(nothing_enabled, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
