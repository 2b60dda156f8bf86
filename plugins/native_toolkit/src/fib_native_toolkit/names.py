"""What this distribution adds to core's `flashinfer_bench.compile.toolkit`."""

from __future__ import annotations

from fib_native_toolkit.compiled import Artefact, BuildPlan, CompiledBuilder, LoadedLibrary
from fib_native_toolkit.dependencies import Dependency, find_dependencies
from fib_native_toolkit.fingerprint import cuda_fingerprint, host_fingerprint, python_abi
from fib_native_toolkit.ninja import (
    ninja_command,
    ninja_dependencies,
    ninja_escape,
    read_dependencies,
)
from fib_native_toolkit.options import checked_options, guess_binding
from fib_native_toolkit.run import (
    COMPILER_LOG,
    ToolOutput,
    check_output,
    run_tool,
    unsupported_by_toolkit,
)
from fib_native_toolkit.tools import Tool, cuda_home, find_cc, find_cxx, find_ninja, find_nvcc

__all__ = [
    "COMPILER_LOG",
    "Artefact",
    "BuildPlan",
    "CompiledBuilder",
    "Dependency",
    "LoadedLibrary",
    "Tool",
    "ToolOutput",
    "check_output",
    "checked_options",
    "cuda_fingerprint",
    "cuda_home",
    "find_cc",
    "find_cxx",
    "find_dependencies",
    "find_ninja",
    "find_nvcc",
    "guess_binding",
    "host_fingerprint",
    "ninja_command",
    "ninja_dependencies",
    "ninja_escape",
    "python_abi",
    "read_dependencies",
    "run_tool",
    "unsupported_by_toolkit",
]
