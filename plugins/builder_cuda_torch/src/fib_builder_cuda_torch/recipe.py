"""How a solution is compiled: tools and flags, settled before a compiler runs."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from fib_builder_cuda_torch import scan
from fib_builder_cuda_torch.installation import (
    find_cuda_torch,
    find_python_headers,
    find_torch,
    packaged_cuda_headers,
    packaged_cuda_versions,
)
from flashinfer_bench import env
from flashinfer_bench.compile.toolkit import (
    checked_options,
    cuda_architectures,
    cuda_fingerprint,
    cuda_home,
    find_cxx,
    find_ninja,
    find_nvcc,
    host_fingerprint,
)
from flashinfer_bench.compile.toolkit.dependencies import find_dependencies
from flashinfer_bench.data import SupportedLanguages
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from fib_builder_cuda_torch.installation import TorchInstallation
    from flashinfer_bench.compile.toolkit import Tool
    from flashinfer_bench.compile.toolkit.dependencies import Dependency
    from flashinfer_bench.data import CompileOptions, Solution

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
_ARCHITECTURE = re.compile(r"--?(arch|gencode|generate-code|gpu-(architecture|code))\b|arch=")


@dataclass(frozen=True)
class Recipe:
    """What to run.

    Parameters
    ----------
    sources : tuple of str
        The files to compile, relative to the solution's folder.
    ninja, cxx : Tool
        What runs the compilers, and the compiler for C++.
    nvcc : Tool, optional
        The compiler for CUDA; None for a solution that does not use CUDA.
    cxx_flags, nvcc_flags, link_flags : tuple of str
        Arguments, one each; paths are absolute, or relative to the build's folder.
    headers : tuple of Path
        The folders of torch, Python and CUDA with headers, whose versions are in the key.
    """

    sources: tuple[str, ...]
    ninja: Tool
    cxx: Tool
    nvcc: Optional[Tool]
    cxx_flags: tuple[str, ...]
    nvcc_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    headers: tuple[Path, ...]


def plan_build(solution: Solution) -> tuple[dict[str, str], Recipe]:
    """Settle how to compile a solution.

    Parameters
    ----------
    solution : Solution
        What is to be compiled.

    Returns
    -------
    key : dict of str to str
        All that the result depends on besides definition and solution.
    recipe : Recipe
        Files, tools and flags.

    Raises
    ------
    CapabilityError
        If a compiler, a library or a header is missing.
    BuildError
        If the solution asks for what cannot be.
    """
    sources = scan.compiled_sources(solution)
    scan.check_names(solution)
    plan = _Plan(solution, kernels=any(map(scan.is_cuda, sources)))
    return plan.key(), plan.recipe(sources)


class _Plan:
    """Finds tools and libraries, from which the key and the flags follow."""

    def __init__(self, solution: Solution, *, kernels: bool) -> None:
        self.options: CompileOptions = checked_options(solution)
        self.torch = find_torch()
        self.cuda = cuda = _uses_cuda(solution, self.torch, kernels=kernels)
        self.python = find_python_headers()
        self.cxx, self.ninja = find_cxx(), find_ninja()
        self.nvcc = find_nvcc() if cuda else None
        self.home: Optional[Path] = cuda_home() if cuda else None
        self.dependencies: list[Dependency] = find_dependencies(solution.spec.dependencies)[0]
        self.architectures = self._architectures() if kernels else ()
        if self.nvcc is not None:
            _check_cuda_version(self.nvcc, self.torch)

    def key(self) -> dict[str, str]:
        """Return what the result depends on. Folders are left out, so that machines can share."""
        flags = [*self._language_flags(), *_cxx_flags(self.torch, self.cxx, self.options)]
        cuda = {}
        if self.nvcc is not None:
            flags += _nvcc_flags(self.torch, self.cxx, self.options)
            cuda = cuda_fingerprint(self.nvcc, self.architectures, self.options.cuda_cflags)
            cuda["cuda_packages"] = packaged_cuda_versions()
        return {
            **host_fingerprint(self.cxx, [*flags, *self.options.ldflags], python=True),
            **cuda,
            "python_headers": platform.python_version(),
            "torch": self.torch.version,
            "torch_cuda": str(self.torch.cuda) if self.cuda else "not used",
            "cxx11_abi": str(self.torch.cxx11_abi),
            "dependencies": "; ".join(dependency.key for dependency in self.dependencies),
        }

    def recipe(self, sources: tuple[str, ...]) -> Recipe:
        """Return what to run."""
        common = [*self._language_flags(), *self._include_flags()]
        nvcc = [*_nvcc_flags(self.torch, self.cxx, self.options), *_targets(self.architectures)]
        return Recipe(
            sources=sources,
            ninja=self.ninja,
            cxx=self.cxx,
            nvcc=self.nvcc,
            cxx_flags=(*common, *_cxx_flags(self.torch, self.cxx, self.options)),
            nvcc_flags=(*common, *_host_compiler(self.cxx), *nvcc),
            link_flags=tuple(self._link_flags()),
            headers=tuple(self._system_headers()),
        )

    def _architectures(self) -> tuple[str, ...]:
        chosen = any(_ARCHITECTURE.match(flag) for flag in self.options.cuda_cflags)
        return () if chosen else cuda_architectures()

    def _language_flags(self) -> list[str]:
        abi = [] if self.torch.cxx11_abi else ["-D_GLIBCXX_USE_CXX11_ABI=0"]
        return ["-DTORCH_API_INCLUDE_EXTENSION_H", *abi]

    def _include_flags(self) -> list[str]:
        own = ["sources", *(_below_sources(path) for path in self.options.include_paths)]
        flags = [f"-I{path}" for path in own]
        for dependency in self.dependencies:
            flags += dependency.include_flags()
        for path in self._system_headers():
            flags += ["-isystem", str(path)]
        return flags

    def _system_headers(self) -> list[Path]:
        packaged = packaged_cuda_headers() if self.cuda else []
        cuda = self._cuda_folders("include")
        return [*self.torch.include_paths, *cuda, self.python, *packaged]

    def _link_flags(self) -> list[str]:
        both = [flag for flag in self.options.cflags if flag.startswith(_ALSO_FOR_LINKING)]
        flags = ["-shared", *_UNRESOLVED, *_OWN_FUNCTIONS_FIRST, *both, *self.options.ldflags]
        for dependency in self.dependencies:
            flags += dependency.link_flags()
        flags += [f"-L{self.torch.library_path}", "-lc10"]
        flags += ["-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda"] if self.cuda else ["-ltorch_cpu"]
        flags += ["-ltorch", "-ltorch_python"]
        if self.cuda:
            flags += [f"-L{path}" for path in self._cuda_folders("lib64", "lib")]
            flags.append("-lcudart")
        return flags

    def _cuda_folders(self, *names: str) -> list[Path]:
        if self.home is None:
            return []
        roots = [self.home, *sorted(self.home.glob("targets/*-linux"))]
        folders = [root / name for root in roots for name in names if (root / name).is_dir()]
        once = {folder.resolve(): folder for folder in reversed(folders)}
        # Named once more, the compiler's own folder would break the order of its headers.
        return [folder for folder in reversed(once.values()) if str(folder) != "/usr/include"]


def _uses_cuda(solution: Solution, torch: TorchInstallation, *, kernels: bool) -> bool:
    """Return whether a solution needs CUDA, for which torch must be built then."""
    if kernels or solution.spec.language == SupportedLanguages.CUDA:
        find_cuda_torch()
        return True
    # C++ may name CUDA's headers for the case that they are there.
    return torch.cuda is not None and scan.includes_cuda(solution)


# A helper of a solution that is called like a function of libc must not become that function.
_OWN_FUNCTIONS_FIRST = ("-Wl,-Bsymbolic-functions",) if sys.platform == "linux" else ()
# What nobody defines is found when linking, though Python's own symbols may stay open: see
# `undefined.py`. Elsewhere than on Linux it is found when the library is loaded.
_UNRESOLVED = (
    ("-Wl,-z,defs", "-Wl,--warn-unresolved-symbols")
    if sys.platform == "linux"
    else ("-undefined", "dynamic_lookup")
)


def _cxx_flags(torch: TorchInstallation, cxx: Tool, options: CompileOptions) -> list[str]:
    own = options.cflags
    defaults = ["-fPIC", *_private_statics(cxx)]
    return [*defaults, *_unless(own, "-std=", torch.standard), *_unless(own, "-O", "3"), *own]


def _nvcc_flags(torch: TorchInstallation, cxx: Tool, options: CompileOptions) -> list[str]:
    own = options.cuda_cflags
    host = [part for flag in ("-fPIC", *_private_statics(cxx)) for part in ("-Xcompiler", flag)]
    defaults = [*_NVCC_FLAGS, *host]
    return [*defaults, *_unless(own, "-std=", torch.standard), *_unless(own, "-O", "3"), *own]


def _private_statics(cxx: Tool) -> list[str]:
    """Keep variables of inline functions and templates to the library that they are in.

    By default GCC lets all libraries of a process share those of one name, so that two versions
    of one kernel would work in the same buffers.
    """
    return ["-fno-gnu-unique"] if "Free Software Foundation" in cxx.version else []


def _unless(flags: Iterable[str], prefix: str, value: str) -> list[str]:
    """Return the flag of `prefix` and `value`, unless the solution says otherwise."""
    return [] if any(flag.startswith(prefix) for flag in flags) else [f"{prefix}{value}"]


def _targets(architectures: Sequence[str]) -> list[str]:
    """Return nvcc's flags for architectures such as ``9.0a`` and ``12.0+PTX``."""
    flags = []
    for text in architectures:
        name, plus, _ = text.partition("+")
        number = name.replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if plus:
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


def _host_compiler(cxx: Tool) -> list[str]:
    """Have nvcc work with the compiler that the C++ files are for, unless told otherwise."""
    if cxx.arguments or "NVCC_CCBIN" in env.compiler_variables():
        return []
    return ["-ccbin", str(cxx.path)]


def _below_sources(path: str) -> str:
    return path if path.startswith("/") else f"sources/{path}"


def _check_cuda_version(nvcc: Tool, torch: TorchInstallation) -> None:
    wanted, found = str(torch.cuda).split(".")[0], nvcc.number.split(".")[0]
    if wanted != found:
        raise CapabilityError(
            f"nvcc {nvcc.number} does not go with {torch}, which is built for CUDA {torch.cuda}",
            hint=f"Set CUDA_HOME to a toolkit of CUDA {wanted}.",
        )
