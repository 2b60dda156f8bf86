"""From a solution and the tools of this machine to the commands that compile it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple, Optional

from fib_builder_tvmffi.library import find_tvm_ffi
from fib_builder_tvmffi.sources import compiled_files, included_libraries, kind_of, uses_cuda
from flashinfer_bench import env
from flashinfer_bench.compile.toolkit import (
    Dependency,
    Tool,
    checked_options,
    cuda_fingerprint,
    find_cc,
    find_cxx,
    find_dependencies,
    host_fingerprint,
)
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fib_builder_tvmffi.cuda import CudaTools
    from flashinfer_bench.data import Solution

# What TVM FFI's headers need at least; a solution may ask for a later one.
_STANDARD = "-std=c++17"
_SETS_STANDARD = re.compile(r"--?std(=|$)")
_SETS_CXX_STANDARD = re.compile(r"-std=(c|gnu)\+\+")
# With metadata each export can tell its signature; that costs some hundredths of a second.
_ALWAYS = ("-O3", "-DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1")
_SETS_HOST_COMPILER = re.compile(r"-ccbin|--compiler-bindir")
# A symbol that is nowhere shall fail when linking, or else when loading. By default the process
# ends when it is first called.
_NOTHING_UNDEFINED = ("-Wl,-z,defs", "-Wl,-z,now")


class Recipe(NamedTuple):
    """The commands that make a library of a solution's sources.

    Attributes
    ----------
    files : tuple of (str, str)
        Path and kind of each file to compile, see `kind_of`.
    compilers : mapping of str to list of str
        For each kind, what its command line begins with.
    link, libraries : list of str
        What stands before and behind the objects when linking.
    device_link : list of str
        What the command that links code for the GPU begins with; empty if there is nothing to link.
    headers : tuple of Path
        The folders of TVM FFI and CUDA with headers, whose versions are in the key.
    """

    files: tuple[tuple[str, str], ...]
    compilers: Mapping[str, list[str]]
    link: list[str]
    libraries: list[str]
    device_link: list[str]
    headers: tuple[Path, ...] = ()


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
    parts = _Parts(solution)
    recipe = Recipe(
        files=parts.files,
        compilers=parts.compilers(),
        link=[*parts.cxx.command, "-shared"],
        libraries=parts.libraries(),
        device_link=parts.device_link(),
        headers=parts.headers(),
    )
    return recipe, parts.key()


class _Parts:
    """What a solution asks for, and what there is on this machine."""

    def __init__(self, solution: Solution) -> None:
        self.files = tuple((path, kind_of(path)) for path in compiled_files(solution))
        self.kinds = {kind for _, kind in self.files}
        self.options = checked_options(solution)
        self.ffi = find_tvm_ffi()
        self.cxx = find_cxx()
        self.cc: Optional[Tool] = find_cc() if "c" in self.kinds else None
        self.cuda: Optional[CudaTools] = None
        if uses_cuda(solution):
            from fib_builder_tvmffi.cuda import find_cuda

            self.cuda = find_cuda(self.options.cuda_cflags, compiles="cuda" in self.kinds)
        self.dependencies = _dependencies(solution)

    def compilers(self) -> dict[str, list[str]]:
        own = self.options.cflags
        found = {"cpp": [*self.cxx.command, *_standard(own), *_ALWAYS, "-fPIC", *own]}
        if self.cc is not None:
            # A standard of C++ among the flags is not for these files.
            of_c = [flag for flag in own if not _SETS_CXX_STANDARD.match(flag)]
            found["c"] = [*self.cc.command, *_ALWAYS, "-fPIC", *of_c]
        if self.cuda is not None:
            found["cuda"] = [*self.cuda.nvcc.command, *self._cuda_flags(self.cuda)]
        includes = self._includes()
        return {kind: [*found[kind], *includes] for kind in sorted(self.kinds)}

    def _cuda_flags(self, cuda: CudaTools) -> list[str]:
        own = self.options.cuda_cflags
        flags = [*_standard(own), *_ALWAYS, "-Xcompiler=-fPIC", *cuda.code_flags]
        if "NVCC_CCBIN" not in env.compiler_variables():
            flags += [] if any(map(_SETS_HOST_COMPILER.match, own)) else _host_compiler(self.cxx)
        return [*flags, *own]

    def _includes(self) -> list[str]:
        """Return the solution's own folders; then those whose headers nobody is to be warned of."""
        own = [f"-I{path}" for path in (".", *self.options.include_paths)]
        libraries = [flag for found in self.dependencies for flag in found.include_flags()]
        others = [part for path in self.headers() for part in ("-isystem", str(path))]
        return [*own, *libraries, *others]

    def headers(self) -> tuple[Path, ...]:
        of_cuda = self.cuda.include_paths if self.cuda is not None else ()
        return (self.ffi.include_path, *of_cuda)

    def libraries(self) -> list[str]:
        """Return the solution's own flags first: its static libraries may need the others."""
        found = [flag for dependency in self.dependencies for flag in dependency.link_flags()]
        of_cuda = self.cuda.link_flags() if self.cuda is not None else []
        ffi = [f"-L{self.ffi.library_path}", "-ltvm_ffi"]
        return [*self.options.ldflags, *found, *of_cuda, *ffi, *_NOTHING_UNDEFINED]

    def device_link(self) -> list[str]:
        if self.cuda is None or not self.cuda.relocatable:
            return []
        return [*self.cuda.nvcc.command, "-dlink", *self._cuda_flags(self.cuda)]

    def key(self) -> dict[str, str]:
        flags = [_STANDARD, *_ALWAYS, *self.options.cflags, *self.options.cuda_cflags]
        key = {"apache-tvm-ffi": self.ffi.version, **host_fingerprint(self.cxx, flags)}
        key["linking"] = json.dumps([*self.options.ldflags, *_NOTHING_UNDEFINED])
        if self.cc is not None:
            key["c_compiler"] = " ".join([*self.cc.arguments, self.cc.version])
        if self.cuda is not None:
            flags = self.options.cuda_cflags
            key |= cuda_fingerprint(self.cuda.nvcc, self.cuda.architectures, flags)
            key["cuda_home"] = str(self.cuda.home)  # the rpath leads there
        if self.dependencies:
            key["libraries"] = "; ".join(dependency.key for dependency in self.dependencies)
        return key


def _standard(flags: Sequence[str]) -> list[str]:
    return [] if any(map(_SETS_STANDARD.match, flags)) else [_STANDARD]


def _host_compiler(cxx: Tool) -> list[str]:
    """Have nvcc use the compiler that everything else is compiled with; ccache cannot be it."""
    wrapped = cxx.arguments and not cxx.arguments[0].startswith("-")
    return ["-ccbin", cxx.arguments[0] if wrapped else str(cxx.path)]


def _dependencies(solution: Solution) -> list[Dependency]:
    """Find the native libraries that a solution declares, or includes without declaring them."""
    found, _ = find_dependencies(solution.spec.dependencies)
    known = {dependency.name for dependency in found}
    for name in included_libraries(solution):
        if name not in known:
            try:
                found += find_dependencies([name])[0]
            except CapabilityError:
                continue  # it may bring a header of that name itself; if not, the compiler tells
    return found
