from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fib_tests import recorded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset with three definitions."""
    return recorded.write_dataset(tmp_path / "dataset")


@pytest.fixture
def sink() -> Any:
    return recorded.Sink()


@pytest.fixture(autouse=True)
def nothing_active(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
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
