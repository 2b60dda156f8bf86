"""The files of a dataset in the current layout, and writing them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Union

from flashinfer_bench.data import layout, to_json
from flashinfer_bench.data.storage import (
    append_lines,
    replace_file,
    replacing,
    storage_error,
    sync_folder,
)
from flashinfer_bench.errors import ConfigError, ConflictError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from flashinfer_bench.data import Definition, Trace, TraceSet

_BLOCK = 1 << 20

Files = dict[str, Union[Callable[[], bytes], Path]]
"""By path with ``/``: a function that returns the bytes of a file, or the file to copy."""


def op_type_of(definitions: Mapping[str, Definition], name: str) -> str:
    """Return the op type of a definition, ``unknown`` if there is no such definition."""
    return definitions[name].op_type if name in definitions else "unknown"


def counts_of(trace_set: TraceSet) -> dict[str, int]:
    """Return the number of records of each kind."""
    return {
        "definitions": len(trace_set.definitions),
        "solutions": sum(map(len, trace_set.solutions.values())),
        "workloads": sum(map(len, trace_set.workloads.values())),
        "traces": sum(map(len, trace_set.traces.values())),
    }


def files_of(
    trace_set: TraceSet,
    blobs: Mapping[str, Path],
    definitions: Optional[Mapping[str, Definition]] = None,
) -> Files:
    """Return the files of a dataset: tensor files, definitions, solutions, workloads, traces.

    Dependencies come first, so that any leading part of the files is complete.

    Parameters
    ----------
    trace_set : TraceSet
        The records.
    blobs : mapping of str to Path
        Tensor files by their path in the dataset.
    definitions : mapping of str to Definition, optional
        Definitions for op types, if they are not among the records.
    """
    known = trace_set.definitions if definitions is None else definitions
    groups: list[Files] = [dict(blobs), {}, {}, {}, {}]
    for one in trace_set.definitions.values():
        path = layout.definition_file(Path(), one.op_type, one.name)
        groups[1][str(path)] = partial(_document, one)
    for name, solutions in trace_set.solutions.items():
        for each in solutions:
            names = each.author, op_type_of(known, name), name, each.name
            groups[2][str(layout.solution_file(Path(), *names))] = partial(_document, each)
    for file_of, records, group in (
        (layout.workloads_file, trace_set.workloads, groups[3]),
        (layout.traces_file, trace_set.traces, groups[4]),
    ):
        for name, traces in records.items():
            if traces:
                group[str(file_of(Path(), op_type_of(known, name), name))] = partial(_lines, traces)
    return {path: group[path] for group in groups for path in sorted(group)}


def _document(record: BaseModel) -> bytes:
    return (to_json(record) + "\n").encode()


def _lines(traces: list[Trace]) -> bytes:
    return "".join(f"{to_json(trace, indent=None)}\n" for trace in traces).encode()


def write_folder(out: Path, files: Files, *, link: bool = False) -> None:
    """Write files as a new folder, which is created completely or not at all.

    Parameters
    ----------
    out : Path
        A folder that does not exist, or is empty.
    files : dict
        The files.
    link : bool
        Whether files may be hard-linked instead of copied, because their sources will be removed.

    Raises
    ------
    ConfigError
        If `out` is anything else.
    StorageError
        If it cannot be created; nothing is changed then.
    """
    there = out.is_symlink() or out.exists()
    if there and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not an empty folder", hint="give a new folder")
    final = out.resolve()
    filling = final.with_name(f".{final.name[:100]}.{secrets.token_hex(8)}.partial")
    target = final
    try:
        filling.mkdir(parents=True)
        for name, content in files.items():
            target = filling / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not isinstance(content, Path):
                target.write_bytes(content())
                continue
            if link:
                with contextlib.suppress(OSError):  # another file system, or no hard links
                    os.link(content, target)
                    continue
            _copy(content, target)
        target = out
        _sync_tree(filling)
        filling.rename(final)  # also over an empty folder
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(target, error) from error
    finally:
        shutil.rmtree(filling, ignore_errors=True)
    sync_folder(final.parent)


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise StorageError(f"{target}: cannot copy {source}: {error}") from error


def _sync_tree(folder: Path) -> None:
    """Sync all files below a folder, which is cheapest at the end."""
    for current, _, names in os.walk(folder, topdown=False):
        for name in names:
            with Path(current, name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(current))


def add_files(folder: Path, files: Files) -> None:
    """Add files to a dataset that is in use; lines are appended to existing files.

    Raises
    ------
    ConflictError
        If another file is in the place of a record.
    StorageError
        If a file cannot be written; earlier ones are kept.
    """
    for name, content in files.items():
        target = folder / name
        if isinstance(content, Path):
            with replacing(target) as file, content.open("rb") as source:
                shutil.copyfileobj(source, file, _BLOCK)
        elif name.endswith(".jsonl"):
            append_lines(target, content().splitlines(keepends=True))
        elif target.exists():
            raise ConflictError(
                "another file has this name, or it cannot be read",
                path=target,
                hint="run 'fib validate'",
            )
        else:
            replace_file(target, content())
