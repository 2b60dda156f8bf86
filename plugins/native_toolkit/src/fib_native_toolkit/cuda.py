"""CUDA's compiler and libraries, as command-line arguments for builders."""

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
    """The CUDA toolkit, and the architectures to compile for.

    Parameters
    ----------
    nvcc : Tool
        The compiler.
    home : Path
        The root of the toolkit.
    architectures : tuple of str
        Architectures to compile for: ``9.0a``. Empty if there are none, or if the solution's own
        flags name them.
    relocatable : bool
        Whether device code needs a separate link step after compiling.
    """

    nvcc: Tool
    home: Path
    architectures: tuple[str, ...]
    relocatable: bool

    @property
    def code_flags(self) -> list[str]:
        """Flags that generate code for the architectures."""
        return [flag for name in self.architectures for flag in _code_flags(name)]

    @property
    def include_paths(self) -> list[Path]:
        """Header folders for compilers other than nvcc, which has them built in."""
        return _with_file(self.home, "cuda_runtime.h", "include", "targets/*/include")

    @property
    def link_flags(self) -> list[str]:
        """Flags that link the CUDA runtime, and make ``-lcuda`` link the driver."""
        folders = _with_file(self.home, "libcudart.so*", "lib64", "lib", "targets/*/lib")
        stubs = [path / "stubs" for path in folders if (path / "stubs").is_dir()]
        return [
            *(f"-L{path}" for path in (*folders, *stubs)),
            # If torch has loaded a runtime of the same version, that one is used.
            *(f"-Wl,-rpath,{path}" for path in folders),
            *(["-lcudadevrt"] if self.relocatable else []),
            "-lcudart",
        ]


def find_cuda(flags: Sequence[str], *, compiles: bool) -> CudaTools:
    """Return the CUDA toolkit of this machine.

    Parameters
    ----------
    flags : sequence of str
        The solution's own flags for nvcc; if they select an architecture, it is the only one.
    compiles : bool
        Whether anything is compiled with nvcc.

    Raises
    ------
    CapabilityError
        If there is no toolkit, or the target architecture is unknown.
    """
    nvcc = find_nvcc()
    chosen = any(map(_CHOOSES_CODE.match, flags))
    architectures = environment.cuda_architectures() if compiles and not chosen else ()
    relocatable = compiles and _RELOCATABLE.search(" ".join(flags)) is not None
    return CudaTools(nvcc, cuda_home(), architectures, relocatable)


def host_compiler_flags(cxx: Tool) -> list[str]:
    """Return the nvcc flags for the C++ compiler, unless ``NVCC_CCBIN`` is set.

    Parameters
    ----------
    cxx : Tool
        The C++ compiler; if it runs through ccache, nvcc gets the compiler alone.
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
    """Return those of `folders` (which may be patterns) that contain the file, each once."""
    found: dict[Path, Path] = {}
    for path in (path for pattern in folders for path in sorted(root.glob(pattern))):
        # Compilers search these folders anyway; naming them changes the order and breaks includes.
        if any(path.glob(file)) and str(path) not in ("/usr/include", "/usr/local/include"):
            found.setdefault(path.resolve(), path)
    return list(found.values())
