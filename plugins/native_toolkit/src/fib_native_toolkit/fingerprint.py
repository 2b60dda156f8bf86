"""What a compiled result depends on besides its sources, in readable form.

Machines that share a cache load each other's results only if all of this is identical. Paths of
tools are not included, so each machine may keep its tools in a different place.
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
        Flags of the builder and the solution. If one contains ``native``, the CPU is included.
    python : bool
        Whether the result is linked against Python.

    Returns
    -------
    dict
        Entries for the key of a `BuildPlan`.
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
    """Return what code for GPUs depends on, in addition to `host_fingerprint`.

    Parameters
    ----------
    nvcc : Tool
        CUDA's compiler.
    architectures : sequence of str
        The architectures to compile for.
    flags : sequence of str
        The solution's nvcc flags. If one contains ``native``, the visible GPUs are included.
    """
    found = {"nvcc": nvcc.version, "cuda_architectures": " ".join(architectures)}
    if _says_native(flags):
        found["gpus"] = " ".join(gpu_architectures())
    return found


def _says_native(flags: Sequence[str]) -> bool:
    return any("native" in flag for flag in flags)


def python_abi() -> str:
    """Return the ABI of Python extension modules: ``3.11 .cpython-311-x86_64-….so``."""
    return f"{sys.version_info.major}.{sys.version_info.minor} {EXTENSION_SUFFIXES[0]}"
