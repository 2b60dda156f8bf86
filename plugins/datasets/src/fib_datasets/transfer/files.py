"""A dataset as the files it is made of, in today's layout, and what writes them."""

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

_NOWHERE = Path()
_BLOCK = 1 << 20

Files = dict[str, Union[Callable[[], bytes], Path]]
"""By path in a folder, with ``/``: what returns the bytes of a file, or the file to copy."""


def op_type_of(definitions: Mapping[str, Definition], name: str) -> str:
    """Return the type of a definition, ``unknown`` if there is none of that name."""
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

    What others depend on comes first, so that a part of them is in want of nothing.

    Parameters
    ----------
    trace_set : TraceSet
        The records.
    blobs : mapping of str to Path
        Tensor files by their path in the dataset.
    definitions : mapping of str to Definition, optional
        Where the op types are looked up, if not among the records.
    """
    known = trace_set.definitions if definitions is None else definitions
    groups: list[Files] = [dict(blobs), {}, {}, {}, {}]
    for one in trace_set.definitions.values():
        groups[1][_json_file(layout.DEFINITIONS, one.op_type, one.name)] = partial(_document, one)
    for name, solutions in trace_set.solutions.items():
        for each in solutions:
            folders = layout.SOLUTIONS, each.author, op_type_of(known, name), name
            groups[2][_json_file(*folders, each.name)] = partial(_document, each)
    for name, traces in trace_set.workloads.items():
        if traces:
            path = layout.workloads_file(_NOWHERE, op_type_of(known, name), name)
            groups[3][str(path)] = partial(_lines, traces)
    for name, traces in trace_set.traces.items():
        if traces:
            path = layout.traces_file(_NOWHERE, op_type_of(known, name), name)
            groups[4][str(path)] = partial(_lines, traces)
    return {path: group[path] for group in groups for path in sorted(group)}


def _json_file(*names: str) -> str:
    return "/".join(map(layout.safe_segment, names)) + ".json"


def _document(record: BaseModel) -> bytes:
    return (to_json(record) + "\n").encode()


def _lines(traces: list[Trace]) -> bytes:
    return "".join(f"{to_json(trace, indent=None)}\n" for trace in traces).encode()


def write_folder(out: Path, files: Files, *, link: bool = False) -> None:
    """Write files as a new folder, which is there as a whole or not at all.

    Parameters
    ----------
    out : Path
        A folder that does not exist, or is empty.
    files : dict
        What to write.
    link : bool
        Whether the files to copy are about to be removed, so that a second name is as good.

    Raises
    ------
    ConfigError
        If `out` is anything else.
    StorageError
        If it cannot be made. It is then as it was before.
    """
    there = out.is_symlink() or out.exists()
    if there and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: not an empty folder", hint="name a new folder")
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
                with contextlib.suppress(OSError):  # another file system, or one without links
                    os.link(content, target)
                    continue
            _copy(content, target)
        target = out
        _sync_tree(filling)
        filling.rename(final)  # over an empty folder, too
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
    """Make all files below a folder durable; at the end, in one go, that costs least."""
    for current, _, names in os.walk(folder, topdown=False):
        for name in names:
            with Path(current, name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(current))


def add_files(folder: Path, files: Files) -> None:
    """Write files into a dataset that others read; lines are appended to what is there.

    Raises
    ------
    ConflictError
        If there is a file where a record is to go.
    StorageError
        If one cannot be written; those before it are there.
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
                "there is a file of this name that holds something else, or cannot be read",
                path=target,
                hint="see what 'fib validate' says about it",
            )
        else:
            replace_file(target, content())
