"""What ninja and compilers say about the files that they have read."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench.compile.toolkit.run import run_tool
from flashinfer_bench.compile.toolkit.tools import find_ninja

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEPS = ".ninja_deps"
_SEPARATOR = re.compile(r"(?<!\\)\s+")


def ninja_escape(text: str) -> str:
    """Return `text` as it must be written in a ninja file to stand for itself."""
    return re.sub(r"([$ :\n])", r"$\1", text)


def read_dependencies(folder: Path) -> set[Path]:
    """Return the files that were read to compile what is in `folder`.

    Parameters
    ----------
    folder : Path
        Where compilers have run: with depfiles (``-MMD``), ninja's record of them, or both.

    Returns
    -------
    set of Path
        Absolute, without ``..``; nothing where nobody has kept a record.
    """
    found = set()
    if (folder / _DEPS).is_file():
        found.update(ninja_dependencies(folder))
    for depfile in folder.rglob("*.d"):
        if depfile.is_file():
            found.update(_parse_depfile(depfile.read_text(encoding="utf-8", errors="replace")))
    return {_normalised(folder, name) for name in found}


def ninja_dependencies(folder: Path) -> list[str]:
    """Return the files that the compilers of a ninja build have read.

    Parameters
    ----------
    folder : Path
        With ``build.ninja``, after the build.

    Returns
    -------
    list of str
        As the compilers wrote them: absolute, or relative to `folder`.

    Raises
    ------
    CapabilityError
        If there is no ninja.
    """
    output = run_tool([*find_ninja().command, "-t", "deps"], cwd=folder).output
    return [line.strip() for line in output.splitlines() if line.startswith("    ")]


def _parse_depfile(text: str) -> Iterator[str]:
    """Yield the prerequisites of all rules of a depfile, as make reads it."""
    for rule in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        target, separator, rest = rule.partition(": ")
        if not separator and not target.endswith(":"):
            continue
        for word in _SEPARATOR.split(rest.strip()):
            if word:
                yield word.replace("\\ ", " ").replace("\\#", "#").replace("$$", "$")


def _normalised(folder: Path, name: str) -> Path:
    return Path(os.path.normpath(folder / name))
