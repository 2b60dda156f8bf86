"""From a solution and the tools of this machine to the commands that compile it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from fib_builder_tvmffi.library import find_tvm_ffi
from fib_native_toolkit import (
    Dependency,
    Tool,
    checked_options,
    cuda_fingerprint,
    find_cc,
    find_cxx,
    find_dependencies,
    host_fingerprint,
)
from fib_native_toolkit.cuda import CudaTools, find_cuda, host_compiler_flags
from fib_native_toolkit.recipe import Recipe, compiled_files
from flashinfer_bench.data import SupportedLanguages
from flashinfer_bench.errors import BuildError, CapabilityError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.data import CompileOptions, Solution

KINDS = {".c": "c", ".cc": "cpp", ".cpp": "cpp", ".cxx": "cpp", ".cu": "cuda"}
"""Suffixes of the files that are compiled, and as what."""

EXPORTS = "exports.map"
"""The linker's list of what to export, in the folder of the objects."""

# What TVM FFI's headers need at least; a solution may ask for a later one.
_STANDARD = "-std=c++17"
_SETS_STANDARD = re.compile(r"--?std(=|$)")
_SETS_CXX_STANDARD = re.compile(r"-std=(c|gnu)\+\+")
# With metadata each export can tell its signature; that costs some hundredths of a second.
_ALWAYS = ("-O3", "-DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1")
# A symbol that is nowhere shall fail when linking, or else when loading. By default the process
# ends when it is first called.
_NOTHING_UNDEFINED = ("-Wl,-z,defs", "-Wl,-z,now")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_LIBRARIES = {
    "cublas": re.compile(r"cublas\w*\.h"),
    "cudnn": re.compile(r"cudnn\w*\.h"),
    "cutlass": re.compile(r"(cutlass|cute)/.+"),
}


def make_recipe(solution: Solution) -> tuple[Recipe, dict[str, str]]:
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
    files = compiled_files(solution, KINDS)
    _check_symbol(solution)
    kinds = {kind for _, kind in files}
    options, ffi, cxx = checked_options(solution), find_tvm_ffi(), find_cxx()
    cc = find_cc() if "c" in kinds else None
    cuda = None
    if solution.spec.language == SupportedLanguages.CUDA or "cuda" in kinds:
        cuda = find_cuda(options.cuda_cflags, compiles="cuda" in kinds)
    dependencies = _dependencies(solution)
    key = {
        "apache-tvm-ffi": ffi.version,
        **host_fingerprint(cxx, [_STANDARD, *_ALWAYS, *options.cflags, *options.cuda_cflags]),
        "linking": json.dumps([*options.ldflags, *_NOTHING_UNDEFINED]),
    }
    compilers = _compilers(options, cxx, cc, cuda)
    headers, of_cuda, device_link = [ffi.include_path], [], []
    if cc is not None:
        key["c_compiler"] = " ".join([*cc.arguments, cc.version])
    if cuda is not None:
        key |= cuda_fingerprint(cuda.nvcc, cuda.architectures, options.cuda_cflags)
        key["cuda_home"] = str(cuda.home)  # the rpath leads there
        headers += cuda.include_paths
        of_cuda = _cuda_libraries(cuda)
        if cuda.relocatable:
            device_link = [*cuda.nvcc.command, "-dlink", *compilers["cuda"][1:]]
    if dependencies:
        key["libraries"] = "; ".join(dependency.key for dependency in dependencies)
    # The solution's own folders; then those whose headers nobody is to be warned of.
    includes = [f"-I{path}" for path in (".", *options.include_paths)]
    includes += [flag for dependency in dependencies for flag in dependency.include_flags()]
    includes += [part for path in headers for part in ("-isystem", str(path))]
    recipe = Recipe(
        files=files,
        compilers={kind: [*compilers[kind], *includes] for kind in sorted(kinds)},
        link=[*cxx.command, "-shared", f"-Wl,--version-script=../objects/{EXPORTS}"],
        libraries=[
            *options.ldflags,  # first: its static libraries may need the others
            *(flag for dependency in dependencies for flag in dependency.link_flags()),
            *of_cuda,
            f"-L{ffi.library_path}",
            "-ltvm_ffi",
            *_NOTHING_UNDEFINED,
        ],
        device_link=device_link,
        headers=tuple(headers),
    )
    return recipe, key


def _check_symbol(solution: Solution) -> None:
    symbol = solution.get_entry_symbol()
    if not symbol.isidentifier():
        raise BuildError(
            f"solution {solution.name!r}: the entry symbol {symbol!r} cannot be the name of an "
            "exported function",
            hint="Write the first argument of TVM_FFI_DLL_EXPORT_TYPED_FUNC: letters, digits, '_'.",
        )


def _compilers(
    options: CompileOptions, cxx: Tool, cc: Tool | None, cuda: CudaTools | None
) -> dict[str, list[str]]:
    own = options.cflags
    found = {"cpp": [*cxx.command, *_standard(own), *_ALWAYS, "-fPIC", *own]}
    if cc is not None:
        # A standard of C++ among the flags is not for these files.
        of_c = [flag for flag in own if not _SETS_CXX_STANDARD.match(flag)]
        found["c"] = [*cc.command, *_ALWAYS, "-fPIC", *of_c]
    if cuda is not None:
        own = options.cuda_cflags
        flags = [*_standard(own), *_ALWAYS, "-Xcompiler=-fPIC", *cuda.code_flags]
        found["cuda"] = [*cuda.nvcc.command, *flags, *host_compiler_flags(cxx, own), *own]
    return found


def _standard(flags: Sequence[str]) -> list[str]:
    return [] if any(map(_SETS_STANDARD.match, flags)) else [_STANDARD]


def _cuda_libraries(cuda: CudaTools) -> list[str]:
    """Return the flags that link CUDA's runtime, and let the driver be linked by ``-lcuda``."""
    folders = cuda.library_paths
    stubs = [path / "stubs" for path in folders if (path / "stubs").is_dir()]
    return [
        *(f"-L{path}" for path in (*folders, *stubs)),
        # If torch has loaded a runtime of the same version, that one serves.
        *(f"-Wl,-rpath,{path}" for path in folders),
        *(["-lcudadevrt"] if cuda.relocatable else []),
        "-lcudart",
    ]


def _dependencies(solution: Solution) -> list[Dependency]:
    """Find the native libraries that a solution declares, or includes without declaring them.

    Many do not declare them: without a check at link time, what torch had loaded served.
    """
    found, _ = find_dependencies(solution.spec.dependencies)
    known = {dependency.name for dependency in found}
    included = {name for source in solution.sources for name in _INCLUDE.findall(source.content)}
    for library, header in _LIBRARIES.items():
        if library not in known and any(map(header.fullmatch, included)):
            try:
                found += find_dependencies([library])[0]
            except CapabilityError:
                continue  # it may bring a header of that name itself; if not, the compiler tells
    return found
