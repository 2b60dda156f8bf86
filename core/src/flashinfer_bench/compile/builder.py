"""The `Builder` base class, names of builds, and writing a solution's sources to disk."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import traceback
from abc import ABC, abstractmethod
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench._lazy import OldAttributes, old_names, old_parameters
from flashinfer_bench.compile.cache import cache_folder, is_complete, own_place
from flashinfer_bench.errors import BuildError as BuildError  # its location in older releases
from flashinfer_bench.errors import StorageError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flashinfer_bench.compile.runnable import Runnable
    from flashinfer_bench.data import BuildSpec, Definition, Solution, SourceFile

__getattr__ = old_names(__name__)

SOURCES = "sources"
"""Name of the folder inside a build folder that holds the solution's source files."""

_SLUG_LENGTH = 24


class Builder(OldAttributes, ABC):
    """Turns a solution into a `Runnable`.

    A builder is instantiated once per registry and may be called from several threads. Everything
    it leaves on disk belongs below `build_dir`, in a folder whose name depends on all inputs of the
    build; `build_path` returns such a folder.

    Parameters
    ----------
    package_prefix : str
        Prefix of its package names, unique to this builder. Default: the name of the class.
    build_dir_name : str
        Name of its folder in the cache, unique to this builder. Default: as above.

    Attributes
    ----------
    shares_builds : bool
        Whether builds leave files on disk that other processes use. If so, the registry lets only
        one process at a time build a given solution.
    """

    shares_builds: bool = True

    def __init__(self, package_prefix: str = "", build_dir_name: str = "") -> None:
        self.package_prefix = package_prefix or type(self).__name__.lower()
        self.build_dir_name = build_dir_name or type(self).__name__.lower()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        of_first_release = vars(cls).get("_build")
        if of_first_release is not None and "build" not in vars(cls):
            cls.build = of_first_release  # type: ignore[method-assign]
        for name in ("__init__", "can_build", "build"):
            own = vars(cls).get(name)
            if inspect.isfunction(own):
                path = f"{__name__.partition('.')[2]}:Builder.{name}"
                setattr(cls, name, old_parameters(own, path))

    @staticmethod
    def is_available() -> bool:
        """Return whether the builder can be used on this machine; True unless overridden.

        Not called for a builder that a plugin registers: its probe decides.
        """
        return True

    @abstractmethod
    def can_build(self, solution: Solution) -> bool:
        """Return whether this builder supports the solution's language and binding."""

    @abstractmethod
    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Build a solution.

        Parameters
        ----------
        definition : Definition
            The interface that the result must have.
        solution : Solution
            A solution that `can_build` accepts.

        Returns
        -------
        Runnable
            The built solution; its cleaner releases all resources.

        Raises
        ------
        BuildError
            If the build fails. The registry keeps the error and raises it again for the same build.
        StorageError
            If the disk is full or not writable; the next call retries.
        """

    def compile(self, definition: Definition, solution: Solution) -> object:
        """Do the part of a build that other processes can reuse, without loading or calling it.

        This lets solutions be compiled in advance and in parallel while another solution occupies
        the device. The default does nothing and leaves everything to `build`. The return value is
        specific to the builder.

        Parameters
        ----------
        definition : Definition
            The interface that the result must have.
        solution : Solution
            A solution that `can_build` accepts.

        Raises
        ------
        BuildError
            If compilation fails.
        StorageError
            If the disk is full or not writable.
        """
        return None

    @property
    def build_dir(self) -> Path:
        """The builder's folder in the cache."""
        return cache_folder(self.build_dir_name)

    def package_name(self, definition: Definition, solution: Solution, *extra: object) -> str:
        """Return a name for the build; `extra` lists further inputs that the result depends on."""
        digest = content_digest(definition, solution, self.package_prefix, *extra)
        return package_name(self.package_prefix, solution, digest)

    def build_path(self, definition: Definition, solution: Solution, *extra: object) -> Path:
        """Return the folder for the build, which may not exist yet. See `toolkit.build_once`."""
        digest = content_digest(definition, solution, self.package_prefix, *extra)
        folder = self.build_dir / f"{self.package_prefix}_{digest}"
        return folder if is_complete(folder) else own_place(folder)


def declared_style(spec: BuildSpec) -> Optional[bool]:
    """Return `destination_passing_style` if the solution states it, else None.

    In a file that omits the field it reads as True, the default of the format. Python and Triton
    solutions that omit it usually return their values, however, so None means that the signature
    decides; see `choose_style`.
    """
    stated = "destination_passing_style" in spec.model_fields_set
    return spec.destination_passing_style if stated else None


