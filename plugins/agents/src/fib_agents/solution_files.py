"""A solution's sources as files in a folder, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from flashinfer_bench.compile.builder import check_relative_path, write_sources
from flashinfer_bench.data import BuildSpec, Solution
from flashinfer_bench.data.json_codec import dict_to_dataclass
from flashinfer_bench.data.loader import read_text
from flashinfer_bench.errors import ConfigError, StorageError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOT_SOURCES = ("__pycache__",)
_MAX_FILES, _MAX_BYTES = 1000, 16 << 20


def extract_solution_to_files(solution: Solution, base_path: Union[str, Path]) -> str:
    """Write the sources of a solution below a folder; files of the same paths are replaced.

    Parameters
    ----------
    solution : Solution
        The solution.
    base_path : str or Path
        The folder; made if need be.

    Returns
    -------
    str
        The folder.

    Raises
    ------
    UnsafePathError
        If a path could leave the folder, or leads through a file.
    StorageError
        If a file cannot be written, as where there is a folder.
    """
    root = Path(base_path)
    paths = [root / check_relative_path(source.path) for source in solution.sources]
    inside = root.resolve()
    for path in paths:
        if not path.parent.resolve().is_relative_to(inside):
            raise UnsafePathError(f"{path} leads through a symbolic link out of {root}")
        try:
            path.unlink(missing_ok=True)  # of a link it removes the link
        except NotADirectoryError:
            raise UnsafePathError(f"{path.parent} is a file, not a folder") from None
        except OSError as error:
            raise StorageError(f"{path} cannot be replaced: {error.strerror}") from error
    write_sources(root, solution.sources)
    return str(root)


def pack_solution_from_files(
    path: Union[str, Path],
    spec: Union[BuildSpec, dict[str, Any]],
    name: str,
    definition: str,
    author: str,
    description: str = "",
) -> Solution:
    """Make a solution of all files in a folder.

    Hidden files and Python bytecode are left out.

    Parameters
    ----------
    path : str or Path
        The folder. Its subfolders are included; symbolic links must not leave it.
    spec : BuildSpec or dict
        How the solution is built and called.
    name : str
        Unique name of the solution.
    definition : str
        Name of the definition that it implements.
    author : str
        Person or program that wrote it.
    description : str
        What it does.

    Returns
    -------
    Solution
        With the sources in the order of their paths.

    Raises
    ------
    ConfigError
        If there is no such folder, or it has no files, or too many.
    UnsafePathError
        If a symbolic link leaves the folder.
    DataError
        If a file is not UTF-8, or the solution is not valid, as without its entry file.
    """
    root = Path(path)
    if not root.is_dir():
        raise ConfigError(f"there is no folder {root}", hint="name the folder of the sources")
    sources = [
        {"path": file.relative_to(root).as_posix(), "content": _text(file, root)}
        for file in _files(root)
    ]
    if not sources:
        raise ConfigError(f"the folder {root} has no files", hint="hidden files do not count")
    fields = {
        "name": name,
        "definition": definition,
        "author": author,
        "spec": spec.model_dump(mode="json") if isinstance(spec, BuildSpec) else spec,
        "sources": sources,
        "description": description or None,
    }
    return dict_to_dataclass(fields, Solution)


def _files(root: Path) -> Iterator[Path]:
    found = [
        file
        for file in sorted(root.rglob("*"))
        if not any(part[0] == "." or part in _NOT_SOURCES for part in file.relative_to(root).parts)
        and file.is_file()
    ]
    size = sum(file.stat().st_size for file in found)
    if len(found) > _MAX_FILES or size > _MAX_BYTES:
        raise ConfigError(
            f"the folder {root} has {len(found)} files with {size >> 20} MiB; "
            f"at most {_MAX_FILES} and {_MAX_BYTES >> 20} MiB are allowed",
            hint="name the folder that has only the sources",
        )
    yield from found


def _text(file: Path, root: Path) -> str:
    if not file.resolve().is_relative_to(root.resolve()):
        raise UnsafePathError(f"{file} is a symbolic link that leaves {root}")
    return read_text(file)
