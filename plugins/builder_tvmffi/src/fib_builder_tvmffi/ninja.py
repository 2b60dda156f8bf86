"""The file that tells ninja what to compile and link."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from flashinfer_bench.compile.toolkit import ninja_escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fib_builder_tvmffi.recipe import Recipe

LIBRARY = "solution.so"
"""What ninja makes, in the folder of the ninja file."""

EXPORTS = "exports.map"
"""The linker's list of what to export, in the same folder."""


class _Variable(str):
    """A word that stands in the file for others, which are quoted for the shell where they are set.

    A type of its own, because a solution's flags may look the same.
    """

    __slots__ = ()


_IN, _OUT, _SOURCE, _DEPFILE = map(_Variable, ("$in", "$out", "$source", "$out.d"))


def ninja_file(recipe: Recipe, working: str) -> str:
    """Return the text of a ``build.ninja`` for a recipe.

    Ninja is to run in the folder of the sources, so that compilers speak of files by the paths that
    the solution gives them.

    Parameters
    ----------
    recipe : Recipe
        What to compile, and how.
    working : str
        Path of the folder for what ninja makes, relative to that of the sources.
    """
    lines = [f"builddir = {ninja_escape(working)}"]
    for kind, command in recipe.compilers.items():
        lines += _rule(kind, [*command, "-MD", "-MF", _DEPFILE, "-c", _SOURCE, "-o", _OUT])
    # Numbered, because two folders may hold files of one name.
    objects = [f"{working}/{index}.o" for index in range(len(recipe.files))]
    for (path, kind), made in zip(recipe.files, objects, strict=True):
        lines.append(_build(made, kind))
        # As a variable, because ninja does not take all characters in the name of an input.
        lines.append(f"  source = {_word(_operand(path))}")
    if recipe.device_link:
        lines += _rule("device_link", [*recipe.device_link, _IN, "-o", _OUT])
        kinds = (kind for _, kind in recipe.files)
        of_cuda = [made for made, kind in zip(objects, kinds, strict=True) if kind == "cuda"]
        objects.append(f"{working}/device.o")
        lines.append(_build(objects[-1], "device_link", of_cuda))
    exports = f"-Wl,--version-script={working}/{EXPORTS}"
    lines += _rule("link", [*recipe.link, exports, _IN, "-o", _OUT, *recipe.libraries])
    lines.append(_build(f"{working}/{LIBRARY}", "link", objects))
    return "\n".join([*lines, ""])


def _rule(name: str, command: Sequence[str]) -> list[str]:
    return [f"rule {name}", f"  command = {' '.join(map(_word, command))}"]


def _word(argument: str) -> str:
    """Write one argument so that it comes through ninja and the shell as it is."""
    # Ninja quotes the paths that it puts in for $in and $out by itself.
    if isinstance(argument, _Variable):
        return argument
    return ninja_escape(shlex.quote(argument))


def _operand(path: str) -> str:
    """Return a path that compilers take neither for an option nor for a list of them."""
    return f"./{path}" if path.startswith(("-", "@")) else path


def _build(made: str, rule: str, needed: Iterable[str] = ()) -> str:
    return " ".join([f"build {ninja_escape(made)}:", rule, *map(ninja_escape, needed)])
