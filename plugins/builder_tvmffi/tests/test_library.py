"""Finding apache-tvm-ffi, and what a compiled library exports."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest

from fib_builder_tvmffi.probe import find_tvm_ffi
from flashinfer_bench.errors import CapabilityError


class TestTvmFfi:
    def test_the_installed_one(self):
        import tvm_ffi

        found = find_tvm_ffi()
        assert found.version == importlib.metadata.version("apache-tvm-ffi")
        assert str(found) == f"apache-tvm-ffi {found.version}"
        assert str(found.include_path) == tvm_ffi.libinfo.find_include_path()
        assert str(found.library_path / "libtvm_ffi.so") == tvm_ffi.libinfo.find_libtvm_ffi()

    @pytest.mark.parametrize("version", ["0.1.10", "0.1.9.post1", "0.0.12", "unknown"])
    def test_too_old(self, monkeypatch, version):
        monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
        with pytest.raises(CapabilityError, match=r"is too old, 0\.1\.11 is the oldest") as caught:
            find_tvm_ffi()
        assert "pip install 'apache-tvm-ffi>=0.1.11'" in caught.value.hint
