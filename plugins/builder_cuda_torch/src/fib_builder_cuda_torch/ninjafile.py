"""Writing the file that tells ninja what to compile.

torch has a writer of its own, but that one gives objects of equal file names the same name, has the
shell expand what is in flags, and takes its settings from the process's environment.
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from fib_builder_cuda_torch.scan import MODULE_NAME, is_cuda

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fib_builder_cuda_torch.recipe import Recipe

BUILD_FILE = "build.ninja"


def library_name(name: str) -> str:
    """Return the file name of the library for a module that is called `name`."""
    return f"{name}.so"


def ninja_file(recipe: Recipe, name: str) -> str:
    """Return the text of the build file, for ninja to run in the build's folder.

    Parameters
    ----------
    recipe : Recipe
        What to run.
    name : str
        Name of the module, and of the operators' namespace.
    """
    objects = [_object_name(index, path) for index, path in enumerate(recipe.sources)]
    lines = ["ninja_required_version = 1.5"]
    called = f"-D{MODULE_NAME}={name}"
    lines += _compile_rule("cxx", [*recipe.cxx.command, called, *recipe.cxx_flags, "-MD"])
    if recipe.nvcc is not None:
        lines += _compile_rule("nvcc", [*recipe.nvcc.command, called, *recipe.nvcc_flags, "-MD"])
    link = f"{_shell(recipe.cxx.command)} $in {_shell(recipe.link_flags)} -o $out"
    lines += ["rule link", f"  command = {link}"]
    for path, made in zip(recipe.sources, objects, strict=True):
        # As a variable, because the name of an input may not have all characters.
        lines.append(f"build {made}: {'nvcc' if is_cuda(path) else 'cxx'}")
        lines.append(f"  source = {_shell([f'sources/{path}'])}")
    lines.append(f"build {library_name(name)}: link {' '.join(objects)}")
    return "\n".join(lines) + "\n"


def _object_name(index: int, path: str) -> str:
    """Return a name of its own for each source: two folders may have files of the same name."""
    stem = re.sub(r"\W", "_", PurePosixPath(path).stem, flags=re.ASCII)
    return f"objects/{index}_{stem}.o"


def _compile_rule(name: str, command: Iterable[str]) -> list[str]:
    return [
        f"rule {name}",
        f"  command = {_shell(command)} -MF $out.d -c $source -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
    ]


def _shell(words: Iterable[str]) -> str:
    """Return words as one line for the shell, to which ninja hands each command."""
    return shlex.join(words).replace("$", "$$")
