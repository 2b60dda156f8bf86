"""Asking for GPUs: a library that answers as the driver's does, made by the system's compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from flashinfer_bench.compile.toolkit import (
    ToolOutput,
    check_output,
    cuda_architectures,
    gpu,
    gpu_architectures,
    unsupported_by_toolkit,
)
from flashinfer_bench.errors import BuildError, CapabilityError

NVML = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const int capabilities[][2] = {CAPABILITIES};
static int opened = 0;
int nvmlInit_v2(void) { opened = 1; return INIT; }
int nvmlShutdown(void) { opened = 0; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = sizeof(capabilities) / sizeof(capabilities[0]);
    return opened ? 0 : 1;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(0x7f0000000000ul + index);  /* wider than an int */
    return 0;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    return snprintf(uuid, length, "GPU-%lu-uuid", (unsigned long)device - 0x7f0000000000ul) < 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    unsigned long index = (unsigned long)device - 0x7f0000000000ul;
    *major = capabilities[index][0];
    *minor = capabilities[index][1];
    return *major == 0;
}
"""

ASK = """
import json, sys
from flashinfer_bench.compile.toolkit import gpu_architectures, cuda_architectures
from flashinfer_bench.errors import CapabilityError
found = [gpu_architectures()]
try:
    found.append(cuda_architectures())
except CapabilityError as error:
    found.append(error.message)
print(json.dumps([*found, "torch" in sys.modules]))
"""


@pytest.fixture
def ask(tmp_path):
    """Return a function that asks, in a process of its own, with GPUs of given capabilities."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("needs Linux and a C compiler")

    def run(*capabilities, init=0, text=NVML, **variables):
        rows = ",".join(f"{{{c.replace('.', ',')}}}" for c in capabilities)
        (tmp_path / "nvml.c").write_text(text)
        library = tmp_path / "libnvidia-ml.so.1"
        command = ["cc", "-shared", "-fPIC", f"-DCAPABILITIES={rows}", f"-DINIT={init}"]
        subprocess.run([*command, "-o", library, tmp_path / "nvml.c"], check=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
        environment.update(variables, LD_LIBRARY_PATH=str(tmp_path))
        out = subprocess.run(
            [sys.executable, "-c", ASK], check=True, capture_output=True, env=environment
        ).stdout
        return json.loads(out)

    return run


def test_one_gpu(ask):
    assert ask("9.0") == [["9.0"], ["9.0a"], False]


def test_eight_of_a_kind(ask):
    assert ask(*["8.0"] * 8) == [["8.0"], ["8.0"], False]


def test_several_kinds(ask):
    assert ask("10.0", "9.0", "8.9") == [
        ["8.9", "9.0", "10.0"],
        ["8.9", "9.0a", "10.0a"],
        False,
    ]


def test_none_is_visible(ask):
    for visible in ("", "-1", "NoDevFiles"):
        found, message, _ = ask("9.0", CUDA_VISIBLE_DEVICES=visible)
        assert found == []
        assert "no GPU to compile for" in message


def test_numbers_in_the_order_of_the_bus(ask):
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert ask("8.0", "9.0", CUDA_VISIBLE_DEVICES="1", **order)[0] == ["9.0"]
    assert ask("8.0", "9.0", CUDA_VISIBLE_DEVICES="1,0", **order)[0] == ["8.0", "9.0"]
    assert ask("8.0", "9.0", CUDA_VISIBLE_DEVICES="0,7,1", **order)[0] == ["8.0"]


def test_numbers_in_an_order_that_is_not_known(ask):
    assert ask("8.0", "9.0", CUDA_VISIBLE_DEVICES="1")[0] == ["8.0", "9.0"]
    assert ask("8.0", "9.0", CUDA_VISIBLE_DEVICES="2")[0] == []


def test_names(ask):
    assert ask("8.0", "9.0", CUDA_VISIBLE_DEVICES="GPU-1-uuid")[0] == ["9.0"]
    assert ask("8.0", "9.0", CUDA_VISIBLE_DEVICES="GPU-1")[0] == ["9.0"]
    assert ask("8.0", "9.0", CUDA_VISIBLE_DEVICES="GPU-9")[0] == []
    assert ask("9.0", CUDA_VISIBLE_DEVICES="MIG-1234")[0] == ["9.0"]


def test_a_device_that_does_not_answer_is_left_out(ask):
    assert ask("0.0", "9.0")[0] == ["9.0"]


def test_a_driver_that_does_not_answer(ask):
    assert ask("9.0", init=9)[0] == []


def test_a_driver_that_lacks_a_function(ask):
    assert ask("9.0", text=NVML.replace("nvmlDeviceGetUUID", "nvmlDeviceGetName"))[0] == []


def test_the_variable_goes_first(ask, monkeypatch):
    assert ask("8.0", FIB_CUDA_ARCH_LIST="9.0a;10.0 12.0+PTX,8.9")[1] == [
        "9.0a",
        "10.0",
        "12.0+PTX",
        "8.9",
    ]


def test_no_driver(monkeypatch):
    monkeypatch.setattr(gpu, "_devices", lambda again=False: ())
    assert gpu_architectures() == ()
    with pytest.raises(CapabilityError, match="FIB_CUDA_ARCH_LIST is not set") as caught:
        cuda_architectures()
    assert "9.0a" in caught.value.hint


def test_a_wrong_variable_is_refused(monkeypatch):
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a sm_90")
    with pytest.raises(ValueError, match="'sm_90' is no compute capability"):
        cuda_architectures()


def test_whatever_is_here_can_be_asked():
    assert all(name.count(".") == 1 for name in gpu_architectures())


def test_a_list_that_leaves_nothing_is_asked_for_again(monkeypatch):
    remembered, now = (("GPU-old", (8, 0)),), (("GPU-new", (9, 0)),)
    monkeypatch.setattr(gpu, "_devices", lambda again=False: now if again else remembered)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-new")
    assert gpu_architectures() == ("9.0",)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_architectures() == ()


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
