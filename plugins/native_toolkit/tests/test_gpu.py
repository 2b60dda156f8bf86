"""What nvcc says about a machine that it does not fit."""

from __future__ import annotations

import pytest

from fib_native_toolkit import ToolOutput, check_output, unsupported_by_toolkit
from flashinfer_bench.errors import BuildError, CapabilityError


class TestUnsupportedByTheToolkit:
    UNKNOWN = "nvcc fatal   : Unsupported gpu architecture 'compute_120a'"
    GCC = (
        "/usr/local/cuda/bin/../include/crt/host_config.h:132:2: error: #error -- unsupported GNU "
        "version! gcc versions later than 12 are not supported!"
    )
    CLANG = GCC.replace("GNU version", "clang version")

    @pytest.mark.parametrize("line", [UNKNOWN, GCC, CLANG])
    def test_it_is_the_machine_s_fault(self, monkeypatch, line):
        monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a 12.0a+PTX")
        output = f"[1/2] nvcc -c a.cu\nFAILED: a.o\n{line}\nninja: build stopped\n"
        assert unsupported_by_toolkit(output) == line
        with pytest.raises(CapabilityError, match="does not work on this machine") as caught:
            check_output("s", "compiling", ToolOutput(1, output))
        for word in ("FIB_CUDA_ARCH_LIST", "NVCC_CCBIN", "CXX"):
            assert word in caught.value.hint

    def test_an_architecture_of_the_solution_s_own(self, monkeypatch):
        for chosen in ("9.0a", "wrong"):
            monkeypatch.setenv("FIB_CUDA_ARCH_LIST", chosen)
            assert unsupported_by_toolkit(self.UNKNOWN) == ""
        with pytest.raises(BuildError, match="Unsupported gpu architecture"):
            check_output("s", "compiling", ToolOutput(1, self.UNKNOWN))

    def test_a_source_that_words_it_itself(self):
        line = "a.cu:1:2: error: #error -- unsupported GNU version!"
        assert unsupported_by_toolkit(line) == ""
