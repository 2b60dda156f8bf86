"""Symbols that nobody defines: found when linking, not at the first call of the solution.

Python's own symbols are open in every extension, and are defined by the running interpreter. So the
linker warns about all that is open, and here the ones that matter are picked out.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Optional

from fib_native_toolkit import run_tool
from flashinfer_bench.errors import CapabilityError

# GNU ld and gold: undefined reference to `f(int)'; lld and mold: undefined symbol: f(int)
_OPEN = re.compile(
    r"undefined (?:references? to [`'](?P<gnu>.+)'(?: follow)?|symbol: (?P<llvm>.+))$"
)
_PLACE = re.compile(r": in function `.*':$")
_PYTHON = re.compile(r"_?Py[A-Z_]\w*$")
# Libraries that torch for CUDA has loaded anyway; loading tells whether that is so.
_OF_CUDA = re.compile(r"(cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|nvrtc)[A-Z]\w*$")
_MANGLED = re.compile(r"\b_Z\w+")


def without_known(output: str, *, cuda: bool = False) -> str:
    """Return a linker's output without what it says about symbols that are there later.

    Parameters
    ----------
    output : str
        What it printed.
    cuda : bool
        Whether those of cuBLAS and the other libraries that torch for CUDA uses are there, as
        Python's are.
    """
    kept: list[str] = []
    place: Optional[str] = None
    known = False
    for line in output.splitlines():
        found = _OPEN.search(line)
        if found:
            known = _is_known(_symbol(found), cuda=cuda)
            if not known:
                # It is a warning because of Python's symbols only.
                kept += [place] if place else []
                kept.append(line.replace("warning: undefined", "undefined"))
                place = None
        elif line.startswith(">>>"):  # lld says where after what
            kept += [] if known else [line]
        elif _PLACE.search(line):
            place = line
        else:
            kept.append(line)
    return "".join(f"{line}\n" for line in kept)


def open_symbols(output: str) -> list[str]:
    """Return the symbols that are left open, in the order in which the linker names them."""
    found = (_symbol(match) for line in output.splitlines() if (match := _OPEN.search(line)))
    return list(dict.fromkeys(found))


def _is_known(symbol: str, *, cuda: bool) -> bool:
    return bool(_PYTHON.match(symbol) or (cuda and _OF_CUDA.match(symbol)))


def _symbol(found: re.Match[str]) -> str:
    return found.group("gnu") or found.group("llvm")


def demangled(text: str) -> str:
    """Return `text` with C++ names as they are written in sources, where c++filt is installed."""
    tool = shutil.which("c++filt")
    names = _MANGLED.findall(text)
    if tool is None or not names:
        return text
    try:
        result = run_tool([tool, *names], cwd=Path("/"))
    except CapabilityError:
        return text
    readable = result.output.splitlines()
    if result.returncode == 0 and len(readable) == len(names):
        for name, plain in zip(names, readable, strict=True):
            text = text.replace(name, plain)
    return text
