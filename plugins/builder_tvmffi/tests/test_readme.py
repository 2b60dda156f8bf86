"""What README.md shows works as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_example(tmp_path):
    kernel, script = blocks("cpp")[0], blocks("python")[0]
    (tmp_path / "scaled_add.cpp").write_text(kernel)
    (tmp_path / "example.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("True 1.0\n", "")


@pytest.mark.parametrize("snippet", blocks("cpp")[1:])
def test_the_other_snippets_compile(build, make_solution, snippet, nvcc, monkeypatch):
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a")
    source = (
        '#include "typed.h"\n__global__ void kernel() {}\n'
        "static void F(ffi::TensorView x, ffi::TensorView, double, ffi::TensorView) {\n"
        f"  int grid = 1, block = 1;\n{snippet.replace('…', '')}\n"
        "  (void)grid; (void)block;\n}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(run, F)\n"
    )
    build(make_solution(files={"a.cu": source}, base="typed", entry="a.cu::run", language="cuda"))
