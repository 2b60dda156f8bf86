"""The builder for solutions written in C."""

from __future__ import annotations

import ctypes
import sys
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from flashinfer_bench.compile.toolkit import (
    COMPILER_LOG,
    BuildPlan,
    CompiledBuilder,
    LoadedLibrary,
    check_output,
    checked_options,
    declared_style,
    find_cc,
    host_fingerprint,
    run_tool,
)
from flashinfer_bench.errors import BuildError

from fib_builder_example.call import CFunction
from fib_builder_example.prototype import (
    definition_check,
    header,
    is_identifier,
    parameters_of,
    prototype,
)

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.compile.toolkit import Artefact, Tool
    from flashinfer_bench.data import CompileOptions, Definition, Solution

    from fib_builder_example.prototype import Parameter

# All relative to the folder of a build. The toolkit has put the solution's files into the first.
_SOURCES = PurePosixPath("sources")
_LIBRARY = "solution.so"
_HEADER = "entry.h"
_CHECK = "entry.c"

_COMPILE = (
    "-std=gnu99",
    "-O2",
    "-fPIC",
    # Calling an undeclared function would pass arguments of the wrong types.
    "-Werror=implicit-function-declaration",
    # Records which headers were read: the build is repeated when one has changed.
    "-MD",
    *("-include", _HEADER),
)
_LINK = (
    "-shared",
    # The library's own functions take precedence, for example a "times" over that of libc.
    *(("-Wl,-Bsymbolic",) if sys.platform == "linux" else ()),
    # An undefined function must be a link error, not an error of the first call.
    *(("-Wl,-z,defs",) if sys.platform == "linux" else ()),
)


class Settings(NamedTuple):
    """The tools and flags of a build."""

    compiler: Tool
    options: CompileOptions
    symbol: str
    parameters: tuple[Parameter, ...]


class ExampleBuilder(CompiledBuilder):
    """Compiles the C files of a solution into one library, and calls it through ctypes."""

    build_type = "example"
    keep = (_HEADER,)

    def __init__(self) -> None:
        # Prefix of its package names, and name of its folder in the cache.
        super().__init__("fib_example", "example")

    def can_build(self, solution: Solution) -> bool:
        """Return whether the solution's language is C."""
        return solution.spec.language == "c"

    def plan(self, definition: Definition, solution: Solution) -> BuildPlan:
        """Find the compiler, and reject solutions that can never be built.

        Raises
        ------
        BuildError
            If the solution returns its outputs, its entry point is not a C function in a ``.c``
            file, or a compile option is not allowed.
        CapabilityError
            If there is no C compiler.
        """
        _check(solution)
        compiler = find_cc()
        options = checked_options(solution)
        settings = Settings(
            compiler, options, solution.get_entry_symbol(), parameters_of(definition)
        )
        flags = [*_COMPILE, *options.cflags, *_LINK, *options.ldflags]
        return BuildPlan(key=host_fingerprint(compiler, flags), settings=settings)

    def compile_into(
        self, definition: Definition, solution: Solution, plan: BuildPlan, folder: Path
    ) -> str:
        """Compile and link all ``.c`` files; other files of the solution can be included.

        Raises
        ------
        BuildError
            If the compiler or the linker fails. Its log has their complete output.
        """
        compiler, options, symbol, parameters = plan.settings
        (folder / _HEADER).write_text(header(symbol, parameters, definition.const_axes))
        (folder / _CHECK).write_text(definition_check(symbol))
        hint = f"the entry point is called as: {prototype(symbol, parameters)}"

        def run(what: str, *arguments: str) -> None:
            command = [*compiler.command, *arguments]
            # With relative paths, because the folder gets its final name later.
            result = run_tool(command, cwd=folder, log=folder / COMPILER_LOG)
            check_output(solution.name, what, result, hint=hint)

        # Joining an absolute path leaves it unchanged.
        includes = (f"-I{_SOURCES / path}" for path in options.include_paths)
        flags = [*_COMPILE, *options.cflags, *includes]
        files = [_SOURCES / file.path for file in solution.sources if file.path.endswith(".c")]
        objects = [f"{index}.o" for index in range(len(files) + 1)]
        for file, compiled in zip([*files, _CHECK], objects, strict=True):
            run("compiling", *flags, "-c", str(file), "-o", compiled)
        run("linking", *_LINK, *objects, "-o", _LIBRARY, *options.ldflags, "-lm")
        return _LIBRARY

    def load(self, definition: Definition, solution: Solution, artefact: Artefact) -> LoadedLibrary:
        """Load the library, which runs code of the solution from here on.

        Raises
        ------
        BuildError
            If the system's loader rejects it.
        """
        symbol = solution.get_entry_symbol()
        try:
            function = ctypes.CDLL(str(artefact.library))[symbol]
        except (OSError, AttributeError) as error:
            raise BuildError(f"solution {solution.name!r} cannot be loaded: {error}") from error
        parameters = parameters_of(definition)
        return LoadedLibrary(
            function=CFunction(function, parameters, definition),
            destination_passing_style=True,
            misc={"symbol": symbol, "prototype": prototype(symbol, parameters)},
        )


def _check(solution: Solution) -> None:
    path, symbol = solution.get_entry_path(), solution.get_entry_symbol()
    reason = hint = None
    if declared_style(solution.spec) is False:
        reason = "a C solution gets its outputs as arguments"
        hint = "leave destination_passing_style out, or set it to true"
    elif not path.endswith(".c"):
        reason = f"the entry file of a C solution must be a .c file, not {path!r}"
    elif not is_identifier(symbol):
        reason = f"{symbol!r} cannot be the name of a C function"
    if reason:
        raise BuildError(f"solution {solution.name!r}: {reason}", hint=hint)
