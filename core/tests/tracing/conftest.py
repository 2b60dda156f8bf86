from __future__ import annotations

from typing import Any

import pytest

from fib_tests import recorded


@pytest.fixture
def root(tmp_path):
    """A dataset with three definitions."""
    return recorded.write_dataset(tmp_path / "dataset")


@pytest.fixture
def sink():
    return recorded.Sink()


@pytest.fixture(autouse=True)
def nothing_active(monkeypatch):
    """Neither the environment nor another test records."""
    from flashinfer_bench.apply import disable_apply
    from flashinfer_bench.routing.patch_points import router
    from flashinfer_bench.tracing import disable_tracing

    monkeypatch.delenv("FIB_ENABLE_TRACING", raising=False)
    monkeypatch.delenv("FIB_ENABLE_APPLY", raising=False)
    yield
    disable_tracing()
    disable_apply()
    assert not router.in_use
