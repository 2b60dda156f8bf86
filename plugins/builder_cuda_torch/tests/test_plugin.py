"""The plugin as the host sees it."""

import re
import subprocess
import sys
from pathlib import Path

from fib_builder_cuda_torch import probe
from flashinfer_bench.compile import Builder
from flashinfer_bench.plugins import discover
from flashinfer_bench.plugins.records import Availability


def test_the_host_finds_it_and_it_can_be_used():
    chosen = discover().select_builder("cpp", "torch")
    assert chosen.distribution == "fib-builder-cuda-torch"
    assert chosen.availability().ok
    assert issubclass(chosen.load(), Builder)


class TestProbes:
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


README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_it_says():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (said,) = re.findall(r"# ([\d.]+)$", code, re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == f"{said}\n"
