"""Check whether Triton solutions can run here, without importing anything."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from fib_builder_triton.interpreter import VARIABLE, interpreter_wanted
from flashinfer_bench.compile.toolkit import availability, gpu_architectures, require_torch
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Availability

# Builds for AMD GPUs and nightly builds have other distribution names.
_DISTRIBUTIONS = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")
_AMD_DRIVER = Path("/dev/kfd")
_WITHOUT_GPU = f"{VARIABLE}=1 runs kernels on the CPU, in Triton's interpreter (slow)"


def probe() -> Availability:
    """Return whether Triton, a GPU, a C compiler and a torch with GPU support are available."""
    return availability(
        find_triton, _check_compiled, find_gpu, find_launcher_cc, _check_torch_for_gpu
    )


def probe_interpreter() -> Availability:
    """Return whether Triton's interpreter is switched on and usable."""
    return availability(find_triton, _check_interpreted, require_torch, _check_numpy)


def find_triton() -> str:
    """Return Triton's name and version.

    Raises
    ------
    CapabilityError
        If it is not installed.
    """
    if find_spec("triton") is None:
        raise CapabilityError("triton is not installed", hint="pip install triton")
    return f"triton {_version_of(*_DISTRIBUTIONS) or 'of unknown version'}"


def find_gpu() -> str:
    """Return a description of the GPU, without creating a device context.

    Raises
    ------
    CapabilityError
        If there is no GPU that Triton supports.
    """
    architectures = gpu_architectures()
    if architectures:
        return f"NVIDIA GPU of compute capability {', '.join(architectures)}"
    if _AMD_DRIVER.exists():
        return "AMD GPU"
    raise CapabilityError(f"{find_triton()} is installed, but there is no GPU", hint=_WITHOUT_GPU)


def find_launcher_cc() -> str:
    """Return name and version of the C compiler that Triton uses for its launchers.

    Raises
    ------
    CapabilityError
        If no working compiler is found, or ``CC`` has a form that Triton does not support.
    """
    from fib_native_toolkit import find_cc

    try:
        found = find_cc()
    except CapabilityError as error:
        raise CapabilityError(
            f"Triton compiles its launchers with a C compiler: {error.message}", hint=error.hint
        ) from error
    if found.arguments:
        raise CapabilityError(
            f"Triton takes all of $CC as one file name, and it is {' '.join(found.command)!r}",
            hint="Set CC to a compiler, without arguments.",
        )
    return str(found)


def _check_compiled() -> None:
    if interpreter_wanted():
        raise CapabilityError(
            f"{VARIABLE} is set: kernels would be interpreted on the CPU, not compiled for the GPU",
            hint=f"unset {VARIABLE}, or use --device cpu",
        )


def _check_interpreted() -> str:
    if not interpreter_wanted():
        raise CapabilityError(
            f"{VARIABLE} is not set, and Triton compiles for GPUs only", hint=_WITHOUT_GPU
        )
    return "its interpreter"


def _check_torch_for_gpu() -> None:
    require_torch()
    found = _version_of("torch") or ""
    if found.endswith("+cpu"):
        raise CapabilityError(
            f"torch {found} is a build without GPU support",
            hint="install a build of torch for your GPU: https://pytorch.org/get-started/locally",
        )


def _check_numpy() -> None:
    if find_spec("numpy") is None:
        raise CapabilityError(
            "numpy is not installed, and Triton's interpreter computes with it",
            hint="pip install numpy",
        )


def _version_of(*distributions: str) -> Optional[str]:
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
