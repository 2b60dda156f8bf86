"""Whether CUPTI can record here; nothing is imported, and no context is made, to find out."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Availability

_OLDEST = 13
_INSTALL = "pip install 'fib-timing-cuda[cupti]', in one call with the torch that is installed"
# Set by tools that are loaded into every program which uses CUDA, and subscribe to CUPTI there.
_TOOLS = {
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems",
    "CUDA_INJECTION64_PATH": "the library that it names",
}


def probe() -> Availability:
    """Return whether a GPU, cupti-python and what it needs are there, and no other tool records."""
    from fib_timing_cuda.probes import cuda_event
    from flashinfer_bench.compile.toolkit import availability

    gpu = cuda_event()
    return availability(find_cupti, check_tools) if gpu else gpu


def find_cupti() -> str:
    """Return name and version of NVIDIA's package.

    Raises
    ------
    CapabilityError
        If it is not there, too old, or lacks the driver's bindings.
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
    """Raise `CapabilityError` if another tool records what this process does."""
    for variable, tool in _TOOLS.items():
        if os.environ.get(variable):
            raise CapabilityError(
                f"{variable} is set: {tool} records what this process does on the GPU, and CUPTI "
                "serves one at a time",
                hint="run without it, or take --timer cuda_event",
            )
