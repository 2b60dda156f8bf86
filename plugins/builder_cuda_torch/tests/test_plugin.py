"""The plugin as the host sees it."""

import re
from pathlib import Path

from fib_builder_cuda_torch import probe
from fib_tests.scaled_add import run_example
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.plugins import Availability


def test_without_nvcc_or_a_gpu(monkeypatch):
    def missing():
        raise CapabilityError("nvcc not found: nowhere", hint="Install it.")

    monkeypatch.setattr(probe, "find_cuda_torch", lambda: "torch")
    monkeypatch.setattr(probe, "find_nvcc", missing)
    assert probe.probe_cuda() == Availability(False, "nvcc not found: nowhere", "Install it.")
    monkeypatch.setattr(probe, "find_nvcc", lambda: "nvcc 13.0")
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a")
    assert probe.probe_cuda().reason.endswith("nvcc 13.0, 9.0a")


README = Path(__file__).parent.parent / "README.md"


def test_the_example_prints_what_it_says(tmp_path):
    printed = run_example(README, tmp_path).stdout
    assert re.findall(r"# ([\d.]+)$", README.read_text(), re.MULTILINE) == [printed.strip()]
