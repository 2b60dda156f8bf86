"""Building ahead with the builders of plugins, compilers included."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from flashinfer_bench.apply.runtime import Builds
from flashinfer_bench.compile import BuilderRegistry
from flashinfer_bench.errors import BuildError

needs_compiler = [
    pytest.mark.plugin("tvm_ffi"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler for C++"),
]
pytestmark = [pytest.mark.torch, pytest.mark.plugin("python")]

CPP = """
#include <cstdint>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

static void Double(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const auto* from = static_cast<const float*>(x.data_ptr());
  auto* to = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < x.size(0) * x.size(1); ++i) to[i] = 2 * from[i];
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Double)
"""
PYTHON = "def run(x):\n    return x * 2\n"


_spec = importlib.util.spec_from_file_location(
    "fib_tests_building", Path(__file__).with_name("test_building.py")
)
building = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(building)

solution = building.solution


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """Give each test a cache of its own, and the compiler that is found on PATH."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    for name in ("CXX", "CC", "MAX_JOBS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def make(monkeypatch):
    """Return a function that makes builds of solutions, with the builders of all plugins."""
    registry = BuilderRegistry.from_catalog()
    monkeypatch.setattr("flashinfer_bench.compile.default_registry", lambda: registry)
    yield lambda *solutions: Builds(building.source(*solutions))
    registry.cleanup()


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Make a compiler that sleeps over some sources."""
    script = tmp_path / "c++"
    script.write_text(
        textwrap.dedent(
            f"""\
            #!/bin/sh
            for each in "$@"; do
              case "$each" in *.cpp)
                if grep -q SLEEPS "$each"; then echo $$ > {tmp_path}/asleep; exec sleep 600; fi;;
              esac
            done
            exec c++ "$@"
            """
        )
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return tmp_path


def check(runnable):
    """Call a solution and look at what it gives."""
    import torch

    x = torch.arange(12.0).reshape(3, 4)
    if runnable.metadata.destination_passing_style:
        out = torch.empty_like(x)
        runnable(x, out)
    else:
        out = runnable(x)
    assert torch.equal(out, x + x)


def test_python_that_cannot_be_loaded_says_why_and_costs_nobody_else(make):
    builds = make(
        solution("py"),
        solution("syntax", "def run(x:\n    return x\n"),
        solution("imports", "import no_such_module_xyz\n" + PYTHON),
        solution("entry", "def walk(x):\n    return x\n"),
        solution("arity", "def run(x, y, z):\n    return x\n"),
        solution("leaves", "import sys\nsys.exit(7)\n"),
    )
    names = ["py", "syntax", "imports", "entry", "arity", "leaves", "unknown"]
    failures = {name: error for name, error in builds.ahead(names) if error is not None}
    assert set(failures) == {"syntax", "imports", "entry", "arity", "leaves", "unknown"}
    assert all(isinstance(error, BuildError) for error in failures.values())
    assert "no_such_module_xyz" in str(failures["imports"])
    assert all(name in builds.failed[name] for name in failures)
    check(builds.get("py"))


CHILD = """
import sys
import test_building_real as here
from flashinfer_bench.apply.runtime import Builds

slow = here.solution("slow", here.CPP + "// SLEEPS", "cpp")
builds = Builds(here.building.source(slow, here.solution("later")))
try:
    list(builds.ahead(["slow", "later"], jobs=1))
except KeyboardInterrupt:
    here.check(builds.get("later"))  # the process is as good as before
    print("interrupted", sorted(builds.failed), flush=True)
"""


class TestCtrlC:
    pytestmark = needs_compiler

    @pytest.mark.skipif(os.name == "nt", reason="it sends signals")
    def test_it_ends_the_wait_and_no_compiler_holds_up_the_end(self, compiler):
        def asleep():
            path = compiler / "asleep"
            return path.read_text().strip() if path.exists() else ""

        child = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            cwd=os.path.dirname(__file__),  # noqa: PTH120
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            while not asleep():
                assert child.poll() is None
                time.sleep(0.02)
            child.send_signal(signal.SIGINT)  # to Python alone: the compiler sleeps on
            line = child.stdout.readline()
            child.wait(60)
        finally:
            child.kill()
            if asleep():  # which ninja has put into a process group of its own
                os.kill(int(asleep()), signal.SIGKILL)
            child.stdout.close()
            child.wait(60)
        assert line == "interrupted []\n"
        assert child.returncode == 0
