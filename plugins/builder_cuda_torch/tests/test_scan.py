"""What sources tell."""

from __future__ import annotations

import pytest

from fib_builder_cuda_torch import scan
from flashinfer_bench.errors import BuildError


class TestOperators:
    @pytest.mark.parametrize(
        "text",
        [
            "TORCH_LIBRARY(TORCH_EXTENSION_NAME, m) {}",
            "STABLE_TORCH_LIBRARY ( TORCH_EXTENSION_NAME , m ) {}",
            "#define NAME TORCH_EXTENSION_NAME\nTORCH_LIBRARY(NAME, m) {}",
            "#define LIBRARY(name, m) \\\n  TORCH_LIBRARY(name, m)\n"
            "LIBRARY(TORCH_EXTENSION_NAME, m) {}",
            "TORCH_LIBRARY_IMPL(aten, CPU, m) {}",
            "TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, m) {}",
        ],
    )
    def test_names_that_are_the_builds(self, make_solution, text):
        solution = make_solution(files={"main.cpp": text})
        scan.check_names(solution)

    @pytest.mark.parametrize(
        ("text", "macro"),
        [
            ("TORCH_LIBRARY(my_ops, m) {}", "TORCH_LIBRARY"),
            ("TORCH_LIBRARY_FRAGMENT(my_ops, m) {}", "TORCH_LIBRARY_FRAGMENT"),
            ("STABLE_TORCH_LIBRARY(\n  my_ops, m) {}", "STABLE_TORCH_LIBRARY"),
            ("#define my_ops more\nTORCH_LIBRARY(my_ops, m) {}", "TORCH_LIBRARY"),
        ],
    )
    def test_names_of_their_own(self, make_solution, text, macro):
        solution = make_solution(files={"main.cpp": "//", "ops/a.cpp": text})
        with pytest.raises(BuildError) as caught:
            scan.check_names(solution)
        assert f"ops/a.cpp: {macro}(my_ops, …)" in str(caught.value)
        assert f"Write {macro}(TORCH_EXTENSION_NAME, …)" in caught.value.hint
