"""What core's tests need and may lack: torch. Without it the folders that need it are left out."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

HAS_TORCH = find_spec("torch") is not None
NEED_TORCH = ("tensors", "compile", "bench", "bench_candidate", "dispatch", "tracing")


def pytest_report_header() -> list[str]:
    return [] if HAS_TORCH else [f"no torch: not collecting {', '.join(NEED_TORCH)}"]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if HAS_TORCH:
        return None
    return True if collection_path.is_dir() and collection_path.name in NEED_TORCH else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("torch") and not HAS_TORCH:
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))


@pytest.fixture(autouse=True)
def no_adapters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have enabling anything patch no library, unless that is what is tested.

    Which libraries this process has imported is chance, and so is what it costs to look at them.
    """
    if not request.path.name.startswith(("test_install", "test_adapters")):
        monkeypatch.setenv("FIB_ADAPTERS", "-*")
