"""Check whether C++ and CUDA solutions can be built and run, and find apache-tvm-ffi.

The installation is found without importing ``tvm_ffi``, which would import torch.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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

OLDEST = (0, 1, 11)
"""The oldest release with the interface used here."""

_DISTRIBUTION = "apache-tvm-ffi"
_INSTALL = "pip install 'apache-tvm-ffi>=0.1.11'"


class FfiLibrary(NamedTuple):
    """Location of the headers and the library of an installed apache-tvm-ffi.

    Attributes
    ----------
    version : str
        Its version.
    include_path : Path
        Folder with ``tvm/ffi`` and ``dlpack``.
    library_path : Path
        Folder with ``libtvm_ffi.so``.
    """

    version: str
    include_path: Path
    library_path: Path

    def __str__(self) -> str:
        return f"{_DISTRIBUTION} {self.version}"


def find_tvm_ffi() -> FfiLibrary:
    """Return the installed apache-tvm-ffi.

    Raises
    ------
    CapabilityError
        If it is not installed, older than `OLDEST`, or without headers or library.
    """
    try:
        version = importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise CapabilityError(f"{_DISTRIBUTION} is not installed", hint=_INSTALL) from None
    leading = re.match(r"\d+(\.\d+)*", version)
    numbers = tuple(map(int, leading.group().split("."))) if leading else ()
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise CapabilityError(
            f"{_DISTRIBUTION} {version} is too old: {oldest} or later is needed",
            hint=_INSTALL,
        )
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        raise CapabilityError(
            f"{_DISTRIBUTION} {version} is installed, but the module tvm_ffi is missing",
            hint=f"Install it again: pip install --force-reinstall '{_DISTRIBUTION}=={version}'",
        )
    root = Path(spec.origin).parent
    found = FfiLibrary(version, root / "include", root / "lib")
    for needed in (found.include_path / "tvm/ffi/function.h", found.library_path / "libtvm_ffi.so"):
        if not needed.is_file():
            raise CapabilityError(
                f"{_DISTRIBUTION} {version} in {root} lacks {needed.relative_to(root)}",
                hint="Install it from a wheel; an editable install is not supported.",
            )
    return found


def probe() -> Availability:
    """Return whether C++ can be compiled and run, without importing torch or tvm_ffi."""
    return availability(require_torch, find_tvm_ffi, find_cxx)


def probe_cuda() -> Availability:
    """Return whether CUDA can be compiled, too, and for which GPUs, without a CUDA context."""
    cuda = (find_nvcc, _architectures)
    return availability(require_torch, find_tvm_ffi, *cuda, find_cxx)


def _architectures() -> str:
    cuda_home()
    try:
        return f"for {' '.join(cuda_architectures())}"
    except CapabilityError as error:
        raise CapabilityError(
            f"found {find_nvcc()}, but no GPU, and FIB_CUDA_ARCH_LIST is not set", hint=error.hint
        ) from error
