"""Check whether torch extensions can be compiled here, without importing torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fib_builder_cuda_torch.installation import find_cuda_torch, find_python_headers, find_torch
from fib_native_toolkit import availability, cuda_architectures, find_cxx, find_nvcc

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Availability


def probe_cpp() -> Availability:
    """Return whether C++ solutions can be built: torch, headers and a compiler."""
    return availability(find_torch, _headers, find_cxx)


def probe_cuda() -> Availability:
    """Return whether CUDA solutions can be built: also needs CUDA torch, nvcc and a target."""
    return availability(find_cuda_torch, _headers, find_cxx, find_nvcc, cuda_architectures)


def _headers() -> None:
    find_python_headers()
