"""What the README shows works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fib_builder_cuda_torch import scan

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_it_says():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (said,) = re.findall(r"# ([\d.]+)$", code, re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == f"{said}\n"


@pytest.mark.parametrize("suffix", sorted(scan.KINDS))
def test_all_kinds_of_files_are_named(suffix):
    assert f"`{suffix}`" in README


def test_the_headers_are_those_of_the_tests(source):
    headers = {
        header
        for name in ("writes.cpp", "library.cpp", "module.cpp", "extension.cpp")
        for header in re.findall(r"#include (<torch/\S+>)", source(name))
    }
    assert all(f"`{header}`" in README for header in headers)
