"""The plugin as the host sees it."""

from __future__ import annotations

import re

import pytest

import fib_builder_tvmffi
from fib_builder_tvmffi import probe as module
from fib_builder_tvmffi.probe import probe, probe_cuda
from flashinfer_bench.errors import CapabilityError


@pytest.fixture
def records():
    return {spec.name: spec for spec in fib_builder_tvmffi.fib_register_builders()}


class TestProbes:
    def test_what_is_here_is_named_with_its_version(self, monkeypatch):
        monkeypatch.setattr(module, "find_cxx", lambda: "a compiler")
        assert re.search(r"(^|, )apache-tvm-ffi \S+, a compiler$", probe().reason)

    def test_without_tvm_ffi(self, monkeypatch):
        def missing():
            raise CapabilityError("apache-tvm-ffi is not installed", hint="pip install it")

        monkeypatch.setattr(module, "find_tvm_ffi", missing)
        for answer in (probe(), probe_cuda()):
            assert not answer.ok
            assert "apache-tvm-ffi is not installed" in answer.reason
            assert answer.remedy == "pip install it"
