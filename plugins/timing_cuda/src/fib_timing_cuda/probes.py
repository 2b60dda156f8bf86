"""Check whether a timing backend is usable here, without importing torch."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.plugins import Availability
from flashinfer_bench.tensors import nvidia_gpus, torch_versions


def cuda_event() -> Availability:
    """Return whether torch is built for CUDA and a driver with a device is available.

    No context is created, so processes can still be forked afterwards.
    """
    version = torch_versions().get("cuda")
    if version is None:
        return Availability(
            False, "torch is not installed, or built without CUDA", "install a CUDA build of torch"
        )
    devices = len(nvidia_gpus())
    if devices == 0:
        return Availability(False, "no NVIDIA device was found", "check the driver with nvidia-smi")
    return Availability(True, f"CUDA {version}, {devices} devices")


def do_bench() -> Availability:
    """Return whether triton is available, in addition to the requirements of `cuda_event`."""
    answer = cuda_event()
    if answer and find_spec("triton") is None:
        return Availability(False, "triton is not installed", "pip install triton")
    return answer


_OLDEST = 13
_INSTALL = "pip install 'cupti-python>=13', in one command with your torch"
# Set by tools that are loaded into every CUDA program and subscribe to CUPTI there.
_TOOLS = {
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems",
    "CUDA_INJECTION64_PATH": "the library that it names",
}


def cupti() -> Availability:
    """Return whether a GPU and cupti-python are available and no other tool is recording."""
    from flashinfer_bench.compile.toolkit import availability

    gpu = cuda_event()
    return availability(find_cupti, check_tools) if gpu else gpu


def find_cupti() -> str:
    """Return name and version of NVIDIA's package.

    Raises
    ------
    CapabilityError
        If it is not installed, too old, or lacks the driver bindings.
    """
    try:
        found = version("cupti-python")
    except PackageNotFoundError:
        found = ""
    if not found or find_spec("cupti") is None:
        raise CapabilityError("cupti-python is not installed", hint=_INSTALL)
    if int(found.partition(".")[0]) < _OLDEST:
        raise CapabilityError(
            f"cupti-python {found} is too old: {_OLDEST} or later is needed", hint=_INSTALL
        )
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        raise CapabilityError(
            f"cupti-python {found} lacks cuda-bindings, which it needs", hint=_INSTALL
        )
    return f"cupti-python {found}"


def check_tools() -> None:
    """Raise `CapabilityError` if another tool is recording this process."""
    for variable, tool in _TOOLS.items():
        if os.environ.get(variable):
            raise CapabilityError(
                f"{variable} is set: {tool} records this process on the GPU, and CUPTI serves "
                "one tool at a time",
                hint="run without it, or use --timer cuda_event",
            )
