"""What a compiled result depends on besides its sources, in words that a person can read.

Two machines that share a cache load one another's results only if all of this is the same for both.
None of it tells where a tool is, so that it does not matter where each machine keeps its own.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench import env
from flashinfer_bench.compile.toolkit.gpu import gpu_architectures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.compile.toolkit.tools import Tool

_CPU_INFO = Path("/proc/cpuinfo")
# Of Linux on x86, on Arm and on others; frequencies and the like are left out.
_CPU_FIELDS = frozenset(
    {
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "stepping",
        "cache size",
        "flags",
        "Features",
        "CPU implementer",
        "CPU architecture",
        "CPU variant",
        "CPU part",
        "CPU revision",
        "isa",
        "uarch",
        "cpu",
    }
)


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
        "libc": _libc(),
        "flags": json.dumps(list(flags)),
        "variables": json.dumps(env.compiler_variables(), sort_keys=True),
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


def cpu_description() -> str:
    """Return the CPU's model and features, on which ``-march=native`` depends."""
    try:
        text = _CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        # Nothing to tell CPUs apart by: then no two machines have the same one.
        return f"{platform.processor()} of {platform.node()}"
    first = text.partition("\n\n")[0]
    fields = [line.partition(":") for line in first.splitlines()]
    kept = [(name.strip(), value.strip()) for name, _, value in fields]
    return "; ".join(f"{name}: {value}" for name, value in kept if name in _CPU_FIELDS)


def _libc() -> str:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") if hasattr(os, "confstr") else None
    except (ValueError, OSError):
        text = None
    return text or " ".join(platform.libc_ver()).strip() or platform.release()
