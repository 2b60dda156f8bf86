"""What ninja and compilers say about the files that they have read."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from fib_native_toolkit.run import run_tool
from fib_native_toolkit.tools import find_ninja
from flashinfer_bench import env
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fib_native_toolkit.tools import Tool

_DEPS = ".ninja_deps"
_SEPARATOR = re.compile(r"(?<!\\)\s+")


def ninja_escape(text: str) -> str:
    """Return `text` as it must be written in a ninja file to stand for itself."""
    return re.sub(r"([$ :\n])", r"$\1", text)


def ninja_command(ninja: Tool, files: int) -> list[str]:
    """Return what a command line of ninja begins with, and how much it is to do at once.

    Parameters
    ----------
    ninja : Tool
        From `find_ninja`.
    files : int
        How many files there are to compile.

    Returns
    -------
    list of str
        ``MAX_JOBS`` is what other builders of extensions heed as well. Without it a build takes one
        core for each file at most, and starts nothing more while other builds keep all cores busy.
    """
    limit = env.max_jobs()
    if limit is not None:
        return [*ninja.command, "-j", str(limit)]
    cores = os.cpu_count() or 1
    return [*ninja.command, "-j", str(max(1, min(files, cores))), "-l", str(cores)]


def read_dependencies(folder: Path) -> set[Path]:
    """Return the files that were read to compile what is in `folder`.

    Parameters
    ----------
    folder : Path
        Where compilers have run: with depfiles (``-MD``), ninja's record of them, or both.

    Returns
    -------
    set of Path
        Absolute, without ``..`` unless links make that another file; nothing where nobody has kept
        a record.
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
        If there is no ninja, or it cannot tell.
    """
    result = run_tool([*find_ninja().command, "-t", "deps"], cwd=folder)
    lines = result.output.splitlines()
    if result.returncode != 0:
        reason = lines[-1] if lines else f"exit status {result.returncode}"
        raise CapabilityError(f"'ninja -t deps' does not say what was compiled: {reason}")
    return [line.strip() for line in lines if line.startswith("    ")]


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
    path = os.path.join(folder, name)  # noqa: PTH118 - there may be many
    short = os.path.normpath(path)
    if ".." in name and os.path.realpath(path) != os.path.realpath(short):
        return Path(path)  # what comes before the dots is a link
    return Path(short)
