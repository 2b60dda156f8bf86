"""The real FlashInfer on the CPU, in the release that is installed or another one.

``FIB_TEST_FLASHINFER`` names a folder that has an unpacked release in it (a folder ``flashinfer``);
it is imported in place of the installed one.
"""

import atexit
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from fib_tests.cli import fib_process

sys.path.insert(0, str(Path(__file__).parent))  # for `cpu`
if os.environ.get("FIB_TEST_FLASHINFER"):
    sys.path.insert(0, os.environ["FIB_TEST_FLASHINFER"])
if "FLASHINFER_WORKSPACE_BASE" not in os.environ:
    os.environ["FLASHINFER_WORKSPACE_BASE"] = tempfile.mkdtemp(prefix="fib-test-flashinfer-")
    atexit.register(shutil.rmtree, os.environ["FLASHINFER_WORKSPACE_BASE"], ignore_errors=True)


@pytest.fixture(autouse=True)
def by_hand(request, monkeypatch):
    """Whatever is enabled installs no adapter: tests put on the one that they are about.

    A test that asks for `installed` has all of them installed, as users have.
    """
    if "installed" not in request.fixturenames:
        monkeypatch.setenv("FIB_ADAPTERS", "-*")


@pytest.fixture
def installed(monkeypatch):
    """Enabling anything installs the adapters that are registered."""
    monkeypatch.delenv("FIB_ADAPTERS", raising=False)


@pytest.fixture(scope="session")
def flashinfer():
    """The real package. Tests that import from it ask for this first: it may not be installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("flashinfer")


@pytest.fixture
def cpu(flashinfer):
    """`cpu.cpu_flashinfer`, for tests that pick the areas themselves."""
    from cpu import cpu_flashinfer

    return cpu_flashinfer


@pytest.fixture
def mla(cpu, monkeypatch, tmp_path):
    """MLA on the CPU; counts the calls of its kernels."""
    from flashinfer_bench.routing.patch_points import router

    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "no-dataset"))
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")  # the tests patch by themselves
    with cpu("mla") as patch:
        yield patch
    router.clear()


@pytest.fixture
def cpu_norm(cpu):
    """FlashInfer's norms on the CPU; counts the calls of their kernels."""
    with cpu("norm") as patch:
        yield patch
