"""The kernels that the driver compiles, by the assembler; no device is needed."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from fib_timing_cuda import driver, known_work

KERNELS = {"spin": driver.SPIN, "hold": driver._PTX, "steps": known_work.STEPS}


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", KERNELS)
def test_it_assembles(name, architecture, tmp_path):
    """By what comes with triton, or the toolkit's."""
    assembler = shutil.which("ptxas")
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.origin is not None:
        assembler = str(Path(spec.origin).parent / "backends/nvidia/bin/ptxas")
    if assembler is None or not Path(assembler).exists():
        pytest.skip("neither triton nor the CUDA toolkit is installed: there is no ptxas")
    source = tmp_path / "kernel.ptx"
    source.write_bytes(KERNELS[name].rstrip(b"\0"))
    command = [assembler, f"--gpu-name={architecture}", str(source), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
