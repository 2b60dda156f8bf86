"""What a builder is, how its builds are named, and how it writes a solution's sources."""

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
from flashinfer_bench.errors import BuildError as BuildError  # its place in older releases
from flashinfer_bench.errors import StorageError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flashinfer_bench.compile.runnable import Runnable
    from flashinfer_bench.data import BuildSpec, Definition, Solution, SourceFile

__getattr__ = old_names(__name__)

SOURCES = "sources"
"""Name of the folder, in a build's folder, that the solution's files are written to."""

_SLUG_LENGTH = 24


class Builder(OldAttributes, ABC):
    """Turns a solution into a `Runnable`.

    A builder is instantiated once for each registry and may be called from several threads.
    Whatever it leaves on disk belongs below `build_dir`, in a folder named after all that the
    result depends on: `build_path` gives one.

    Parameters
    ----------
    package_prefix : str
        Begins the names of all its packages; no other builder uses it. Default: the name of the
        class.
    build_dir_name : str
        Name of its folder in the cache; no other builder uses it. Default: as above.

    Attributes
    ----------
    shares_builds : bool
        Whether builds leave something on disk that other processes use. If so, the registry lets
        only one process at a time build one solution.
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
        """Return whether the builder can be used here; without an override, it can.

        A builder that is registered by a plugin says this by its probe, and is not asked.
        """
        return True

    @abstractmethod
    def can_build(self, solution: Solution) -> bool:
        """Return whether this builder handles solutions of that language and binding."""

    @abstractmethod
    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Build a solution.

        Parameters
        ----------
        definition : Definition
            The interface that the result must have.
        solution : Solution
            One that `can_build` accepts.

        Returns
        -------
        Runnable
            The result. It owns whatever its cleaner releases.

        Raises
        ------
        BuildError
            If it cannot be built. The error is kept, and raised again if the same is to be built.
        StorageError
            If the disk is full or not writable; the next call tries again.
        """

    def compile(self, definition: Definition, solution: Solution) -> object:
        """Do the part of a build that other processes can use; neither load nor call the solution.

        So solutions can be compiled ahead, many at a time, while a device is busy with another. The
        default does nothing: then everything is left to `build`. What it returns is for those who
        know the builder.

        Parameters
        ----------
        definition : Definition
            The interface that the result must have.
        solution : Solution
            One that `can_build` accepts.

        Raises
        ------
        BuildError
            If it cannot be compiled.
        StorageError
            If the disk is full or not writable.
        """
        return None

    @property
    def build_dir(self) -> Path:
        """The builder's folder in the cache."""
        return cache_folder(self.build_dir_name)

    def package_name(self, definition: Definition, solution: Solution, *extra: object) -> str:
        """Return a name for the build; `extra` is whatever else the result depends on."""
        digest = content_digest(definition, solution, self.package_prefix, *extra)
        return package_name(self.package_prefix, solution, digest)

    def build_path(self, definition: Definition, solution: Solution, *extra: object) -> Path:
        """Return the folder for the build; it may not exist yet. See `toolkit.build_once`."""
        digest = content_digest(definition, solution, self.package_prefix, *extra)
        folder = self.build_dir / f"{self.package_prefix}_{digest}"
        return folder if is_complete(folder) else own_place(folder)


def declared_style(spec: BuildSpec) -> Optional[bool]:
    """Return `destination_passing_style` where the solution states it, else None.

    A file that leaves the field out reads as True, the default of the format. Yet the Python and
    Triton solutions that leave it out return their values: for them None means "look at the
    signature", see `choose_style`.
    """
    stated = "destination_passing_style" in spec.model_fields_set
    return spec.destination_passing_style if stated else None


