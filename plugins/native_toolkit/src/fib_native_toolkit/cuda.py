"""CUDA's compiler and libraries, as the command lines of builders need them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fib_native_toolkit import environment
from fib_native_toolkit.tools import Tool, cuda_home, find_nvcc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_CHOOSES_CODE = re.compile(r"--?(arch|gencode|generate-code|code|gpu-(architecture|code))\b")
_RELOCATABLE = re.compile(r"(^| )(-dc|--device-c|(-rdc|--relocatable-device-code)[= ]true)(?= |$)")
_CAPABILITY = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?")


@dataclass(frozen=True)
class CudaTools:
    """The CUDA toolkit, and what it is to do.

    Parameters
    ----------
    nvcc : Tool
        The compiler.
    home : Path
        The root of the toolkit.
    architectures : tuple of str
        What to make code for: ``9.0a``. Empty if nothing, or if the solution's own flags say it.
    relocatable : bool
        Whether code for the GPU is still to be linked after compiling.
    """

    nvcc: Tool
    home: Path
    architectures: tuple[str, ...]
    relocatable: bool

    @property
    def code_flags(self) -> list[str]:
        """The flags that ask for code for the architectures."""
        return [flag for name in self.architectures for flag in _code_flags(name)]

    @property
    def include_paths(self) -> list[Path]:
        """Folders with headers, for compilers other than nvcc, which knows them."""
        return _with_file(self.home, "cuda_runtime.h", "include", "targets/*/include")

    @property
    def library_paths(self) -> list[Path]:
        """Folders with CUDA's runtime."""
        return _with_file(self.home, "libcudart.so*", "lib64", "lib", "targets/*/lib")

    @property
    def link_flags(self) -> list[str]:
        """The flags that link CUDA's runtime, and let the driver be linked by ``-lcuda``."""
        folders = self.library_paths
        stubs = [path / "stubs" for path in folders if (path / "stubs").is_dir()]
        return [
            *(f"-L{path}" for path in (*folders, *stubs)),
            # If torch has loaded a runtime of the same version, that one serves.
            *(f"-Wl,-rpath,{path}" for path in folders),
            *(["-lcudadevrt"] if self.relocatable else []),
            "-lcudart",
        ]


def find_cuda(flags: Sequence[str], *, compiles: bool) -> CudaTools:
    """Return the CUDA toolkit of this machine.

    Parameters
    ----------
    flags : sequence of str
        The solution's own flags for nvcc; where they choose an architecture, nothing else does.
    compiles : bool
        Whether anything is compiled with nvcc.

    Raises
    ------
    CapabilityError
        If there is no toolkit, or it is not known what to compile for.
    """
    nvcc = find_nvcc()
    chosen = any(map(_CHOOSES_CODE.match, flags))
    architectures = environment.cuda_architectures() if compiles and not chosen else ()
    relocatable = compiles and _RELOCATABLE.search(" ".join(flags)) is not None
    return CudaTools(nvcc, cuda_home(), architectures, relocatable)


def host_compiler_flags(cxx: Tool) -> list[str]:
    """Return what makes nvcc work with the compiler for C++, unless ``NVCC_CCBIN`` says otherwise.

    Parameters
    ----------
    cxx : Tool
        That compiler; of one that ccache starts, nvcc gets the compiler alone.
    """
    if "NVCC_CCBIN" in environment.compiler_variables():
        return []
    wrapped = cxx.arguments and not cxx.arguments[0].startswith("-")
    return ["-ccbin", cxx.arguments[0] if wrapped else str(cxx.path)]


def _code_flags(name: str) -> list[str]:
    found = _CAPABILITY.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not a compute capability (8.0, 9.0a, 12.0+PTX)")
    major, minor, features, ptx = found.groups()
    number = f"{major}{minor}{features}"
    flags = [f"-gencode=arch=compute_{number},code=sm_{number}"]
    if ptx:
        flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


def _with_file(root: Path, file: str, *folders: str) -> list[Path]:
    """Return those of `folders`, which may be patterns, that have such a file; each once."""
    found: dict[Path, Path] = {}
    for path in (path for pattern in folders for path in sorted(root.glob(pattern))):
        # Compilers look there anyway, at the right moment; asked to do it earlier they fail.
        if any(path.glob(file)) and str(path) not in ("/usr/include", "/usr/local/include"):
            found.setdefault(path.resolve(), path)
    return list(found.values())
