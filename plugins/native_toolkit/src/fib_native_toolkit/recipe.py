"""From a solution's files to a library: the commands, and having ninja run them."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from fib_native_toolkit.ninja import ninja_command, ninja_escape
from fib_native_toolkit.run import ToolOutput, check_output, run_tool
from fib_native_toolkit.tools import find_ninja
from flashinfer_bench.compile.builder import SOURCES
from flashinfer_bench.errors import BuildError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.data import Solution

OBJECTS = "objects"
"""Name of the folder, in a build's folder, for all that ninja makes."""

_FROM_SOURCES = f"../{OBJECTS}"
_FAILED_LINK = re.compile(r"^FAILED: .*\.so\s*$", re.MULTILINE)
_HINTS = (
    (
        r"undefined reference|undefined symbol",
        "Whatever is used must be in a source, or in a library that compile_options.ldflags or "
        "dependencies (cublas, cudnn, cutlass) name.",
    ),
    (
        r"cannot find -l",
        "Name the library's folder with -L in compile_options.ldflags.",
    ),
    (
        r"(fatal|catastrophic) error: .*(No such file|cannot open)",
        "Headers are looked for beside the file that includes them, in the solution's folder, and "
        "in compile_options.include_paths.",
    ),
)


class Recipe(NamedTuple):
    """The commands that make a library of a solution's sources.

    They run in the folder of the sources, so that compilers speak of files by the paths that the
    solution gives them.

    Attributes
    ----------
    files : tuple of (str, str)
        Path and kind of each file to compile, see `compiled_files`.
    compilers : mapping of str to list of str
        For each kind, what its command line begins with.
    link, libraries : list of str
        What stands before and behind the objects when linking.
    device_link : list of str
        What the command that links code for the GPU begins with; empty if there is nothing to link.
    headers : tuple of Path
        Folders with headers whose versions are in the build's key.
    """

    files: tuple[tuple[str, str], ...]
    compilers: Mapping[str, list[str]]
    link: list[str]
    libraries: list[str]
    device_link: list[str]
    headers: tuple[Path, ...] = ()


def compiled_files(solution: Solution, kinds: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the files to compile with their kinds, by path, so that their order tells nothing.

    Parameters
    ----------
    solution : Solution
        Its other files are there to be included, or read.
    kinds : mapping of str to str
        Suffixes of the files that are compiled, and as what: ``{".cu": "cuda"}``.

    Raises
    ------
    BuildError
        If the entry file is none of them.
    """
    suffixes = {source.path: PurePosixPath(source.path).suffix for source in solution.sources}
    kind_of = {path: kinds.get(s) or kinds.get(s.lower()) for path, s in suffixes.items()}
    found = {path: kind for path, kind in kind_of.items() if kind is not None}
    entry = solution.get_entry_path()
    if entry not in found:
        raise BuildError(
            f"solution {solution.name!r}: the entry file of a {solution.spec.language} solution "
            f"must be compiled, which {entry!r} is not",
            hint=f"It must end in one of {', '.join(sorted(kinds))}.",
        )
    return tuple(sorted(found.items()))


def run_recipe(
    recipe: Recipe, folder: Path, library: str, *, flags: Sequence[str] = ()
) -> ToolOutput:
    """Compile and link.

    Parameters
    ----------
    recipe : Recipe
        The commands.
    folder : Path
        With the sources in ``sources``; everything that is made is in ``objects``.
    library : str
        File name of the library.
    flags : sequence of str
        For all compilers, besides those of the recipe.

    Returns
    -------
    ToolOutput
        See `check_recipe`.

    Raises
    ------
    CapabilityError
        If there is no ninja.
    StorageError
        If the disk is full or not writable.
    """
    objects = folder / OBJECTS
    try:
        objects.mkdir(exist_ok=True)
        (objects / "build.ninja").write_text(_ninja_file(recipe, library, flags), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{objects}: cannot be written: {error}") from error
    command = ninja_command(find_ninja(), len(recipe.files))
    command += ["-v", "-f", f"{_FROM_SOURCES}/build.ninja"]
    # A build that is killed leaves its temporary files here too; they go with the folder.
    return run_tool(command, cwd=folder / SOURCES, env={"TMPDIR": _FROM_SOURCES})


def check_recipe(solution: Solution, result: ToolOutput) -> None:
    """Raise what `result` stands for, if a command of a recipe failed; see `check_output`."""
    what = "linking" if _FAILED_LINK.search(result.output) else "compiling"
    hints = (hint for pattern, hint in _HINTS if re.search(pattern, result.output))
    check_output(solution.name, what, result, hint=next(hints, None))


class _Variable(str):
    """A word that stands in the file for others, which are quoted for the shell where they are set.

    A type of its own, because a solution's flags may look the same.
    """

    __slots__ = ()


_IN, _OUT, _SOURCE, _DEPFILE = map(_Variable, ("$in", "$out", "$source", "$out.d"))


def _ninja_file(recipe: Recipe, library: str, flags: Sequence[str]) -> str:
    lines = [f"builddir = {ninja_escape(_FROM_SOURCES)}"]
    for kind, command in recipe.compilers.items():
        words = [*command, *flags, "-MD", "-MF", _DEPFILE, "-c", _SOURCE, "-o", _OUT]
        lines += _rule(kind, words)
    # Numbered, because two folders may hold files of one name.
    objects = [f"{_FROM_SOURCES}/{index}.o" for index in range(len(recipe.files))]
    for (path, kind), made in zip(recipe.files, objects, strict=True):
        lines.append(_build(made, kind))
        # As a variable, because ninja does not take all characters in the name of an input; and
        # so that compilers take it neither for an option nor for a list of them.
        lines.append(f"  source = {_word(f'./{path}' if path[0] in '-@' else path)}")
    if recipe.device_link:
        lines += _rule("device_link", [*recipe.device_link, _IN, "-o", _OUT])
        kinds = (kind for _, kind in recipe.files)
        of_cuda = [made for made, kind in zip(objects, kinds, strict=True) if kind == "cuda"]
        objects.append(f"{_FROM_SOURCES}/device.o")
        lines.append(_build(objects[-1], "device_link", of_cuda))
    lines += _rule("link", [*recipe.link, _IN, "-o", _OUT, *recipe.libraries])
    lines.append(_build(f"{_FROM_SOURCES}/{library}", "link", objects))
    return "\n".join([*lines, ""])


def _rule(name: str, command: Sequence[str]) -> list[str]:
    return [f"rule {name}", f"  command = {' '.join(map(_word, command))}"]


def _word(argument: str) -> str:
    """Write one argument so that it comes through ninja and the shell as it is."""
    # Ninja quotes the paths that it puts in for $in and $out by itself.
    if isinstance(argument, _Variable):
        return argument
    return ninja_escape(shlex.quote(argument))


def _build(made: str, rule: str, needed: Iterable[str] = ()) -> str:
    return " ".join([f"build {ninja_escape(made)}:", rule, *map(ninja_escape, needed)])
