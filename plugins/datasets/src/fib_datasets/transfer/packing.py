"""A solution as a folder of source files, and back.

The folder has ``solution.json``, which is the solution's JSON without the content of its sources,
and ``sources`` with a file for each of them. Unknown fields of the JSON are preserved.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from fib_datasets.transfer.files import Files, write_folder
from flashinfer_bench.data import Solution, layout
from flashinfer_bench.data.json_codec import decode, dict_to_dataclass, parse_json
from flashinfer_bench.data.loader import read_text
from flashinfer_bench.data.storage import replace_file
from flashinfer_bench.errors import DataError, DatasetNotFoundError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Sequence

METADATA = "solution.json"
SOURCES = "sources"


@dataclass(frozen=True)
class Packed:
    """A solution that was packed or unpacked.

    Parameters
    ----------
    solution : Solution
        The solution.
    path : Path
        The written file or folder.
    added : tuple of str
        Sources that were added although the metadata does not list them.
    """

    solution: Solution
    path: Path
    added: tuple[str, ...] = ()


def unpack_solution(file: str | Path, folder: str | Path) -> Packed:
    """Write a solution's sources into a new folder, with a small metadata file.

    Parameters
    ----------
    file : str or Path
        JSON file of the solution.
    folder : str or Path
        A folder that does not exist, or is empty. It is written completely or not at all.

    Raises
    ------
    DatasetNotFoundError
        If there is no such file.
    DataError
        If it is not a solution.
    StorageError
        If the folder is not empty, or writing fails.
    """
    source = Path(file)
    if not source.is_file():
        what = "is not a file" if source.exists() else "does not exist"
        hint = "give the JSON file of a solution; for folders use 'fib solution pack'"
        raise DatasetNotFoundError(f"{source} {what}", hint=hint)
    text = source.read_bytes()
    solution = decode(Solution, text, path=source)
    record = parse_json(text, path=source)
    names = file_names([one["path"] for one in record["sources"]])
    files: Files = {}
    listed = []
    for entry, name in zip(record["sources"], names, strict=True):
        files[f"{SOURCES}/{name}"] = entry["content"].encode
        kept = {key: value for key, value in entry.items() if key != "content"}
        listed.append(kept if name == entry["path"] else {**kept, "file": name})
    files[METADATA] = _json({**record, "sources": listed}).encode
    write_folder(Path(folder), files)
    return Packed(solution, Path(folder))


def pack_solution(folder: str | Path, file: str | Path) -> Packed:
    """Write a folder of source files as the JSON of one solution.

    Files in ``sources`` that the metadata does not list are added, except hidden files and Python
    bytecode.

    Parameters
    ----------
    folder : str or Path
        A folder written by `unpack_solution`.
    file : str or Path
        The JSON file; an existing one is replaced.

    Raises
    ------
    DatasetNotFoundError
        If there is no metadata file.
    DataError
        If it is invalid, a source is missing or not UTF-8, or a path is outside the folder.
    StorageError
        If writing fails; an existing file is unchanged.
    """
    root, out = Path(folder), Path(file)
    metadata = root / METADATA
    if not metadata.is_file():
        raise DatasetNotFoundError(
            f"{root} has no {METADATA}", hint="create the folder with 'fib solution unpack'"
        )
    if out.resolve().is_relative_to((root / SOURCES).resolve()) or out.resolve() == (
        metadata.resolve()
    ):
        raise UnsafePathError(
            f"the output {out} is among the packed files", hint="give another --output"
        )
    record = parse_json(metadata.read_bytes(), path=metadata)
    if not isinstance(record, dict):
        raise DataError("must be an object", path=metadata)
    sources, added = _read_sources(root / SOURCES, record.get("sources"), metadata)
    packed = {**record, "sources": sources}
    try:
        solution = dict_to_dataclass(packed, Solution)
    except DataError as error:
        raise DataError(error.message, path=metadata, field=error.field) from error
    replace_file(out, _json(packed).encode())
    return Packed(solution, out, added)


def file_names(paths: Sequence[str]) -> list[str]:
    """Return a file name for each path: the path itself if all systems can store them together.

    Parameters
    ----------
    paths : sequence of str
        Paths of sources, all different.

    Returns
    -------
    list of str
        Relative paths with ``/``, all different, none of them a parent of another.
    """
    taken: set[PurePosixPath] = set()
    folders: set[PurePosixPath] = set()
    names: list[str] = []
    for path in paths:
        name = "/".join(layout.safe_segment(part) for part in PurePosixPath(path).parts)
        folded = PurePosixPath(name.casefold())
        number = 0
        while folded in taken | folders or taken & set(folded.parents):
            number += 1
            name = f"source_{number}{PurePosixPath(name).suffix}"
            folded = PurePosixPath(name.casefold())
        taken.add(folded)
        folders.update(folded.parents)
        names.append(name)
    return names


def _json(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


def _read_sources(
    folder: Path, listed: Any, metadata: Path
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    entries = [] if listed is None else listed
    if not isinstance(entries, list):
        raise DataError("must be a list", path=metadata, field="sources")
    sources: list[dict[str, Any]] = []
    used: set[Path] = set()
    for index, entry in enumerate(entries):
        field = f"sources.{index}"
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            raise DataError("needs a path", path=metadata, field=field)
        name = entry.get("file", entry["path"])
        path = _inside(folder, name, metadata, field)
        used.add(path)
        rest = {key: each for key, each in entry.items() if key not in ("path", "content", "file")}
        # The content comes after the path, as in other solution files.
        sources.append({"path": entry["path"], "content": read_text(path), **rest})
    added = []
    for path in layout.files(folder, ""):
        name = path.relative_to(folder).as_posix()
        if "__pycache__" not in name.split("/") and path.resolve() not in used:
            _inside(folder, name, metadata, "sources")
            added.append({"path": name, "content": read_text(path)})
    return sources + added, tuple(one["path"] for one in added)


def _inside(folder: Path, name: Any, metadata: Path, field: str) -> Path:
    if not isinstance(name, str) or not name or "\0" in name:
        raise UnsafePathError(f"{name!r} is not a file name", path=metadata, field=field)
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise UnsafePathError(f"{name!r} is outside {SOURCES}", path=metadata, field=field)
    if not path.is_file():
        raise DataError(f"no file {name!r} in {SOURCES}", path=metadata, field=field)
    return path
