"""Whether solutions in C++ and CUDA can be compiled and run here."""

from __future__ import annotations

from importlib.util import find_spec
from shutil import which
from typing import TYPE_CHECKING

from fib_builder_tvmffi.library import find_tvm_ffi
from fib_native_toolkit import (
    availability,
    cuda_architectures,
    cuda_home,
    find_cxx,
    find_nvcc,
    require_torch,
)
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Availability


def probe() -> Availability:
    """Return whether C++ can be compiled and run; imports neither torch nor tvm_ffi."""
    return availability(require_torch, _require_ninja, find_tvm_ffi, find_cxx)


def probe_cuda() -> Availability:
    """Return whether CUDA can be compiled too, and for which GPUs; makes no CUDA context."""
    cuda = (find_nvcc, _require_toolkit, _architectures)
    return availability(require_torch, _require_ninja, find_tvm_ffi, *cuda, find_cxx)


def _require_ninja() -> None:
    # Only looked at: each candidate asks the probe, and few of them compile.
    if which("ninja") is None and find_spec("ninja") is None:
        raise CapabilityError("ninja not found on PATH", hint="pip install ninja")


def _require_toolkit() -> None:
    cuda_home()


def _architectures() -> str:
    try:
        return f"for {' '.join(cuda_architectures())}"
    except CapabilityError as error:
        raise CapabilityError(
            f"{find_nvcc()} is here, but no GPU, and FIB_CUDA_ARCH_LIST is not set", hint=error.hint
        ) from error
