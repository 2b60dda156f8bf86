"""From a solution and the tools of this machine to the commands that compile it."""

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
"""Suffixes of the files that are compiled, and as what."""

EXPORTS = "exports.map"
"""The linker's list of what to export, in the folder of the objects."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_LIBRARIES = {
    "cublas": re.compile(r"cublas\w*\.h"),
    "cudnn": re.compile(r"cudnn\w*\.h"),
    "cutlass": re.compile(r"(cutlass|cute)/.+"),
}


def make_recipe(solution: Solution) -> tuple[recipe.Recipe, dict[str, str]]:
    """Work out how to compile a solution here.

    Parameters
    ----------
    solution : Solution
        In C++ or CUDA.

    Returns
    -------
    recipe : Recipe
        The commands.
    key : dict of str to str
        What the result depends on besides the solution.

    Raises
    ------
    BuildError
        If nobody could compile the solution: its entry point or its options are wrong.
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
        # What TVM FFI's headers need at least; a solution may ask for a later one.
        standard="c++17",
        # With metadata each export can tell its signature; that costs some hundredths of a second.
        flags=["-DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1"],
        dependencies=[*solution.spec.dependencies, *_included(solution)],
        # A symbol that is nowhere shall fail when linking, or else when loading. By default the
        # process ends when it is first called.
        link=[f"-Wl,--version-script=../objects/{EXPORTS}", "-Wl,-z,defs", "-Wl,-z,now"],
        libraries=[f"-L{ffi.library_path}", "-ltvm_ffi"],
    )
    return made, key | {"apache-tvm-ffi": ffi.version}


def _included(solution: Solution) -> list[str]:
    """Return the native libraries that a solution includes, whether or not it declares them.

    Many do not declare them: without a check at link time, what torch had loaded served.
    """
    included = {name for source in solution.sources for name in _INCLUDE.findall(source.content)}
    found = []
    for library, header in _LIBRARIES.items():
        if any(map(header.fullmatch, included)):
            # It may bring a header of that name itself; if not, the compiler tells.
            with suppress(CapabilityError):
                find_dependencies([library])
                found.append(library)
    return found