def content_digest(definition: Definition, solution: Solution, *extra: object) -> str:
    """Return a digest of everything that a build depends on.

    Parameters
    ----------
    definition : Definition
        Its name, axes, inputs, outputs and constraints are hashed; descriptions and tags are not.
    solution : Solution
        Its sources and build specification are hashed, and whether it states its calling
        convention. Its name, author and description are not.
    *extra : object
        Further values to hash, such as the builder, a compiler's version, or a GPU architecture.

    Returns
    -------
    str
        The full SHA-256 as 64 hexadecimal digits.
    """
    parts = {
        "definition": {
            "name": definition.name,
            "axes": {name: definition.const_axes.get(name) for name in definition.axes},
            # Lists, because argument order matters.
            "inputs": [(name, spec.shape, spec.dtype) for name, spec in definition.inputs.items()],
            "outputs": [
                (name, spec.shape, spec.dtype) for name, spec in definition.outputs.items()
            ],
            "constraints": list(definition.constraints),
        },
        "solution": solution.hash(),
        "style": declared_style(solution.spec),
        "extra": [str(part) for part in extra],
    }
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def package_name(prefix: str, solution: Solution, digest: str) -> str:
    """Return a name for a build that is a valid Python identifier and a valid file name.

    Parameters
    ----------
    prefix : str
        Prefix of all names of the builder.
    solution : Solution
        Its name is included, shortened, so that a person can recognise the build.
    digest : str
        Makes the name unique; see `content_digest`.
    """
    slug = re.sub(r"[^a-z0-9]+", "_", solution.name.lower()).strip("_")[:_SLUG_LENGTH]
    name = "_".join(part for part in (prefix, slug.strip("_"), digest) if part)
    return name if name.isidentifier() else f"_{name}"


def check_relative_path(path: str) -> PurePosixPath:
    """Return `path` if it stays inside any folder that it is joined to, on every platform.

    Parameters
    ----------
    path : str
        A path with forward slashes. ``./`` and doubled slashes are dropped.

    Returns
    -------
    PurePosixPath
        Has at least one component and no ``..``.

    Raises
    ------
    UnsafePathError
        If the path is empty or absolute, or has ``..``, a backslash, a drive, a control character,
        or a component of more than 255 bytes.
    """
    relative = PurePosixPath(path)
    names = relative.parts
    objections = {
        "names no file": not names,
        "is absolute": path.startswith("/"),
        "leaves its folder": ".." in names,
        "has a backslash or a colon, which other systems read as a folder or drive": (
            "\\" in path or ":" in path
        ),
        "has a control character": any(ord(char) < 32 or ord(char) == 127 for char in path),
        "is not valid Unicode": any(0xD800 <= ord(char) <= 0xDFFF for char in path),
        "has a name of more than 255 bytes": any(
            len(name.encode("utf-8", "surrogatepass")) > 255 for name in names
        ),
    }
    for reason, holds in objections.items():
        if holds:
            raise UnsafePathError(f"source path {path[:300]!r} {reason}")
    return relative


def write_sources(root: Path, sources: Iterable[SourceFile]) -> list[Path]:
    """Write `sources` below `root`.

    Parameters
    ----------
    root : Path
        The folder; created if it does not exist.
    sources : iterable of SourceFile
        Paths relative to `root`, and contents, which are written as UTF-8, byte for byte.

    Returns
    -------
    list of Path
        The written files, in the order of `sources`.

    Raises
    ------
    UnsafePathError
        If a path could leave `root`, goes through a symbolic link, or exists already. All paths are
        checked before the first file is written.
    StorageError
        If a file cannot be written.
    """
    checked = [(check_relative_path(source.path), source) for source in sources]
    written = []
    try:
        root.mkdir(parents=True, exist_ok=True)
        for relative, source in checked:
            path = root / relative
            if not path.parent.resolve().is_relative_to(root.resolve()):
                raise UnsafePathError(f"source path {source.path!r} leads through a symbolic link")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as stream:  # "x" does not follow links either
                stream.write(source.content.encode("utf-8", "surrogatepass"))
            written.append(path)
    except (FileExistsError, NotADirectoryError) as error:
        name = Path(str(error.filename)).name
        raise UnsafePathError(f"two sources have the same path: {name!r} already exists") from None
    except OSError as error:
        raise StorageError(f"{root}: sources cannot be written: {error}") from error
    return written


# ------------------------------------------ from compiler output or a traceback to a `BuildError`

_LONGEST_HEADLINE = 600
_MOST_CAUSES = 100

