"""Determine how a solution is compiled: tools and flags, before a compiler runs."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING

from fib_builder_cuda_torch.probe import (
    find_cuda_torch,
    find_python_headers,
    find_torch,
    packaged_cuda_headers,
    packaged_cuda_versions,
)
from fib_builder_cuda_torch.scan import KINDS, check_names, includes_cuda
from fib_native_toolkit import checked_options, python_abi, recipe
from fib_native_toolkit.cuda import find_cuda
from flashinfer_bench.data import SupportedLanguages
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from flashinfer_bench.data import Solution

# Flags that torch's own extension builder passes to nvcc; solutions rely on them.
_NVCC_FLAGS = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
    "--expt-relaxed-constexpr",
)
# A solution's helper with the name of a libc function must not be replaced by that function.
# Python's symbols stay undefined until the library is loaded, when all must be resolved.
_LINK = (
    ("-Wl,-Bsymbolic-functions", "-Wl,-z,now")
    if sys.platform == "linux"
    else ("-undefined", "dynamic_lookup")
)


def make_recipe(solution: Solution) -> tuple[recipe.Recipe, dict[str, str]]:
    """Determine how to compile a solution.

    Parameters
    ----------
    solution : Solution
        The solution.

    Returns
    -------
    recipe : Recipe
        Files, commands and folders.
    key : dict of str to str
        Everything that the result depends on besides definition and solution.

    Raises
    ------
    CapabilityError
        If a compiler, a library or a header is missing.
    BuildError
        If the solution's options are invalid.
    """
    files = recipe.compiled_files(solution, KINDS)
    check_names(solution)
    kernels = any(kind == "cuda" for _, kind in files)
    for_cuda = kernels or solution.spec.language == SupportedLanguages.CUDA
    torch, cuda = find_cuda_torch() if for_cuda else find_torch(), None
    # C++ code may include CUDA headers conditionally.
    if for_cuda or (torch.cuda is not None and includes_cuda(solution)):
        cuda = find_cuda(checked_options(solution).cuda_cflags, compiles=kernels)
        wanted, found = str(torch.cuda).split(".")[0], cuda.nvcc.number.split(".")[0]
        if wanted != found:
            raise CapabilityError(
                f"nvcc {cuda.nvcc.number} does not match {torch}, which is built for CUDA "
                f"{torch.cuda}",
                hint=f"Set CUDA_HOME to a CUDA {wanted} toolkit.",
            )
    made, key = recipe.make_recipe(
        solution,
        files,
        cuda,
        headers=[*torch.include_paths, find_python_headers()],
        # Searched after those of the toolkit.
        last_headers=packaged_cuda_headers() if cuda else [],
        standard=torch.standard,
        flags=[
            "-DTORCH_API_INCLUDE_EXTENSION_H",
            *([] if torch.cxx11_abi else ["-D_GLIBCXX_USE_CXX11_ABI=0"]),
        ],
        nvcc_flags=_NVCC_FLAGS,
        dependencies=solution.spec.dependencies,
        link=_LINK,
        libraries=[
            f"-L{torch.library_path}",
            "-lc10",
            *(["-lc10_cuda"] if cuda else []),
            "-ltorch_cpu",
            *(["-ltorch_cuda"] if cuda else []),
            "-ltorch",
            "-ltorch_python",
        ],
    )
    key["python"] = python_abi()
    key["python_headers"] = platform.python_version()
    key["torch"] = f"{torch} for {torch.cuda if cuda else 'the CPU'}"
    if cuda is not None:
        key["cuda_packages"] = packaged_cuda_versions()
    return made, key
