"""How a solution is compiled: tools and flags, settled before a compiler runs."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING

from fib_builder_cuda_torch.installation import (
    find_cuda_torch,
    find_python_headers,
    find_torch,
    packaged_cuda_headers,
    packaged_cuda_versions,
)
from fib_builder_cuda_torch.scan import KINDS, check_names, includes_cuda
from fib_native_toolkit import (
    checked_options,
    cuda_fingerprint,
    find_cxx,
    find_dependencies,
    host_fingerprint,
)
from fib_native_toolkit.cuda import find_cuda, host_compiler_flags
from fib_native_toolkit.recipe import Recipe, compiled_files
from flashinfer_bench.data import SupportedLanguages
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fib_builder_cuda_torch.installation import TorchInstallation
    from fib_native_toolkit import Tool
    from fib_native_toolkit.cuda import CudaTools
    from flashinfer_bench.data import Solution

# What torch's own extension builder gives to nvcc; solutions are written for these.
_NVCC_FLAGS = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
    "--expt-relaxed-constexpr",
)
# Given for compiling, these ask for a library as well.
_ALSO_FOR_LINKING = ("-fopenmp", "-pthread", "-flto", "-fsanitize")
# A helper of a solution that is called like a function of libc must not become that function.
_OWN_FUNCTIONS_FIRST = ("-Wl,-Bsymbolic-functions",) if sys.platform == "linux" else ()
# What nobody defines is found when linking, though Python's own symbols may stay open: see
# `undefined.py`. Elsewhere than on Linux it is found when the library is loaded.
_UNRESOLVED = (
    ("-Wl,-z,defs", "-Wl,--warn-unresolved-symbols")
    if sys.platform == "linux"
    else ("-undefined", "dynamic_lookup")
)


def make_recipe(solution: Solution) -> tuple[Recipe, dict[str, str]]:
    """Settle how to compile a solution.

    Parameters
    ----------
    solution : Solution
        What is to be compiled.

    Returns
    -------
    recipe : Recipe
        Files, commands and folders.
    key : dict of str to str
        All that the result depends on besides definition and solution. Folders are left out, so
        that machines can share.

    Raises
    ------
    CapabilityError
        If a compiler, a library or a header is missing.
    BuildError
        If the solution asks for what cannot be.
    """
    files = compiled_files(solution, KINDS)
    check_names(solution)
    kernels = any(kind == "cuda" for _, kind in files)
    options, torch = checked_options(solution), find_torch()
    cuda = None
    if _uses_cuda(solution, torch, kernels=kernels):
        cuda = find_cuda(options.cuda_cflags, compiles=kernels)
        _check_cuda_version(cuda.nvcc, torch)
    python, cxx = find_python_headers(), find_cxx()
    dependencies = find_dependencies(solution.spec.dependencies)[0]
    headers = [*torch.include_paths, *(cuda.include_paths if cuda else ()), python]
    headers += packaged_cuda_headers() if cuda else []

    abi = [] if torch.cxx11_abi else ["-D_GLIBCXX_USE_CXX11_ABI=0"]
    language = ["-DTORCH_API_INCLUDE_EXTENSION_H", *abi]
    includes = [f"-I{path}" for path in (".", *options.include_paths)]
    includes += [flag for dependency in dependencies for flag in dependency.include_flags()]
    includes += [part for path in headers for part in ("-isystem", str(path))]
    host = ["-fPIC", *_private_statics(cxx)]
    flags = [*host, *_defaults(torch, options.cflags), *options.cflags]
    compilers = {"cpp": [*cxx.command, *language, *includes, *flags]}
    key = {
        "python_headers": platform.python_version(),
        "torch": torch.version,
        "torch_cuda": str(torch.cuda) if cuda else "not used",
        "cxx11_abi": str(torch.cxx11_abi),
        "dependencies": "; ".join(dependency.key for dependency in dependencies),
    }
    if cuda is not None:
        own = options.cuda_cflags
        for_host = [part for flag in host for part in ("-Xcompiler", flag)]
        nvcc = [*_NVCC_FLAGS, *for_host, *_defaults(torch, own), *own]
        chosen = [*host_compiler_flags(cxx, own), *nvcc, *cuda.code_flags]
        compilers["cuda"] = [*cuda.nvcc.command, *language, *includes, *chosen]
        flags += nvcc
        key |= cuda_fingerprint(cuda.nvcc, cuda.architectures, own)
        key["cuda_packages"] = packaged_cuda_versions()
    key |= host_fingerprint(cxx, [*language, *flags, *options.ldflags], python=True)
    both = [flag for flag in options.cflags if flag.startswith(_ALSO_FOR_LINKING)]
    recipe = Recipe(
        files=files,
        compilers=compilers,
        link=[*cxx.command, "-shared"],
        libraries=[
            *_UNRESOLVED,
            *_OWN_FUNCTIONS_FIRST,
            *both,
            *options.ldflags,
            *(flag for dependency in dependencies for flag in dependency.link_flags()),
            *_torch_libraries(torch, cuda),
        ],
        device_link=[],
        headers=tuple(headers),
    )
    return recipe, key


def _torch_libraries(torch: TorchInstallation, cuda: CudaTools | None) -> list[str]:
    flags = [f"-L{torch.library_path}", "-lc10"]
    flags += ["-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda"] if cuda else ["-ltorch_cpu"]
    flags += ["-ltorch", "-ltorch_python"]
    if cuda is not None:
        flags += [*(f"-L{path}" for path in cuda.library_paths), "-lcudart"]
    return flags


def _uses_cuda(solution: Solution, torch: TorchInstallation, *, kernels: bool) -> bool:
    """Return whether a solution needs CUDA, for which torch must be built then."""
    if kernels or solution.spec.language == SupportedLanguages.CUDA:
        find_cuda_torch()
        return True
    # C++ may name CUDA's headers for the case that they are there.
    return torch.cuda is not None and includes_cuda(solution)


def _private_statics(cxx: Tool) -> list[str]:
    """Keep variables of inline functions and templates to the library that they are in.

    By default GCC lets all libraries of a process share those of one name, so that two versions
    of one kernel would work in the same buffers.
    """
    return ["-fno-gnu-unique"] if "Free Software Foundation" in cxx.version else []


def _defaults(torch: TorchInstallation, flags: Sequence[str]) -> list[str]:
    """Return the flags for standard and optimisation, unless the solution has its own."""
    defaults = {"-std=": torch.standard, "-O": "3"}
    return [
        f"{flag}{value}"
        for flag, value in defaults.items()
        if not any(own.startswith(flag) for own in flags)
    ]


def _check_cuda_version(nvcc: Tool, torch: TorchInstallation) -> None:
    wanted, found = str(torch.cuda).split(".")[0], nvcc.number.split(".")[0]
    if wanted != found:
        raise CapabilityError(
            f"nvcc {nvcc.number} does not go with {torch}, which is built for CUDA {torch.cuda}",
            hint=f"Set CUDA_HOME to a toolkit of CUDA {wanted}.",
        )
