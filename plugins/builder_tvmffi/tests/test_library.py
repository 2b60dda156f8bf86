"""Finding apache-tvm-ffi, and what a compiled library exports."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from fib_builder_tvmffi.probe import find_tvm_ffi


class TestTvmFfi:
    def test_the_installed_one(self):
        import tvm_ffi

        found = find_tvm_ffi()
        assert found.version == importlib.metadata.version("apache-tvm-ffi")
        assert str(found) == f"apache-tvm-ffi {found.version}"
        assert str(found.include_path) == tvm_ffi.libinfo.find_include_path()
        assert str(found.library_path / "libtvm_ffi.so") == tvm_ffi.libinfo.find_libtvm_ffi()
