"""Finding apache-tvm-ffi, and what a compiled library exports."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fib_builder_tvmffi.exports import exported_names
from fib_builder_tvmffi.library import find_tvm_ffi
from flashinfer_bench.errors import CapabilityError


class TestTvmFfi:
    def test_the_installed_one(self):
        import tvm_ffi

        found = find_tvm_ffi()
        assert found.version == importlib.metadata.version("apache-tvm-ffi")
        assert str(found) == f"apache-tvm-ffi {found.version}"
        assert str(found.include_path) == tvm_ffi.libinfo.find_include_path()
        assert str(found.library_path / "libtvm_ffi.so") == tvm_ffi.libinfo.find_libtvm_ffi()

    def test_it_is_not_imported(self):
        code = (
            "import sys\n"
            "from fib_builder_tvmffi.library import find_tvm_ffi\n"
            "find_tvm_ffi()\n"
            "print(sorted({'tvm_ffi', 'torch'} & set(sys.modules)))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout == "[]\n"

    @pytest.mark.parametrize("version", ["0.1.11", "0.1.15.post2", "0.2.0rc1", "1.0"])
    def test_new_enough(self, monkeypatch, version):
        monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
        assert find_tvm_ffi().version == version

    @pytest.mark.parametrize("version", ["0.1.10", "0.1.9.post1", "0.0.12", "unknown"])
    def test_too_old(self, monkeypatch, version):
        monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
        with pytest.raises(CapabilityError, match=r"is too old, 0\.1\.11 is the oldest") as caught:
            find_tvm_ffi()
        assert "pip install 'apache-tvm-ffi>=0.1.11'" in caught.value.hint

    def test_not_installed(self, monkeypatch):
        def missing(name):
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "version", missing)
        with pytest.raises(CapabilityError, match="apache-tvm-ffi is not installed"):
            find_tvm_ffi()

    def test_without_its_module(self, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(CapabilityError, match="no module tvm_ffi"):
            find_tvm_ffi()

    def test_without_headers(self, monkeypatch, tmp_path):
        spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
        with pytest.raises(CapabilityError, match=r"lacks include/tvm/ffi/function\.h"):
            find_tvm_ffi()


class TestExports:
    def test_of_a_real_library(self, build, make_solution):
        source = "EXPORT(_run) { return 0; }\nEXPORT(add_2) { return 0; }\nvoid hidden() {}"
        solution = make_solution(source, entry="kernel.cpp::_run")
        library = build(solution).metadata.misc["library"]
        assert exported_names(Path(library)) == ["_run", "add_2"]

    def test_without_what_the_macros_add(self, build, make_solution):
        source = (
            "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Add)\n"
            'TVM_FFI_DLL_EXPORT_TYPED_FUNC_DOC(run, "Adds.")\n'
        )
        library = build(make_solution(source, base="typed")).metadata.misc["library"]
        assert exported_names(Path(library)) == ["run"]

    def test_a_file_that_is_no_library(self, tmp_path):
        file = tmp_path / "x.so"
        file.write_bytes(b"")
        assert exported_names(file) == []
