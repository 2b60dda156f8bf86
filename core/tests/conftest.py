"""What core's tests need and may lack: torch, and the plugins that some of them go through.

In an environment without torch the folders that need it are left out; in one without a plugin the
tests marked ``plugin("name")`` are skipped. Both say so.
"""

from __future__ import annotations

import signal
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HAS_TORCH = find_spec("torch") is not None
NEED_TORCH = ("tensors", "compile", "bench", "bench_candidate", "dispatch", "tracing")
INSTALLED = {point.name for point in entry_points(group="flashinfer_bench.plugins")}


def pytest_configure() -> None:
    # A shell's background job ignores Ctrl-C, and so would every process that a test starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> list[str]:
    lines = [f"flashinfer_bench plugins: {', '.join(sorted(INSTALLED)) or 'none'}"]
    if not HAS_TORCH:
        lines.append(f"torch is not installed: not collecting {', '.join(NEED_TORCH)}")
    return lines


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if HAS_TORCH:
        return None
    return True if collection_path.is_dir() and collection_path.name in NEED_TORCH else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("plugin"):
            missing = [name for name in mark.args if name not in INSTALLED]
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"plugin not installed: {missing[0]}"))
        if item.get_closest_marker("torch") and not HAS_TORCH:
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))


@pytest.fixture(autouse=True)
def no_adapters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have enabling anything patch no library, unless that is what is tested.

    Which libraries this process has imported is chance, and so is what it costs to look at them.
    """
    if not request.path.name.startswith(("test_install", "test_adapters")):
        monkeypatch.setenv("FIB_ADAPTERS", "-*")
