"""Derive the compile commands from a solution and the tools of this machine."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from fib_builder_tvmffi.probe import find_tvm_ffi
from fib_native_toolkit import checked_options, find_dependencies, recipe
from fib_native_toolkit.cuda import find_cuda
from flashinfer_bench.data import SupportedLanguages
from flashinfer_bench.errors import BuildError, CapabilityError

if TYPE_CHECKING:
    from flashinfer_bench.data import Solution

KINDS = {".c": "c", ".cc": "cpp", ".cpp": "cpp", ".cxx": "cpp", ".cu": "cuda"}
"""Suffixes of the files that are compiled, and their language."""

EXPORTS = "exports.map"
"""Linker script with the exported symbols, in the folder of the objects."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_LIBRARIES = {
    "cublas": re.compile(r"cublas\w*\.h"),
    "cudnn": re.compile(r"cudnn\w*\.h"),
    "cutlass": re.compile(r"(cutlass|cute)/.+"),
}


def make_recipe(solution: Solution) -> tuple[recipe.Recipe, dict[str, str]]:
    """Determine how to compile a solution here.

    Parameters
    ----------
    solution : Solution
        A solution in C++ or CUDA.

    Returns
    -------
    recipe : Recipe
        The commands.
    key : dict of str to str
        Everything that the result depends on besides the solution.

    Raises
    ------
    BuildError
        If the solution is invalid on any machine: its entry point or its options are wrong.
    CapabilityError
        If this machine lacks a tool or a library.
    """
    files = recipe.compiled_files(solution, KINDS)
    symbol = solution.get_entry_symbol()
    if not symbol.isidentifier():
        raise BuildError(
            f"solution {solution.name!r}: the entry symbol {symbol!r} cannot be the name of an "
            "exported function",
            hint="Write the first argument of TVM_FFI_DLL_EXPORT_TYPED_FUNC: letters, digits, '_'.",
        )
    ffi, cuda, compiles = find_tvm_ffi(), None, any(kind == "cuda" for _, kind in files)
    if compiles or solution.spec.language == SupportedLanguages.CUDA:
        cuda = find_cuda(checked_options(solution).cuda_cflags, compiles=compiles)
    made, key = recipe.make_recipe(
        solution,
        files,
        cuda,
        headers=[ffi.include_path],
        # The minimum for TVM FFI's headers; a solution may request a later standard.
        standard="c++17",
        # Metadata provide the signature of each export, for some 10 ms of compile time.
        flags=["-DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1"],
        dependencies=[*solution.spec.dependencies, *_included(solution)],
        # A missing symbol must fail when linking, or else when loading. By default the process
        # would end when the symbol is first called.
        link=[f"-Wl,--version-script=../objects/{EXPORTS}", "-Wl,-z,defs", "-Wl,-z,now"],
        libraries=[f"-L{ffi.library_path}", "-ltvm_ffi"],
    )
    return made, key | {"apache-tvm-ffi": ffi.version}


def _included(solution: Solution) -> list[str]:
    """Return the native libraries whose headers a solution includes, declared or not.

    Many solutions do not declare them: without link-time checks, libraries loaded by torch
    sufficed.
    """
    included = {name for source in solution.sources for name in _INCLUDE.findall(source.content)}
    found = []
    for library, header in _LIBRARIES.items():
        if any(map(header.fullmatch, included)):
            # It may contain a header of that name; if not, the compiler reports an error.
            with suppress(CapabilityError):
                find_dependencies([library])
                found.append(library)
    return found
