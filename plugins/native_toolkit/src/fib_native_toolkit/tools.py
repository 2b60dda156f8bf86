"""Finding compilers and the programs that go with them.

Each is looked for where its users expect it: in the variable that names it (``CXX``, ``CC``,
``CUDA_HOME``), on ``PATH``, in the usual places. What is found has answered ``--version``; that is
asked once for a file as long as the file does not change.
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
"""What a program may take to say its version."""


@dataclass(frozen=True)
class Tool:
    """A program that works.

    Parameters
    ----------
    name : str
        What it is: ``"c++"``, ``"cc"``, ``"nvcc"``, ``"ninja"``.
    path : Path
        The file, as it was found; links are not followed, for some tools go by their name.
    version : str
        All that it says about its version; does not depend on where it is. For a compiler that is
        a script, such as one that adds flags, its digest as well.
    arguments : tuple of str
        What comes before all other arguments: for ``CXX="ccache g++"``, ``g++``.
    """

    name: str
    path: Path
    version: str
    arguments: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """What a command line begins with."""
        return [str(self.path), *self.arguments]

    @property
    def number(self) -> str:
        """The version's number, such as ``12.2.0``; empty if it has none."""
        # In brackets are the distributor's numbers. nvcc has its own in the fourth line.
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
        If there is none that runs.
    """
    return _find_compiler("c++", "CXX", ("c++", "g++", "clang++"))


def find_cc() -> Tool:
    """Return the C compiler: ``$CC``, or the first of ``cc``, ``gcc``, ``clang`` on PATH.

    Raises
    ------
    CapabilityError
        If there is none that runs.
    """
    return _find_compiler("cc", "CC", ("cc", "gcc", "clang"))


def find_nvcc() -> Tool:
    """Return CUDA's compiler: below ``$CUDA_HOME`` or ``$CUDA_PATH``, on PATH, in /usr/local/cuda.

    Raises
    ------
    CapabilityError
        If there is none that runs.
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
    """Return ninja: on PATH, or beside this Python, where pip installs it.

    Raises
    ------
    CapabilityError
        If there is none that runs.
    """
    paths = [*_on_path("ninja"), Path(sys.executable).parent / "ninja"]
    searched = "PATH, the folder of this Python"
    return _first_working("ninja", paths, searched=searched, hint="pip install ninja")


def cuda_home() -> Path:
    """Return the root of the CUDA toolkit: the folder with ``bin``, ``include`` and libraries.

    This is the real one even where the nvcc on PATH is a link that leads elsewhere.

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
        except CapabilityError as error:  # it may answer another time
            failures.append(f"{path} does not run: {error.message}")
    raise CapabilityError(f"{name} not found: {'; '.join(failures) or searched}", hint=hint)


# Takes no lock: a program that hangs must keep nobody from another one, and a forked child would
# inherit a lock that nobody releases.
@cache
def _ask_version(path: Path, arguments: tuple[str, ...], size: int, changed_ns: int) -> str:
    result = run_tool([path, *arguments, "--version"], cwd=Path(os.sep), timeout_s=_ANSWER_S)
    text = _PLACES.sub("", result.output).strip()
    if result.returncode != 0 or not text:
        lines = text.splitlines()
        raise CapabilityError(lines[-1] if lines else f"exit status {result.returncode}")
    # Scripts may add flags, and say the version of what they start.
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
