"""Whether a timing backend can be used here, found out without importing torch."""

from __future__ import annotations

from importlib.util import find_spec

from flashinfer_bench.plugins import Availability
from flashinfer_bench.tensors import nvidia_gpus, torch_versions


def cuda_event() -> Availability:
    """Say whether torch is built for CUDA and a driver with a device is there.

    No context is made, so processes can still be forked afterwards.
    """
    version = torch_versions().get("cuda")
    if version is None:
        return Availability(
            False, "torch is not installed, or built without CUDA", "install a CUDA build of torch"
        )
    devices = len(nvidia_gpus())
    if devices == 0:
        return Availability(False, "no NVIDIA device is found", "check the driver with nvidia-smi")
    return Availability(True, f"CUDA {version}, {devices} devices")


def do_bench() -> Availability:
    """Say whether triton is there, besides what `cuda_event` asks for."""
    answer = cuda_event()
    if answer and find_spec("triton") is None:
        return Availability(False, "triton is not installed", "pip install triton")
    return answer
