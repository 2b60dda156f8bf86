"""The plugin as the host sees it."""

from __future__ import annotations

import pytest
import torch

import fib_builder_cuda_torch
from fib_builder_cuda_torch import probe
from flashinfer_bench.compile import Builder
from flashinfer_bench.plugins import discover
from flashinfer_bench.plugins.records import Availability


@pytest.fixture(params=["torch", "torch_cuda"])
def record(request):
    (found,) = [
        r for r in fib_builder_cuda_torch.fib_register_builders() if r.name == request.param
    ]
    return found


def test_the_host_finds_it_and_it_can_be_used():
    chosen = discover().select_builder("cpp", "torch")
    assert chosen.distribution == "fib-builder-cuda-torch"
    assert chosen.availability().ok
    assert issubclass(chosen.load(), Builder)


def test_solutions_without_a_binding_are_others_first(record):
    assert record.priority < 50


class TestProbes:
    @pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built for CUDA")
    def test_cuda_with_a_torch_that_has_none(self):
        answer = probe.probe_cuda()
        assert answer.reason == f"torch {torch.__version__} is built without CUDA"
        assert "build of torch for CUDA" in answer.remedy

    def test_without_nvcc_or_a_gpu(self, monkeypatch):
        from flashinfer_bench.errors import CapabilityError

        def missing():
            raise CapabilityError("nvcc not found: nowhere", hint="Install it.")

        monkeypatch.setattr(probe, "find_cuda_torch", lambda: "torch")
        monkeypatch.setattr(probe, "find_nvcc", missing)
        assert probe.probe_cuda() == Availability(False, "nvcc not found: nowhere", "Install it.")
        monkeypatch.setattr(probe, "find_nvcc", lambda: "nvcc 13.0")
        monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a")
        assert probe.probe_cuda().reason.endswith("nvcc 13.0, 9.0a")
