"""What the probes say, in every situation that a machine may be in."""

from pathlib import Path

import pytest

from fib_builder_triton import probe as probes
from fib_builder_triton.probe import probe, probe_interpreter
from flashinfer_bench.compile import toolkit
from flashinfer_bench.compile.toolkit import Tool, find_cc


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return a function that makes this machine one with Triton, a C compiler and these GPUs."""

    def arrange(*architectures):
        versions = {"triton": "3.7.1", "torch": "2.13.0+cu130"}
        gcc = Tool("cc", Path("/usr/bin/gcc"), "gcc (GCC) 12.2.0")
        monkeypatch.setattr(probes, "find_spec", lambda name: object())
        monkeypatch.setattr(probes, "version", versions.__getitem__)
        monkeypatch.setattr(probes, "gpu_architectures", lambda: architectures)
        monkeypatch.setattr(toolkit, "find_cc", lambda: gcc)
        monkeypatch.setattr(probes, "_AMD_DRIVER", tmp_path / "kfd")

    return arrange


class TestCompiled:
    def test_with_a_gpu(self, machine):
        machine("8.0", "9.0")
        answer = probe()
        assert answer.ok
        assert answer.reason == "triton 3.7.1, NVIDIA GPU of compute capability 8.0, 9.0, cc 12.2.0"

    @pytest.mark.parametrize("cc", ["", "/no/such/compiler"])
    def test_without_a_c_compiler(self, machine, monkeypatch, tmp_path, cc):
        machine("9.0")
        monkeypatch.setattr(toolkit, "find_cc", find_cc)
        monkeypatch.setenv("CC", cc)
        monkeypatch.setenv("PATH", str(tmp_path))
        answer = probe()
        assert not answer.ok
        assert answer.reason.startswith("Triton compiles its launchers with a C compiler: cc not ")
        assert "CC" in answer.remedy


@pytest.mark.parametrize("value", ["", "0", "false", "2", " 1"])
def test_the_interpreter_is_switched_off(machine, monkeypatch, value):
    machine("9.0")
    monkeypatch.setenv("TRITON_INTERPRET", value)
    answer = probe_interpreter()
    assert not answer.ok
    assert "TRITON_INTERPRET is not set" in answer.reason
    assert probe().ok


@pytest.mark.parametrize(
    "value", ["1", "true", "ON", "Yes", "y", "0", "no", "", "2", " 1", "truth"]
)
def test_the_variable_is_read_as_triton_reads_it(monkeypatch, value, interpreted):
    from triton import knobs

    from fib_builder_triton.interpreter import interpreter_wanted

    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert interpreter_wanted() is bool(knobs.runtime.interpret)
