"""A builder for C, compilers that only pretend, and processes that build."""

import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from fib_tests.builds import cache_folder, helper_cache

SUPPORT = Path(__file__).parent / "support"
READ_BY_COMPILERS = (
    *("CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CUDA_HOME", "CUDA_PATH"),
    *("FIB_CUDA_ARCH_LIST", "LIBRARY_PATH"),
    *("NVCC_APPEND_FLAGS", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS"),
)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """Remove what the machine at hand may have set for its compilers."""
    for name in READ_BY_COMPILERS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def c(monkeypatch):
    """The module ``c_builder``."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    monkeypatch.syspath_prepend(str(SUPPORT))
    return import_module("c_builder")


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a program, a shell script, and returns its path."""

    def write(name, text, folder=None):
        path = (folder or tmp_path / "bin") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return write


@pytest.fixture
def start():
    """Return a function that starts Python on some code, with `c_builder` in reach."""
    processes = []
    path = [SUPPORT, *filter(None, [os.environ.get("PYTHONPATH")])]

    def run(code, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
