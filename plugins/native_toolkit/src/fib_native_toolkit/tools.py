"""Find compilers and related programs.

Each is searched where users expect it: in its environment variable (``CXX``, ``CC``,
``CUDA_HOME``), on ``PATH``, and in standard locations. A tool counts as found if it answers
``--version``; the answer is cached until the file changes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fib_native_toolkit import environment
from fib_native_toolkit.run import run_tool
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Iterable

CUDA_VARIABLES = ("CUDA_HOME", "CUDA_PATH")
_USUAL_CUDA = Path("/usr/local/cuda")
_NUMBER = re.compile(r"\bV?(\d+\.\d+[\w.]*)")
_PLACES = re.compile(r"^(InstalledDir|Configuration file): .*\n?", re.MULTILINE)

_LARGEST_SCRIPT = 1 << 20
_ANSWER_S = 5.0
"""Time limit for a program to report its version."""


@dataclass(frozen=True)
class Tool:
    """A working program.

    Parameters
    ----------
    name : str
        Kind of tool: ``"c++"``, ``"cc"``, ``"nvcc"``, ``"ninja"``.
    path : Path
        The file as found; links are not resolved, because some tools depend on their name.
    version : str
        Its complete version output, independent of its location. For a compiler that is a script,
        such as one that adds flags, its digest as well.
    arguments : tuple of str
        Arguments that precede all others: for ``CXX="ccache g++"``, ``g++``.
    """

    name: str
    path: Path
    version: str
    arguments: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """Start of the command line."""
        return [str(self.path), *self.arguments]

    @property
    def number(self) -> str:
        """The version number, such as ``12.2.0``; empty if there is none."""
        # Brackets contain the distributor's numbers. nvcc prints its own in the fourth line.
        lines = self.version.splitlines()
        line = next((line for line in lines if "release" in line), lines[0] if lines else "")
        found = _NUMBER.findall(re.sub(r"\(.*?\)", "", line)) or _NUMBER.findall(line)
        return found[-1] if found else ""

    def __str__(self) -> str:
        return f"{self.name} {self.number}".strip()


def find_cxx() -> Tool:
    """Return the C++ compiler: ``$CXX``, or the first of ``c++``, ``g++``, ``clang++`` on PATH.

    Raises
    ------
    CapabilityError
        If no working compiler is found.
    """
    return _find_compiler("c++", "CXX", ("c++", "g++", "clang++"))


def find_cc() -> Tool:
    """Return the C compiler: ``$CC``, or the first of ``cc``, ``gcc``, ``clang`` on PATH.

    Raises
    ------
    CapabilityError
        If no working compiler is found.
    """
    return _find_compiler("cc", "CC", ("cc", "gcc", "clang"))


def find_nvcc() -> Tool:
    """Return nvcc: from ``$CUDA_HOME`` or ``$CUDA_PATH``, from PATH, or from /usr/local/cuda.

    Raises
    ------
    CapabilityError
        If no working nvcc is found.
    """
    roots = environment.library_roots(*CUDA_VARIABLES)
    places = [root / "bin" / "nvcc" for _, root in roots]
    found = [place for place in places if place.is_file()]
    found += [*_on_path("nvcc"), _USUAL_CUDA / "bin" / "nvcc"]
    unset = [f"${name}" for name in CUDA_VARIABLES if name not in dict(roots)]
    searched = [*(f"{name} not set" for name in unset), *map(str, places), "PATH"]
    return _first_working(
        "nvcc",
        found,
        searched=", ".join([*searched, str(_USUAL_CUDA)]),
        hint="Install the CUDA toolkit, or set CUDA_HOME to its folder.",
    )


def find_ninja() -> Tool:
    """Return ninja: from PATH, or from the folder of this Python, where pip installs it.

    Raises
    ------
    CapabilityError
        If no working ninja is found.
    """
    paths = [*_on_path("ninja"), Path(sys.executable).parent / "ninja"]
    searched = "PATH, the folder of this Python"
    return _first_working("ninja", paths, searched=searched, hint="pip install ninja")


def cuda_home() -> Path:
    """Return the root of the CUDA toolkit: the folder with ``bin``, ``include`` and libraries.

    Links are resolved, even if the nvcc on PATH is a link.

    Raises
    ------
    CapabilityError
        If there is no toolkit.
    """
    for _, root in environment.library_roots(*CUDA_VARIABLES):
        if _is_toolkit(root):
            return root
    nvcc = find_nvcc().path
    for home in (nvcc.parent.parent, nvcc.resolve().parent.parent, _USUAL_CUDA):
        if _is_toolkit(home):
            return home
    raise CapabilityError(
        f"the CUDA toolkit of {nvcc} was not found", hint="Set CUDA_HOME to its folder."
    )


def _find_compiler(name: str, variable: str, usual: tuple[str, ...]) -> Tool:
    command = environment.compiler_command(variable)
    if not command:
        return _first_working(
            name,
            [path for wanted in usual for path in _on_path(wanted)],
            searched=f"${variable} not set; PATH has none of {', '.join(usual)}",
            hint=f"Install one (on Debian: apt install g++), or set {variable}.",
        )
    try:
        program, *arguments = shlex.split(command)
    except ValueError:
        program, arguments = command, []
    return _first_working(
        name,
        _on_path(program),
        tuple(arguments),
        searched=f"${variable} is {command!r}",
        hint=f"Unset {variable}, or set it to an installed compiler.",
    )


def _on_path(name: str) -> list[Path]:
    located = shutil.which(name)
    return [] if located is None else [Path(located).absolute()]


def _first_working(
    name: str, paths: Iterable[Path], arguments: tuple[str, ...] = (), *, searched: str, hint: str
) -> Tool:
    failures = []
    for path in paths:
        try:
            status = path.stat()
            version = _ask_version(path, arguments, status.st_size, status.st_mtime_ns)
            return Tool(name, path, version, arguments)
        except OSError:
            continue
        except CapabilityError as error:  # not cached: it may work later
            failures.append(f"{path} does not run: {error.message}")
    raise CapabilityError(f"{name} not found: {'; '.join(failures) or searched}", hint=hint)


# Takes no lock: a program that hangs must not block other threads, and a forked child would inherit
# a held lock.
@cache
def _ask_version(path: Path, arguments: tuple[str, ...], size: int, changed_ns: int) -> str:
    result = run_tool([path, *arguments, "--version"], cwd=Path(os.sep), timeout_s=_ANSWER_S)
    text = _PLACES.sub("", result.output).strip()
    if result.returncode != 0 or not text:
        lines = text.splitlines()
        raise CapabilityError(lines[-1] if lines else f"exit status {result.returncode}")
    # Scripts may add flags, and report the version of the program that they start.
    for file in (path, *(_on_path(arguments[0]) if arguments else ())):
        content = file.read_bytes() if file.stat().st_size < _LARGEST_SCRIPT else b""
        if content.startswith(b"#!"):
            text += f"\nscript {hashlib.sha256(content).hexdigest()}"
    return text


def _is_toolkit(folder: Path) -> bool:
    """Return whether `folder` has CUDA's compiler and its runtime's headers."""
    headers = [folder / "include" / "cuda_runtime.h"]
    headers += folder.glob("targets/*/include/cuda_runtime.h")
    return (folder / "bin" / "nvcc").is_file() and any(header.is_file() for header in headers)
