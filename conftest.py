"""What holds for all tests of the repository."""

from __future__ import annotations

import atexit
import compileall
import gc
import importlib.util
import logging
import os
import shutil
import signal
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.register_assert_rewrite("fib_tests")

from fib_tests import forked, profiles  # noqa: E402 - its assertions are to be rewritten
from flashinfer_bench.bench.executors import fork  # noqa: E402

profiles.load()

# What collecting makes stays to the end: no collector of garbage need look through it, ever.
gc.disable()

ROOT = Path(__file__).parent

# Tests that are about servers start them as everybody does; those of others are forked.
OF_SERVERS = {"bench_candidate", "sandbox_linux", "judge", "exploits", "test_real_processes.py"}
PLUGINS = {point.name for point in entry_points(group="flashinfer_bench.plugins")}

# Tests that run solutions lock devices, and the folder of the locks is common to all processes of
# the machine: without one of its own, each process of a test run would wait for all others.
os.environ["FIB_LOCK_PATH"] = tempfile.mkdtemp(prefix="fib-test-locks-")
atexit.register(shutil.rmtree, os.environ["FIB_LOCK_PATH"], ignore_errors=True)

# Compilers in the background would disturb whatever a test measures.
os.environ.setdefault("FIB_APPLY_HELPER", "0")

# Triton decides when it is imported whether the functions of its language are interpreted. Where
# there is no GPU its tests want them so, whichever test of this process imports it first.
if importlib.util.find_spec("triton") and not Path("/dev/nvidiactl").exists():
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    import triton  # for what it does when it is imported

    if before is None:
        del os.environ["TRITON_INTERPRET"]
    else:
        os.environ["TRITON_INTERPRET"] = before


def pytest_configure() -> None:
    """Heed Ctrl-C, which a shell's background job ignores, as would all that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.dont_write_bytecode and "PYTEST_XDIST_WORKER" not in os.environ:
        # Else each of many processes would compile the package anew.
        for folder in (ROOT / "core" / "src", *ROOT.glob("plugins/*/src")):
            compileall.compile_dir(folder, quiet=1)


def pytest_collection_finish() -> None:
    """Collect garbage again, but not what is there now."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """End the process that others were forked from."""
    forked.end()


@pytest.fixture(autouse=True)
def forked_servers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no test wait until a server of candidates has imported torch, unless it is about it."""
    if forked.CAN_FORK and not OF_SERVERS & {*request.path.parts}:
        monkeypatch.setattr(fork, "subprocess", forked.SUBPROCESS)


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Keep the levels and handlers that a benchmark or a command sets from all later tests."""
    names = ("", "flashinfer_bench", "flashinfer_bench.bench", "flashinfer_bench.bench.benchmark")
    loggers = [logging.getLogger(name) for name in names]
    before = [(one, one.level, list(one.handlers)) for one in loggers]
    yield
    for one, level, handlers in before:
        one.setLevel(level)
        one.handlers[:] = handlers


def pytest_report_header() -> str:
    """List the plugins that are installed."""
    return f"flashinfer_bench plugins: {', '.join(sorted(PLUGINS)) or 'none'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked ``plugin("name")`` where that plugin is not installed."""
    for item in items:
        for mark in item.iter_markers("plugin"):
            missing = [name for name in mark.args if name not in PLUGINS]
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"plugin not installed: {missing[0]}"))
