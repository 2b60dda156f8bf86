from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# Test modules import it under this name.
spec = importlib.util.spec_from_file_location(
    "fib_tests_tracing", Path(__file__).with_name("recorded_dataset.py")
)
assert spec is not None
assert spec.loader is not None
recorded = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = recorded
spec.loader.exec_module(recorded)


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
    from flashinfer_bench.integration.slots import board
    from flashinfer_bench.tracing import disable_tracing

    monkeypatch.delenv("FIB_ENABLE_TRACING", raising=False)
    monkeypatch.delenv("FIB_ENABLE_APPLY", raising=False)
    yield
    disable_tracing()
    disable_apply()
    assert not board.in_use
