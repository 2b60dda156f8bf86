"""Running the commands of a recipe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Optional

from fib_builder_tvmffi.ninja import EXPORTS, LIBRARY, ninja_file
from flashinfer_bench.compile.toolkit import (
    COMPILER_LOG,
    check_output,
    find_ninja,
    ninja_command,
    run_tool,
)
from flashinfer_bench.compile.toolkit.options import SOURCES
from flashinfer_bench.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

    from fib_builder_tvmffi.recipe import Recipe
    from flashinfer_bench.data import Solution

_OBJECTS = "objects"
_FROM_SOURCES = f"../{_OBJECTS}"

# Nothing but the exports can be seen from outside. Solutions in one process would otherwise share
# what they call by one name, inline variables above all; and libraries that torch has loaded would
# come before what a solution defines itself.
_EXPORTS_TEXT = "{ global: __tvm_ffi_*; local: *; };\n"

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


def run_recipe(solution: Solution, recipe: Recipe, folder: Path) -> Path:
    """Compile and link.

    Parameters
    ----------
    solution : Solution
        For messages.
    recipe : Recipe
        The commands.
    folder : Path
        With the sources in ``sources``; everything that is made is below it.

    Returns
    -------
    Path
        The library.

    Raises
    ------
    BuildError
        If a command fails; the hint depends on why.
    CapabilityError
        If there is no ninja, or the compilers cannot make code for the GPUs of this machine.
    StorageError
        If the disk is full or not writable.
    """
    objects = folder / _OBJECTS
    try:
        objects.mkdir()
        (objects / EXPORTS).write_text(_EXPORTS_TEXT, encoding="utf-8")
        text = ninja_file(recipe, _FROM_SOURCES)
        (objects / "build.ninja").write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{objects}: cannot be written: {error}") from error
    command = ninja_command(find_ninja(), len(recipe.files))
    command += ["-f", f"{_FROM_SOURCES}/build.ninja"]
    # A build that is killed leaves its temporary files here too; they go with the folder.
    own = {"TMPDIR": _FROM_SOURCES}
    result = run_tool(command, cwd=folder / SOURCES, env=own, log=folder / COMPILER_LOG)
    what = "linking" if f"/{LIBRARY}" in _failed_target(result.output) else "compiling"
    check_output(solution.name, what, result, hint=_hint(result.output))
    return objects / LIBRARY


def _failed_target(output: str) -> str:
    found = re.search(r"^FAILED: (.*)$", output, re.MULTILINE)
    return found.group(1) if found else ""


def _hint(output: str) -> Optional[str]:
    return next((hint for pattern, hint in _HINTS if re.search(pattern, output)), None)
