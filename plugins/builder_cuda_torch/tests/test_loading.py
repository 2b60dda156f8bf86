"""Loading libraries, by themselves."""

from __future__ import annotations

import shutil
import sys

import pytest

from fib_builder_cuda_torch import loading
from flashinfer_bench.errors import BuildError


def test_what_is_no_library(tmp_path):
    path = tmp_path / "name.so"
    path.write_bytes(b"text")
    for operators in (False, True):
        with pytest.raises(BuildError, match="file too short"):
            loading.load_library(path, "s", operators=operators)
    assert not path.with_name(loading.LOADS).exists()


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
class TestTrial:
    """What would end this process ends another one."""

    @pytest.fixture
    def compiled(self, tmp_path):
        import subprocess

        def run(statement):
            text = (
                f"#include <stdexcept>\n#include <cstdlib>\nstatic int x = [] {{ {statement} }}();"
            )
            (tmp_path / "a.cpp").write_text(text)
            command = ["c++", "-shared", "-fPIC", "a.cpp", "-o", "a.so"]
            subprocess.run(command, cwd=tmp_path, check=True)
            return tmp_path / "a.so"

        return run

    @pytest.mark.parametrize(
        ("statement", "reason"),
        [
            ('throw std::runtime_error("one operator\\ntwice"); return 1;', "one operator"),
            ("std::abort(); return 1;", "ended with status -6"),
            ("std::_Exit(3); return 1;", "ended with status 3"),
        ],
    )
    def test_it_tells_why(self, compiled, statement, reason):
        path = compiled(statement)
        for _ in range(2):
            with pytest.raises(BuildError) as caught:
                loading.load_library(path, "s", operators=True)
            assert "solution 's': loading the library failed: " in str(caught.value)
            assert reason in str(caught.value)

    @pytest.mark.parametrize("python", ["/bin/false", "/no/such/python", ""])
    def test_where_nothing_can_be_tried_it_is_just_loaded(self, compiled, monkeypatch, python):
        monkeypatch.setattr(sys, "executable", python)
        monkeypatch.setattr(loading, "_libraries", {})
        assert loading.load_library(compiled("return 1;"), "s", operators=True).module is None
        assert not compiled("return 1;").with_name(loading.LOADS).exists()