def content_digest(definition: Definition, solution: Solution, *extra: object) -> str:
    """Return a digest of all that a build depends on.

    Parameters
    ----------
    definition : Definition
        Its name, axes, inputs, outputs and constraints count; descriptions and tags do not.
    solution : Solution
        Its sources and build specification count, and whether it states its calling convention.
        Its name, author and description do not.
    *extra : object
        Whatever else counts, such as the builder, a compiler's version, or a GPU architecture.

    Returns
    -------
    str
        64 hexadecimal digits: a SHA-256, never shortened.
    """
    parts = {
        "definition": {
            "name": definition.name,
            "axes": {name: getattr(axis, "value", None) for name, axis in definition.axes.items()},
            # Lists, because the order of arguments counts.
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
        What the builder puts in front of all its names.
    solution : Solution
        Its name is kept, shortened, so that a person can tell builds apart.
    digest : str
        What tells them apart for certain; see `content_digest`.
    """
    slug = re.sub(r"[^a-z0-9]+", "_", solution.name.lower()).strip("_")[:_SLUG_LENGTH]
    name = "_".join(part for part in (prefix, slug.strip("_"), digest) if part)
    return name if name.isidentifier() else f"_{name}"


def check_relative_path(path: str) -> PurePosixPath:
    """Return `path` if it stays within any folder that it is joined to, on every platform.

    Parameters
    ----------
    path : str
        A path with forward slashes. ``./`` and doubled slashes are dropped.

    Returns
    -------
    PurePosixPath
        At least one name; no ``..``.

    Raises
    ------
    UnsafePathError
        If it is empty or absolute, has ``..``, a backslash, a drive, a control character, or a name
        of more than 255 bytes.
    """
    relative = PurePosixPath(path)
    names = relative.parts
    objections = {
        "names no file": not names,
        "is absolute": path.startswith("/"),
        "leaves its folder": ".." in names,
        "has a backslash or a colon, which other systems take for a folder or drive": (
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
        The folder; it is made if it is missing.
    sources : iterable of SourceFile
        Paths relative to `root`, and contents. Contents are written as UTF-8, byte for byte.

    Returns
    -------
    list of Path
        The files, in the order of `sources`.

    Raises
    ------
    UnsafePathError
        If a path could leave `root`, leads through a symbolic link, or is there already. All
        paths are looked at before the first file is written.
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
            with path.open("xb") as stream:  # which follows no link either
                stream.write(source.content.encode("utf-8", "surrogatepass"))
            written.append(path)
    except (FileExistsError, NotADirectoryError) as error:
        name = Path(str(error.filename)).name
        raise UnsafePathError(f"two sources have the same path: {name!r} already exists") from None
    except OSError as error:
        raise StorageError(f"{root}: sources cannot be written: {error}") from error
    return written


# ------------------------------------- from a compiler's output, or a traceback, to a `BuildError`

_LONGEST_HEADLINE = 600
_MOST_CAUSES = 100

# What compilers, assemblers and linkers put in front of an error, wherever it stands in the line.
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
# What drivers say about the programs that they have started; those said more.
_SUMMARY = re.compile(r"^collect2: error: ld returned|^clang\S*: error: linker command failed")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")
# Commands, which ninja prints when they have run or failed, and what it says itself.
_NINJA = re.compile(
    r"^[ \t]*(\[\d+/\d+\] .*|FAILED: .*\n.*"
    r"|ninja: (build stopped|Entering directory|no work to do).*)$",
    re.MULTILINE,
)


def first_error(log: str) -> str:
    """Return the line of a compiler's output that says what went wrong first.

    What compilers mark as an error goes before what merely looks like one. Command lines that
    ninja prints are no errors, nor is its word that something failed.

    Parameters
    ----------
    log : str
        The whole output.

    Returns
    -------
    str
        The first line that looks like an error, else the last one that is not empty, shortened to
        600 characters.
    """
    spoken = _NINJA.sub("", _COLOUR.sub("", log).replace("\r", ""))
    lines = [line.strip() for line in spoken.splitlines() if line.strip()]
    for pattern in (_DIAGNOSTIC, _LOOKS_LIKE_ONE):
        for line in lines:
            warning = _WARNING.search(line)
            # One that quotes the word "error", and so comes before it, is none.
            quoted = warning and not re.search("error", line[: warning.start()], re.IGNORECASE)
            if pattern.search(line) and not _SUMMARY.search(line) and not quoted:
                return shorten(line)
    return shorten(lines[-1] if lines else "")


def shorten(text: str, limit: int = _LONGEST_HEADLINE) -> str:
    """Return `text` cut to `limit` characters, in one piece with a mark where it was cut."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def build_failed(solution: str, what: str, log: str, *, hint: Optional[str] = None) -> BuildError:
    """Return a `BuildError` that begins with the first error of `log` and keeps all of it.

    Parameters
    ----------
    solution : str
        Name of the solution.
    what : str
        What failed: ``"nvcc"``, ``"linking"``, …
    log : str
        Everything that was printed.
    hint : str, optional
        What to do next.
    """
    message = f"solution {solution!r}: {what} failed: {first_error(log) or 'no message'}"
    return BuildError(message, hint=hint, log=log)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and what it was expressly raised from, outermost first."""
    cause: Optional[BaseException] = error
    for _ in range(_MOST_CAUSES):  # nothing keeps them from going round in a circle
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


def describe_exception(error: BaseException, root: Path) -> tuple[str, str]:
    """Say where and why code below `root` raised.

    Parameters
    ----------
    error : BaseException
        What was raised.
    root : Path
        Folder of the code; places are given relative to it.

    Returns
    -------
    headline : str
        ``kernel.py:12: NameError: name 'x' is not defined``.
    log : str
        The traceback, without the frames above the code.
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
    except (Exception, SystemExit):  # noqa: BLE001 - the exception is the candidate's code, too
        return f"{type(error).__name__}, which cannot be shown", ""
    headline = f"{place}: {reason}" if place else reason
    return shorten(headline), log.replace(f"{root}/", "")


def _relative(filename: str, root: Path) -> str:
    try:
        return Path(filename).relative_to(root).as_posix()
    except ValueError:
        return ""
