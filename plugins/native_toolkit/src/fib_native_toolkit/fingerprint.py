"""What a compiled result depends on besides its sources, in words that a person can read.

Two machines that share a cache load one another's results only if all of this is the same for both.
None of it tells where a tool is, so that it does not matter where each machine keeps its own.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from typing import TYPE_CHECKING

from fib_native_toolkit import environment
from flashinfer_bench.compile.machine import cpu_description, gpu_architectures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fib_native_toolkit.tools import Tool


def host_fingerprint(
    cxx: Tool, flags: Sequence[str] = (), *, python: bool = False
) -> dict[str, str]:
    """Return what code for the CPU depends on.

    Parameters
    ----------
    cxx : Tool
        The compiler.
    flags : sequence of str
        The builder's flags and the solution's. Where one says ``native``, the CPU counts as well.
    python : bool
        Whether the result is linked against Python.

    Returns
    -------
    dict
        For a `BuildPlan`'s key.
    """
    found = {
        "compiler": " ".join([*cxx.arguments, cxx.version]),
        "machine": f"{sys.platform} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip() or platform.release(),
        "flags": json.dumps(list(flags)),
        "variables": json.dumps(environment.compiler_variables(), sort_keys=True),
    }
    if python:
        found["python"] = python_abi()
    if _says_native(flags):
        found["cpu"] = cpu_description()
    return found


def cuda_fingerprint(
    nvcc: Tool, architectures: Sequence[str], flags: Sequence[str] = ()
) -> dict[str, str]:
    """Return what code for GPUs depends on besides what `host_fingerprint` says.

    Parameters
    ----------
    nvcc : Tool
        CUDA's compiler.
    architectures : sequence of str
        What it compiles for.
    flags : sequence of str
        The solution's flags for it. Where one says ``native``, the visible GPUs count as well.
    """
    found = {"nvcc": nvcc.version, "cuda_architectures": " ".join(architectures)}
    if _says_native(flags):
        found["gpus"] = " ".join(gpu_architectures())
    return found


def _says_native(flags: Sequence[str]) -> bool:
    return any("native" in flag for flag in flags)


def python_abi() -> str:
    """Return what an extension module of Python depends on: ``3.11 .cpython-311-x86_64-….so``."""
    return f"{sys.version_info.major}.{sys.version_info.minor} {EXTENSION_SUFFIXES[0]}"
