"""Create and run the commands that compile a solution's files to a library."""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, Optional

from fib_native_toolkit import environment
from fib_native_toolkit.cuda import CudaTools, host_compiler_flags
from fib_native_toolkit.dependencies import find_dependencies
from fib_native_toolkit.fingerprint import cuda_fingerprint, host_fingerprint
from fib_native_toolkit.options import checked_options
from fib_native_toolkit.run import COMPILER_LOG, check_output, run_tool
from fib_native_toolkit.tools import find_cc, find_cxx
from flashinfer_bench.compile.builder import SOURCES
from flashinfer_bench.compile.machine import in_threads
from flashinfer_bench.errors import BuildError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.data import Solution

OBJECTS = "objects"
"""Name of the output folder inside a build's folder."""

_FROM_SOURCES = f"../{OBJECTS}"
_SETS_STANDARD = re.compile(r"--?std(=|$)")
_SETS_CXX_STANDARD = re.compile(r"-std=(c|gnu)\+\+")
# When passed to the compile step, these also name a library to link.
_ALSO_FOR_LINKING = ("-fopenmp", "-pthread", "-flto", "-fsanitize")
_HINTS = (
    (
        r"undefined reference|undefined symbol",
        "Define it in a source, or name its library in compile_options.ldflags or dependencies "
        "(cublas, cudnn, cutlass).",
    ),
    (
        r"cannot find -l",
        "Name the library's folder with -L in compile_options.ldflags.",
    ),
    (
        r"Permission denied",
        "Compilers read the system's folders, the solution's, and those named by CPATH (headers) "
        "and LIBRARY_PATH (libraries).",
    ),
    (
        r"(fatal|catastrophic) error: .*(No such file|cannot open)",
        "Headers are searched in the folder of the including file, in the solution's folder, and "
        "in compile_options.include_paths.",
    ),
)


class Recipe(NamedTuple):
    """The commands that make a library from a solution's sources.

    They run in the source folder, so that compilers report files by the paths in the solution.

    Attributes
    ----------
    files : tuple of (str, str)
        Path and kind of each file to compile, see `compiled_files`.
    compilers : mapping of str to list of str
        For each kind, the start of its command line.
    link, libraries : list of str
        Arguments before and after the objects in the link command.
    device_link : list of str
        Start of the command that links device code; empty if none is needed.
    headers : tuple of Path
        Header folders whose versions are in the build's key.
    """

    files: tuple[tuple[str, str], ...]
    compilers: Mapping[str, list[str]]
    link: list[str]
    libraries: list[str]
    device_link: list[str]
    headers: tuple[Path, ...] = ()


