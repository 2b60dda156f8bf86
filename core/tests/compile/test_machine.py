"""GPUs, by a library that answers as the driver's does; and the CPU."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from flashinfer_bench.compile import machine
from flashinfer_bench.compile.machine import cpu_description, gpu_architectures
from flashinfer_bench.tensors.devices import Gpu

NVML = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const int capabilities[][2] = {CAPABILITIES};
static int opened = 0;
int nvmlInit_v2(void) { opened = 1; return 0; }
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
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    *current = 0;
    return 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    return snprintf(name, length, "NVIDIA H200") < 0;
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
from flashinfer_bench.compile.toolkit import gpu_architectures
from flashinfer_bench.tensors import nvidia_gpus
found = [[gpu.name for gpu in nvidia_gpus()], gpu_architectures()]
print(json.dumps([*found, "torch" in sys.modules]))
"""


@pytest.fixture
def ask(tmp_path):
    """Return a function that asks, in a process of its own, with GPUs of given capabilities."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("needs Linux and a C compiler")

    def run(*capabilities):
        rows = ",".join(f"{{{c.replace('.', ',')}}}" for c in capabilities)
        (tmp_path / "nvml.c").write_text(NVML)
        library = tmp_path / "libnvidia-ml.so.1"
        command = ["cc", "-shared", "-fPIC", f"-DCAPABILITIES={rows}"]
        subprocess.run([*command, "-o", library, tmp_path / "nvml.c"], check=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
        environment["LD_LIBRARY_PATH"] = str(tmp_path)
        out = subprocess.run(
            [sys.executable, "-c", ASK], check=True, capture_output=True, env=environment
        ).stdout
        return json.loads(out)

    return run


def test_the_driver_is_asked(ask):
    assert ask("10.0", "9.0", "8.9", "8.9") == [
        ["NVIDIA H200"] * 4,
        ["8.9", "9.0", "10.0"],
        False,
    ]


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("1", ("8.0", "9.0")),  # the order is not known
        ("2", ()),
        ("GPU-1-uuid", ("9.0",)),
        ("GPU-1", ("9.0",)),
        ("GPU-9", ()),
        ("MIG-1234", ("8.0", "9.0")),
    ],
)
def test_what_is_visible(monkeypatch, visible, found):
    gpus = (Gpu("GPU-0-uuid", (8, 0), None), Gpu("GPU-1-uuid", (9, 0), None))
    monkeypatch.setattr(machine, "nvidia_gpus", lambda: gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_architectures() == found


X86 = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Some CPU @ 2.0 GHz
cpu MHz\t\t: 2100.123
cache size\t: 1 KB
bogomips\t: 4200.00
flags\t\t: fpu vme avx512f

processor\t: 1
vendor_id\t: Other
"""


def test_x86(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(X86)
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "cpuinfo")
    assert cpu_description() == (
        "vendor_id: GenuineIntel; model name: Some CPU @ 2.0 GHz; cache size: 1 KB; "
        "flags: fpu vme avx512f"
    )