# Prefixes that compilers, assemblers and linkers put before an error, anywhere in the line.
_DIAGNOSTIC = re.compile(
    # file:12: file(12): (.text+0x5): file.o:file.cpp:function run:
    r"^(?:[^|]*?(?::\d+|\(\d+\)|\(\.[\w.]+\+0x[0-9a-f]+\)|:function [^:]+))\s?:"
    r".*?\b(?:error\b|undefined reference|multiple definition|catastrophic)"
    r"|^[^\s:|]+: (?:fatal |internal compiler )?(?:error|fatal)\b"  # c++: error: ld.lld: error:
    r"|^(?:nvcc|ptxas|nvlink|fatbinary|cudafe\+\+|cicc)\s+(?:.*,.*;\s*)?(?:fatal|error)\s*:"
    r"|^\S*\bld(?:\.\w+)?: (?!.*(?:warning:|note:|in function|skipping incompatible|DWARF error))",
    re.IGNORECASE,
)
_LOOKS_LIKE_ONE = re.compile(
    r"\b(fatal )?error\b\s*(C\d+|#\d+(-D)?|\[\w+\])?\s*:|\w+Error\b|\w+Exception\b"
    r"|undefined (reference|symbol)|: not found|No such file or directory|cannot find -l",
    re.IGNORECASE,
)
_WARNING = re.compile(r"(?:^|[:)] )(?:warning|note|remark)(?: #[\w-]+)?\s*:", re.IGNORECASE)
# Summaries that compiler drivers print after the failing program has printed the actual error.
_SUMMARY = re.compile(r"^collect2: error: ld returned|^clang\S*: error: linker command failed")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")
# Commands that ninja prints when they have run or failed, and its own messages.
_NINJA = re.compile(
    r"^[ \t]*(\[\d+/\d+\] .*|FAILED: .*\n.*"
    r"|ninja: (build stopped|Entering directory|no work to do).*)$",
    re.MULTILINE,
)


def first_error(log: str) -> str:
    """Return the first line of a compiler's output that reports an error.

    Lines that compilers mark as errors are preferred to lines that merely look like errors. Command
    lines and failure messages printed by ninja are ignored.

    Parameters
    ----------
    log : str
        The complete output.

    Returns
    -------
    str
        The first line that looks like an error, else the last non-empty line, cut to 600
        characters.
    """
    spoken = _NINJA.sub("", _COLOUR.sub("", log).replace("\r", ""))
    lines = [line.strip() for line in spoken.splitlines() if line.strip()]
    for pattern in (_DIAGNOSTIC, _LOOKS_LIKE_ONE):
        for line in lines:
            warning = _WARNING.search(line)
            # An earlier line that only quotes the word "error" must not win.
            quoted = warning and not re.search("error", line[: warning.start()], re.IGNORECASE)
            if pattern.search(line) and not _SUMMARY.search(line) and not quoted:
                return shorten(line)
    return shorten(lines[-1] if lines else "")


def shorten(text: str, limit: int = _LONGEST_HEADLINE) -> str:
    """Return `text` on one line, cut to `limit` characters, with a mark at the cut."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def build_failed(solution: str, what: str, log: str, *, hint: Optional[str] = None) -> BuildError:
    """Return a `BuildError` that starts with the first error in `log` and carries the whole log.

    Parameters
    ----------
    solution : str
        Name of the solution.
    what : str
        The step that failed: ``"nvcc"``, ``"linking"``, …
    log : str
        Everything that the step printed.
    hint : str, optional
        What the user can do next.
    """
    message = f"solution {solution!r}: {what} failed: {first_error(log) or 'no message'}"
    return BuildError(message, hint=hint, log=log)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and the chain of its explicit causes (``raise … from``), outermost first."""
    cause: Optional[BaseException] = error
    for _ in range(_MOST_CAUSES):  # the chain may be circular
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


def describe_exception(error: BaseException, root: Path) -> tuple[str, str]:
    """Return where and why code below `root` raised an exception.

    Parameters
    ----------
    error : BaseException
        The exception.
    root : Path
        Folder of the code; file names are given relative to it.

    Returns
    -------
    headline : str
        ``kernel.py:12: NameError: name 'x' is not defined``.
    log : str
        The traceback, starting at the first frame of that code.
    """
    place, first, frame = "", None, error.__traceback__
    try:
        while frame is not None:
            name = _relative(frame.tb_frame.f_code.co_filename, root)
            if name:
                place, first = f"{name}:{frame.tb_lineno}", first or frame
            frame = frame.tb_next
        if isinstance(error, SyntaxError) and error.filename and error.lineno:
            name = _relative(error.filename, root)
            place = f"{name}:{error.lineno}" if name else place
        reason = traceback.format_exception_only(type(error), error)[-1].strip()
        log = "".join(traceback.format_exception(type(error), error, first))
    except (Exception, SystemExit):  # noqa: BLE001 - candidate code defines the exception
        return f"{type(error).__name__}, which cannot be shown", ""
    headline = f"{place}: {reason}" if place else reason
    return shorten(headline), log.replace(f"{root}/", "")


def _relative(filename: str, root: Path) -> str:
    try:
        return Path(filename).relative_to(root).as_posix()
    except ValueError:
        return ""