def compiled_files(solution: Solution, kinds: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the files to compile and their kinds, sorted by path.

    Parameters
    ----------
    solution : Solution
        Its other files can be included or read.
    kinds : mapping of str to str
        Suffixes of the files that are compiled, and their kinds: ``{".cu": "cuda"}``.

    Raises
    ------
    BuildError
        If the entry file is not among them.
    """
    suffixes = {source.path: PurePosixPath(source.path).suffix for source in solution.sources}
    kind_of = {path: kinds.get(s) or kinds.get(s.lower()) for path, s in suffixes.items()}
    found = {path: kind for path, kind in kind_of.items() if kind is not None}
    entry = solution.get_entry_path()
    if entry not in found:
        raise BuildError(
            f"solution {solution.name!r}: the entry file of a {solution.spec.language} solution "
            f"must be compilable, and {entry!r} is not",
            hint=f"It must end in one of {', '.join(sorted(kinds))}.",
        )
    return tuple(sorted(found.items()))


def make_recipe(
    solution: Solution,
    files: tuple[tuple[str, str], ...],
    cuda: Optional[CudaTools],
    *,
    headers: Sequence[Path],
    last_headers: Sequence[Path] = (),
    standard: str,
    flags: Sequence[str],
    nvcc_flags: Sequence[str] = (),
    dependencies: Sequence[str] = (),
    link: Sequence[str] = (),
    libraries: Sequence[str] = (),
) -> tuple[Recipe, dict[str, str]]:
    """Determine how to compile a solution here; runs no command except ``--version``.

    The solution's own flags come last, so they take precedence.

    Parameters
    ----------
    solution : Solution
        The solution with its options.
    files : tuple of (str, str)
        The files to compile, see `compiled_files`: ``c``, ``cpp`` or ``cuda``.
    cuda : CudaTools, optional
        The toolkit, if the solution needs it.
    headers, last_headers : sequence of Path
        Header folders without warnings, searched before and after the toolkit's; their versions
        must be in the caller's key.
    standard : str
        The C++ standard, unless the solution selects one: ``c++17``.
    flags, nvcc_flags : sequence of str
        Flags for all compilers, and for nvcc.
    dependencies : sequence of str
        Native libraries, see `find_dependencies`.
    link, libraries : sequence of str
        Linker arguments before and after the solution's flags.

    Returns
    -------
    recipe : Recipe
        The commands.
    key : dict of str to str
        Everything that the result depends on besides the solution, `headers` and `libraries`.

    Raises
    ------
    CapabilityError
        If this machine lacks a tool or a library.
    """
    options, cxx = checked_options(solution), find_cxx()
    found = find_dependencies(dependencies)[0]
    kinds = {kind for _, kind in files}
    headers = [*headers, *(cuda.include_paths if cuda else ()), *last_headers]
    # The solution's own folders; then system folders, whose headers cause no warnings.
    includes = [f"-I{path}" for path in (".", *options.include_paths)]
    includes += [flag for dependency in found for flag in dependency.include_flags()]
    includes += [part for path in headers for part in ("-isystem", str(path))]
    # By default GCC makes all libraries of a process share variables of inline functions and
    # templates with the same name, so that two versions of a kernel would use the same buffers.
    private = ["-fno-gnu-unique"] if "Free Software Foundation" in cxx.version else []
    of_cxx = [*flags, *_defaults(standard, options.cflags), "-fPIC", *private, *options.cflags]
    compilers = {"cpp": [*cxx.command, *of_cxx, *includes]}
    used = [*of_cxx, *link, *options.ldflags]
    key = {"dependencies": "; ".join(dependency.key for dependency in found)}
    device_link: list[str] = []
    of_cuda: list[str] = []
    if "c" in kinds:
        cc = find_cc()
        # A C++ standard among the flags does not apply to these files.
        of_c = [flag for flag in options.cflags if not _SETS_CXX_STANDARD.match(flag)]
        compilers["c"] = [*cc.command, *flags, "-O3", "-fPIC", *of_c, *includes]
        key["c_compiler"] = " ".join([*cc.arguments, cc.version])
    if cuda is not None:
        own = options.cuda_cflags
        for_host = [part for flag in ("-fPIC", *private) for part in ("-Xcompiler", flag)]
        of_nvcc = [*flags, *nvcc_flags, *_defaults(standard, own), *for_host]
        used += [*of_nvcc, *own]
        chosen = [*of_nvcc, *cuda.code_flags, *host_compiler_flags(cxx), *own]
        compilers["cuda"] = [*cuda.nvcc.command, *chosen, *includes]
        if cuda.relocatable:
            device_link = [*cuda.nvcc.command, "-dlink", *chosen, *includes]
        of_cuda = cuda.link_flags
        key |= cuda_fingerprint(cuda.nvcc, cuda.architectures, own)
        key["cuda_home"] = str(cuda.home)  # the rpath refers to it
    recipe = Recipe(
        files=files,
        compilers={kind: compilers[kind] for kind in sorted(kinds)},
        link=[*cxx.command, "-shared", *link],
        libraries=[
            *(flag for flag in options.cflags if flag.startswith(_ALSO_FOR_LINKING)),
            *options.ldflags,  # first: static libraries may need the others
            *(flag for dependency in found for flag in dependency.link_flags()),
            *of_cuda,
            *libraries,
        ],
        device_link=device_link,
        headers=tuple(headers),
    )
    return recipe, key | host_fingerprint(cxx, used)


def _defaults(standard: str, own: Sequence[str]) -> list[str]:
    found = [] if any(map(_SETS_STANDARD.match, own)) else [f"-std={standard}"]
    return found if any(flag.startswith("-O") for flag in own) else [*found, "-O3"]


def run_recipe(
    solution: Solution, recipe: Recipe, folder: Path, library: str, *, flags: Sequence[str] = ()
) -> str:
    """Compile up to ``MAX_JOBS`` files at once (default: one per core), and link.

    Parameters
    ----------
    solution : Solution
        The solution to compile.
    recipe : Recipe
        The commands.
    folder : Path
        Has the sources in ``sources``; all output goes to ``objects``.
    library : str
        File name of the library.
    flags : sequence of str
        Flags for all compilers, in addition to the recipe.

    Returns
    -------
    str
        Path of the library, relative to `folder`.

    Raises
    ------
    BuildError, CapabilityError, StorageError
        If a command fails; see `check_output`. The other files are compiled before it is raised.
    """
    objects, log = folder / OBJECTS, folder / COMPILER_LOG
    try:
        objects.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"{objects}: cannot be written: {error}") from error

    def run(what: str, *command: str) -> None:
        # Temporary files of a killed build are also here, and are removed with the folder.
        result = run_tool(command, cwd=folder / SOURCES, env={"TMPDIR": _FROM_SOURCES}, log=log)
        hints = (hint for pattern, hint in _HINTS if re.search(pattern, result.output))
        check_output(solution.name, what, result, hint=next(hints, None))

    # Compilers must not delay the end of the process.
    def compile_one(index: int) -> Optional[BaseException]:
        path, kind = recipe.files[index]
        # Numbered, because different folders may contain files of the same name.
        made = f"{_FROM_SOURCES}/{index}.o"
        # Prefix that prevents compilers from reading the name as an option or option file.
        source = f"./{path}" if path[0] in "-@" else path
        dependencies = ("-MD", "-MF", f"{made}.d")
        command = (*recipe.compilers[kind], *flags, *dependencies, "-c", source, "-o", made)
        try:
            run("compiling", *command)
        except BaseException as error:  # noqa: BLE001 - raised after waiting for all
            return error
        return None

    jobs = environment.max_jobs() or os.cpu_count() or 1
    errors = dict(in_threads(compile_one, range(len(recipe.files)), jobs))
    for index in sorted(errors):
        if (first := errors[index]) is not None:
            raise first
    made = [f"{_FROM_SOURCES}/{index}.o" for index in range(len(recipe.files))]
    if recipe.device_link:
        of_cuda = [made[i] for i, (_, kind) in enumerate(recipe.files) if kind == "cuda"]
        made.append(f"{_FROM_SOURCES}/device.o")
        run("linking", *recipe.device_link, *of_cuda, "-o", made[-1])
    run("linking", *recipe.link, *made, "-o", f"{_FROM_SOURCES}/{library}", *recipe.libraries)
    return f"{OBJECTS}/{library}"
