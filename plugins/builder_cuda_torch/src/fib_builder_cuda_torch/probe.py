"""Check whether torch extensions can be compiled here, and read what they need of torch.

Compiling needs neither torch's Python modules nor a CUDA context, and importing
``torch.utils.cpp_extension`` may initialise CUDA, which would disturb a device on which another
process is being timed. The necessary properties are therefore read from torch's files.
"""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from fib_native_toolkit import availability, cuda_architectures, find_cxx, find_nvcc
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.tensors import torch_versions

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Availability

_OLDEST_STANDARD = "c++17"
_PACKAGE_INFO = "nvidia_*.dist-info"


def probe_cpp() -> Availability:
    """Return whether C++ solutions can be built: torch, headers and a compiler."""
    return availability(find_torch, _headers, find_cxx)


def probe_cuda() -> Availability:
    """Return whether CUDA solutions can be built: also needs CUDA torch, nvcc and a target."""
    return availability(find_cuda_torch, _headers, find_cxx, find_nvcc, cuda_architectures)


def _headers() -> None:
    find_python_headers()


@dataclass(frozen=True)
class TorchInstallation:
    """The installed torch.

    Parameters
    ----------
    root : Path
        Its folder.
    version : str
        Such as ``2.13.0+cpu``.
    cuda : str, optional
        CUDA version that it is built for, such as ``13.0``; None for CPU builds.
    cxx11_abi : bool
        Whether it uses the C++11 ABI of libstdc++.
    standard : str
        The C++ standard that its headers require: ``c++20``.
    """

    root: Path
    version: str
    cuda: Optional[str]
    cxx11_abi: bool
    standard: str

    @property
    def include_paths(self) -> list[Path]:
        """Folders with torch's headers."""
        include = self.root / "include"
        return [include, include / "torch" / "csrc" / "api" / "include"]

    @property
    def library_path(self) -> Path:
        """Folder with torch's libraries."""
        return self.root / "lib"

    def __str__(self) -> str:
        return f"torch {self.version}"


def find_torch() -> TorchInstallation:
    """Return the torch that ``import torch`` would import.

    Raises
    ------
    CapabilityError
        If torch is not installed, or has no headers.
    """
    folders = _folders_of("torch")
    if not folders:
        raise CapabilityError("torch is not installed", hint="pip install torch")
    root = folders[0]
    if not (root / "include" / "ATen").is_dir():
        raise CapabilityError(
            f"the torch in {root} has no C++ headers",
            hint="Install torch from a wheel (pip install torch).",
        )
    return _read(root)


def find_cuda_torch() -> TorchInstallation:
    """Return the installed torch if it is built for CUDA.

    Raises
    ------
    CapabilityError
        If it is not installed or not built for CUDA.
    """
    torch = find_torch()
    if torch.cuda is None:
        raise CapabilityError(
            f"{torch} is built without CUDA",
            hint="Install a build of torch for CUDA: https://pytorch.org/get-started/locally",
        )
    return torch


def find_python_headers() -> Path:
    """Return the folder with ``Python.h``.

    Raises
    ------
    CapabilityError
        If this Python has no headers.
    """
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").is_file():
        raise CapabilityError(
            f"Python.h not found in {folder}",
            hint="Install the headers of this Python (on Debian: apt install python3-dev).",
        )
    return folder


def packaged_cuda_headers() -> list[Path]:
    """Return the header folders of CUDA libraries that pip installed together with torch.

    torch's headers need those of cuBLAS, cuSPARSE and others, which small toolkits lack.
    """
    return [folder for root in _folders_of("nvidia") for folder in sorted(root.glob("*/include"))]


def packaged_cuda_versions() -> str:
    """Return the names and versions of these packages: ``nvidia_cublas-13.1.0.3 …``."""
    # Read from folder names: importlib.metadata takes longer than the rest of the plan.
    places = {root.parent for root in _folders_of("nvidia")}
    return " ".join(sorted(info.stem for place in places for info in place.glob(_PACKAGE_INFO)))


def _folders_of(package: str) -> list[Path]:
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):  # another object has taken its place
        spec = None
    return [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []


@cache
def _read(root: Path) -> TorchInstallation:
    versions = torch_versions()
    config = _text(root / "share" / "cmake" / "Torch" / "TorchConfig.cmake")
    extension = _text(root / "utils" / "cpp_extension.py")
    # Builds with the older ABI state it; since torch 2.7 all use the newer one.
    old_layout = "_GLIBCXX_USE_CXX11_ABI=0" in config
    standards = Counter(re.findall(r"'-std=(c\+\+\d\d)'", extension)).most_common(1)
    return TorchInstallation(
        root=root,
        version=versions.get("torch", "unknown"),
        cuda=versions.get("cuda"),
        cxx11_abi=not old_layout,
        standard=standards[0][0] if standards else _OLDEST_STANDARD,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
