"""Environment variables of compilers, and the GPU architectures to compile for.

Variables are read on each call, like those of `flashinfer_bench.env`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Optional

from flashinfer_bench import env
from flashinfer_bench.compile.machine import gpu_architectures
from flashinfer_bench.errors import CapabilityError

# Read by gcc, clang, nvcc and the programs they start; each may affect the result.
_COMPILERS_READ = (
    *("CCC_OVERRIDE_OPTIONS", "COMPILER_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH"),
    *("GCC_EXEC_PREFIX", "LDEMULATION", "LD_RUN_PATH", "LIBRARY_PATH", "MACOSX_DEPLOYMENT_TARGET"),
    *("NVCC_APPEND_FLAGS", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "SDKROOT", "SOURCE_DATE_EPOCH"),
    *("SPACK_CFLAGS", "SPACK_CPPFLAGS", "SPACK_CXXFLAGS", "SPACK_INCLUDE_DIRS", "SPACK_LDFLAGS"),
    *("SPACK_LDLIBS", "SPACK_LINK_DIRS", "SPACK_RPATH_DIRS", "SPACK_TARGET_ARGS"),
)
# Variables of Nix compilers, whose suffix names the target machine.
_NIX_COMPILERS_READ = ("NIX_CFLAGS", "NIX_CXXSTDLIB", "NIX_HARDENING_ENABLE", "NIX_LDFLAGS")
_LISTS_OF_FOLDERS = (
    *("COMPILER_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "GCC_EXEC_PREFIX"),
    *("LD_LIBRARY_PATH", "LIBRARY_PATH", "PATH", "SDKROOT"),
)
_FOLDER_OF_A_LIBRARY = re.compile(r"(CUBLAS|CUDA|CUDNN|CUTLASS)_(DIR|HOME|PATH|ROOT)")
_STARTED_BY_OTHERS = ("as", "c++", "cc", "clang", "g++", "gcc", "ld", "nvcc")


def max_jobs() -> Optional[int]:
    """Return ``MAX_JOBS``, as used by builders of extensions; None if not a positive number."""
    text = os.environ.get("MAX_JOBS", "").strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None


def compiler_command(name: str) -> str:
    """Return the command in ``CC`` or ``CXX`` (given as `name`); empty if not set."""
    return os.environ.get(name, "").strip()


def library_roots(*names: str) -> list[tuple[str, Path]]:
    """Return those variables of `names`, such as ``CUDA_HOME``, that are set, and their folders."""
    values = ((name, os.environ.get(name, "").strip()) for name in names)
    return [(name, Path(value).expanduser()) for name, value in values if value]


def compiler_variables() -> dict[str, str]:
    """Return the set variables that compilers and linkers read, with their values."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if value and (name in _COMPILERS_READ or name.startswith(_NIX_COMPILERS_READ))
    }


def readable_places(tool: str) -> list[Path]:
    """Return the folders in which a tool finds its parts, headers and libraries.

    Parameters
    ----------
    tool : str
        Path of the tool.
    """
    home = Path.home()
    lists = os.pathsep.join(os.environ.get(name, "") for name in _LISTS_OF_FOLDERS)
    roots = [value for name, value in os.environ.items() if _FOLDER_OF_A_LIBRARY.fullmatch(name)]
    names = [*lists.split(os.pathsep), *roots, sys.prefix, sys.base_prefix, *sys.path]
    places = [Path(name).expanduser() for name in names if name]
    # A program's files are next to its folder, unless that is in a home folder.
    places += [path.parent for path in places if path.name == "bin" and home not in path.parents]
    tools = [tool, os.environ.get("NVCC_CCBIN", ""), *_STARTED_BY_OTHERS]
    found = [Path(os.path.realpath(path)) for path in map(shutil.which, tools) if path]
    places += [path.parent.parent for path in found if path.parent.name == "bin"]
    return [path for path in dict.fromkeys(places) if path not in (home, *home.parents)]


def cuda_architectures() -> tuple[str, ...]:
    """Return the architectures to compile for.

    Returns
    -------
    tuple of str
        The value of ``FIB_CUDA_ARCH_LIST``; otherwise the architectures of the visible GPUs, with
        architecture-specific features: ``9.0a``.

    Raises
    ------
    CapabilityError
        If the variable is not set and there is no GPU.
    ValueError
        If the variable contains an invalid architecture.
    """
    chosen = env.cuda_arch_list()
    # From 9.0 on, some features are only available to code for exactly that architecture.
    found = [f"{name}a" if len(name) > 3 or name >= "9.0" else name for name in gpu_architectures()]
    if not chosen and not found:
        raise CapabilityError(
            "no GPU to compile for: this machine has none, and FIB_CUDA_ARCH_LIST is not set",
            hint="Set FIB_CUDA_ARCH_LIST to the architectures to compile for, such as 9.0a.",
        )
    return chosen or tuple(found)
